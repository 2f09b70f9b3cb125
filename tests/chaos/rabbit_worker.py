"""A runner that tests start as a process of its own and end as they like.

Run as ``python rabbit_worker.py URL QUEUE FILE MAX_ATTEMPTS SLOTS SECONDS PLAN``. Appends a
line to FILE for each handler call and another when it returns. PLAN says what a call does at
each attempt, as ``fail``, ``crash``, ``delay`` or ``work``, separated by commas; the last holds
for every later one. A message whose body names a plan of its own follows that.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from brokerwq import App, Job, Retry, RetryPolicy

URL, QUEUE, FILE, MAX_ATTEMPTS, SLOTS, SECONDS, PLAN = sys.argv[1:8]


def note(*words: object) -> None:
    # One write of one line: what a crash follows must be on record.
    line = " ".join(map(str, (*words, os.getpid()))) + "\n"
    with Path(FILE).open("ab", buffering=0) as record:
        record.write(line.encode())


app = App(URL)


@app.worker(
    QUEUE,
    name="work",
    lease=60,
    retry=RetryPolicy(max_attempts=int(MAX_ATTEMPTS), base=0, jitter="none"),
)
async def work(job: Job, payload: dict[str, Any]) -> None:
    note("start", payload["n"], job.attempt)
    plan = str(payload.get("plan", PLAN)).split(",")
    step = plan[min(job.attempt, len(plan)) - 1]
    await asyncio.sleep(float(payload.get("seconds", SECONDS)))
    if step == "crash":
        os._exit(9)
    if step == "fail":
        raise ValueError("told to")
    if step == "delay":
        raise Retry(after=1.0)
    note("end", payload["n"], job.attempt)


async def main() -> int:
    return (await app.run(slots=int(SLOTS))).exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

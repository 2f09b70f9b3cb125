"""A runner that ends itself where a test says so.

Run as ``python doomed.py BROKER STORE FILE FAULT``. Appends a line to FILE for each run and for
each effect. FAULT: ``after-effect``, ``after-record``: it is killed there; ``freeze``: it stops
before its effect until somebody lets it go on; ``crash``: it is killed before its effect;
``none``: it drains the queue.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from brokerwq import App, Job, RetryPolicy, Runner
from brokerwq.idempotency import open_store

BROKER, STORE, FILE, FAULT = sys.argv[1:5]
# Long enough for a slow machine to write a record in; a crash loop waits for three of them.
LEASE = 1.2 if FAULT == "crash" else 2.5

store: Any = open_store(STORE)
app = App(
    BROKER,
    store=store,
    name="doomed",
    lease=LEASE,
    retry=RetryPolicy(max_attempts=3, base=0.01, cap=0.05),
)


def note(*words: object) -> None:
    # One write of one line: what a kill follows must be on record.
    with Path(FILE).open("ab", buffering=0) as record:
        record.write((" ".join(map(str, words)) + "\n").encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.worker("q", name="work", once="marker", key="n")
async def work(job: Job, *, n: int) -> None:
    note("run", n, job.attempt, job.fence, job.takeover)
    if FAULT == "crash":
        die()
    if FAULT == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    note("effect", n, job.attempt, job.fence, job.takeover)
    if FAULT == "after-effect":
        die()


async def complete_and_die(*values: Any) -> bool:
    done: bool = await complete(*values)
    die()
    return done


complete = store.complete
if FAULT == "after-record":
    store.complete = complete_and_die


async def main() -> None:
    runner = Runner(app, slots=1, grace=2.0, log=False)
    if FAULT == "none":
        report = await asyncio.wait_for(runner.drain(handle_signals=False), 60)
        note("report", report.done, report.duplicates, report.dead_count)
    else:
        await runner.run()


if __name__ == "__main__":
    asyncio.run(main())

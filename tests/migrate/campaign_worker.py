"""A runner of a campaign, as a process of its own: ``campaign_worker.py STORE SECONDS SLOTS``.

The brokers come from ``BROKERWQ_URL`` and ``BROKERWQ_SEND_TO``, as a team would switch them. Each
message leaves one row, in the transaction that records its key.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from typing import Any

from brokerwq import App, Job, RetryPolicy, Tx
from tests.migrate.lab import QUEUE

STORE, SECONDS, SLOTS = sys.argv[1:4]

app = App(store=STORE, name="campaign")


@app.worker(QUEUE, name="work", once="transactional", retry=RetryPolicy(max_attempts=5, base=0.1))
async def work(_job: Job, tx: Tx, payload: dict[str, Any]) -> None:
    await asyncio.sleep(float(SECONDS))
    db: sqlite3.Connection = tx.conn
    db.execute("INSERT INTO effects (n) VALUES (?)", (payload["n"],))


if __name__ == "__main__":
    sys.exit(asyncio.run(app.run(slots=int(SLOTS))).exit_code)

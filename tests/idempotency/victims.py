"""Runners that kill themselves at a point of their own choice, each on a queue of its own.

    python -m tests.idempotency.victims BROKER_URL LIBRARY DSN CASE [POINT]

``POINT`` is ``effect``: right after the handler's effect, before its record is done; or ``ack``:
when the record is done, before the message is. Without one the runner lives.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

from brokerwq import App, Job, Once, RetryPolicy, Tx
from brokerwq.idempotency import SqliteStore
from brokerwq.once import Strategy


@dataclass(frozen=True)
class Case:
    """A strategy, where its first runner dies, and the number that it writes."""

    strategy: Strategy
    point: str
    n: int


CASES: dict[str, Case] = {
    "transactional-effect": Case("transactional", "effect", 1),
    "lease_tx-effect": Case("lease_tx", "effect", 2),
    "marker-effect": Case("marker", "effect", 3),
    "transactional-ack": Case("transactional", "ack", 4),
    "lease_tx-ack": Case("lease_tx", "ack", 5),
    "marker-ack": Case("marker", "ack", 6),
    "marker-crash": Case("marker", "effect", 7),
}


def build(app: App, name: str, write: Any, note: Any, point: str = "") -> Any:
    """The worker of case ``name`` on a queue of its name, and the one its children go to."""
    case = CASES[name]
    retry = RetryPolicy(max_attempts=3, base=0.01)
    worker_on: Any = app.worker

    async def send(job: Job, n: int) -> None:
        note(("mail", job.id, n))

    mail = worker_on(f"{name}-mails", name="mail")(send)

    async def body(job: Job, tx: Tx | None, n: int) -> None:
        note((name, job.attempt, job.takeover))
        if tx is None:
            job.enqueue(mail, n)
        else:
            await tx.begin()
            await write(tx, n)
            await tx.enqueue(mail, n)
        if point == "effect":
            die()

    async def marked(job: Job, n: int) -> None:
        await body(job, None, n)

    async def in_tx(job: Job, tx: Tx, n: int) -> None:
        await body(job, tx, n)

    fn = marked if case.strategy == "marker" else in_tx
    once = Once(strategy=case.strategy)
    return worker_on(name, once=once, name=name, lease=1.0, retry=retry)(fn)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once_done(store: Any) -> None:
    """Die when a record has been completed."""
    complete, marked, completing = store.complete, store.begin_marked, store.begin_completing

    async def then_die(*values: Any) -> None:
        await complete(*values)
        die()

    def deadly(begin: Any) -> Any:
        async def begun(*values: Any) -> Any:
            transaction = await begin(*values)
            commit = transaction.commit

            async def commit_and_die() -> None:
                await commit()
                die()

            transaction.commit = commit_and_die
            return transaction

        return begun

    store.complete = then_die
    store.begin_marked, store.begin_completing = deadly(marked), deadly(completing)


def store_of(library: str, dsn: str) -> tuple[Any, Any]:
    """The store, and how its handlers write."""
    if library == "sqlite":

        async def write(tx: Any, n: int) -> None:
            tx.conn.execute("INSERT INTO effects VALUES (?)", (n,))

        return SqliteStore(dsn), write
    from tests.idempotency.postgres import LIBRARIES

    found = LIBRARIES[library]
    return found.open(dsn), found.write


def main() -> None:
    url, library, dsn, name, *points = sys.argv[1:]
    point = "".join(points)
    store, write = store_of(library, dsn)
    if point == "ack":
        die_once_done(store)
    app = App(url, store=store, name="shop")
    build(app, name, write, print, point)
    asyncio.run(app.drain(name, log=False))


if __name__ == "__main__":
    main()

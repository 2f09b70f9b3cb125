"""An app whose work and records are in one SQL database, whichever that is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerwq import App, Job, Message, Once, RunReport, Tx
from brokerwq.idempotency import Record
from brokerwq.once import Strategy
from brokerwq.testing.stores import StoreBench, Work, a_claim
from tests.cases.lab import Place, declare, send_raw, sqlite
from tests.idempotency.lab import RETRY
from tests.idempotency.stores import STORES


def itself(payload: object) -> object:
    return payload


def same(_payload: object) -> object:
    return "same"


@dataclass
class SqlShop:
    """An app on SQLite as its broker, and its store.

    Attributes:
        runs: What the workers note of each call.
    """

    place: Place
    bench: StoreBench
    app: App
    runs: list[Any] = field(default_factory=list[Any])

    @property
    def db(self) -> Work:
        return self.bench.db

    def worker(
        self,
        strategy: Strategy,
        fn: Callable[[Job, Any, Any], Any] | None = None,
        *,
        writes: bool = True,
        **options: Any,
    ) -> Any:
        """A worker of ``q`` that notes its runs, writes its effect, and then calls ``fn``.

        A marker's effect is beside the transaction, so that it writes none.
        """
        once = Once(strategy=strategy, **options.pop("once", {}))

        async def body(job: Job, tx: Tx | None, n: Any) -> Any:
            self.runs.append(n)
            if tx is not None and writes:
                await tx.begin()
                await self.db.write(tx, n)
            return n if fn is None else await fn(job, tx, n)

        async def marked(job: Job, n: Any) -> Any:
            return await body(job, None, n)

        async def in_tx(job: Job, tx: Tx, n: Any) -> Any:
            return await body(job, tx, n)

        keywords: dict[str, Any] = {"key": itself, "name": "charge", **options}
        worker_on: Any = self.app.worker
        return worker_on("q", once=once, **keywords)(marked if strategy == "marker" else in_tx)

    async def drain(self, **options: Any) -> RunReport:
        return await self.place.drain(self.app, **options)

    async def send(self, *messages: Message) -> None:
        """Store messages as they are on the queue ``q``."""
        await declare(self.app, "q")
        await send_raw(self.app, "q", *messages)

    async def records(self) -> list[Record]:
        return list(await self.bench.store.list(1000, state=None, worker=None))

    async def record(self) -> Record:
        (record,) = await self.records()
        return record

    async def taken_over(self, *, completes: bool) -> None:
        """Somebody else takes the only record over, as after a freeze of its owner."""
        store, record = self.bench.again(), await self.record()
        await store.forget(record.key)
        claim = a_claim(
            int.from_bytes(record.key, "big"),
            payload=record.payload,
            owner=b"B" * 16,
            lease=0.3,
        )
        await store.claim(claim)
        if completes:
            await store.complete(claim.key, claim.owner, 1000.0, '"of B"')


@asynccontextmanager
async def open_shop(name: str, folder: Path, **keywords: Any) -> AsyncGenerator[SqlShop]:
    async with STORES[name](folder) as bench:
        place = sqlite(folder)
        app = place.app(
            **{"store": bench.store, "name": "shop", "retry": RETRY, "lease": 2.0, **keywords}
        )
        yield SqlShop(place, bench, app)
        await place.aclose()

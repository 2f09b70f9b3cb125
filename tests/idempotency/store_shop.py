"""An app whose records are in any store, and its work too where the store has transactions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerwq import Job, Once, Tx
from brokerwq.idempotency import Store
from brokerwq.once import Strategy
from brokerwq.testing.stores import StoreBench, Work
from tests.cases.lab import sqlite
from tests.idempotency.lab import RETRY, AnyShop
from tests.idempotency.stores import STORES


def itself(payload: object) -> object:
    return payload


def same(_payload: object) -> object:
    return "same"


@dataclass
class StoreShop(AnyShop[Store]):
    """An app, and the bench of its store."""

    bench: StoreBench

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

    async def effects(self) -> list[int]:
        """What its workers have written; nothing where they cannot."""
        return [] if self.bench.work is None else await self.bench.work.effects()


@asynccontextmanager
async def open_shop(name: str, folder: Path, **keywords: Any) -> AsyncGenerator[StoreShop]:
    async with STORES[name](folder) as bench:
        place = sqlite(folder)
        app = place.app(
            **{"store": bench.store, "name": "shop", "retry": RETRY, "lease": 2.0, **keywords}
        )
        yield StoreShop(place, bench.store, app, bench)
        await place.aclose()

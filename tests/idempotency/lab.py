"""An app with a store of its own, on SQLite, and a store that fails when a test says so."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from brokerwq import App, Message, RetryPolicy, RunReport
from brokerwq.errors import StoreUnavailableError
from brokerwq.idempotency import Record, SqliteStore, Store
from brokerwq.idempotency.record import Answer, Claim
from brokerwq.idempotency.store import Transaction
from brokerwq.testing.servers.proxy import TcpProxy
from brokerwq.testing.stores import a_claim
from tests.cases.lab import Place, declare, send_raw, sqlite

S = TypeVar("S", bound=Store)

RETRY = RetryPolicy(max_attempts=3, base=0.01, cap=0.05)


class FaultyStore(SqliteStore):
    """Raises for the calls in ``down``; ``lost_commits`` commits answer with an error."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.down: set[str] = set()
        self.refused: list[str] = []
        self.lost_commits = 0

    def _fail(self, call: str) -> None:
        if call in self.down:
            self.refused.append(call)
            msg = f"{call}: unplugged"
            raise StoreUnavailableError(msg)

    async def check(self) -> None:
        self._fail("check")
        await super().check()

    async def claim(self, claim: Claim, /) -> Answer:
        self._fail("claim")
        return await super().claim(claim)

    async def extend(self, key: bytes, owner: bytes, lease: float, /) -> bool:
        self._fail("extend")
        return await super().extend(key, owner, lease)

    async def complete(
        self, key: bytes, owner: bytes, retention: float, result: str | None, /
    ) -> bool:
        self._fail("complete")
        return await super().complete(key, owner, retention, result)

    async def release(self, key: bytes, owner: bytes, /) -> bool:
        self._fail("release")
        return await super().release(key, owner)

    async def begin_marked(self, claim: Claim, /) -> Transaction | Answer:
        self._fail("claim")
        begun: Any = await super().begin_marked(claim)
        if hasattr(begun, "commit"):
            self._lose_commit(begun)
        return begun  # type: ignore[no-any-return]

    def _lose_commit(self, transaction: Any) -> None:
        commit = transaction.commit

        async def lost() -> None:
            await commit()
            if self.lost_commits:
                self.lost_commits -= 1
                msg = "the answer to COMMIT was lost"
                raise StoreUnavailableError(msg)

        transaction.commit = lost


@dataclass
class AnyShop(Generic[S]):
    """An app on SQLite as its broker, and its store.

    Attributes:
        runs: What the workers note of each call.
    """

    place: Place
    store: S
    app: App
    runs: list[Any] = field(default_factory=list[Any], kw_only=True)

    async def drain(self, **options: Any) -> RunReport:
        return await self.place.drain(self.app, **options)

    async def send(self, *messages: Message) -> None:
        """Store messages as they are on the queue ``q``."""
        await declare(self.app, "q")
        await send_raw(self.app, "q", *messages)

    async def records(self) -> list[Record]:
        return list(await self.store.list(1000, state=None, worker=None))

    async def record(self) -> Record:
        (record,) = await self.records()
        return record

    async def until(self, condition: Callable[[], object]) -> None:
        await self.place.until(condition)

    async def taken_over(self, *, completes: bool) -> None:
        """Somebody else takes the only record over, as after a freeze of its owner."""
        record = await self.record()
        await self.store.forget(record.key)
        claim = a_claim(
            int.from_bytes(record.key), payload=record.payload, owner=b"B" * 16, lease=0.3
        )
        await self.store.claim(claim)
        if completes:
            await self.store.complete(claim.key, claim.owner, 1000.0, '"of B"')


class Shop(AnyShop[FaultyStore]):
    def effects(self) -> list[Any]:
        return rows(self.store, "SELECT n FROM effects ORDER BY n")


@asynccontextmanager
async def refusing(proxy: TcpProxy) -> AsyncGenerator[None]:
    """Nobody gets through ``proxy`` within the block."""
    await asyncio.to_thread(proxy.refuse)
    yield
    await asyncio.to_thread(proxy.listen)


def rows(store: SqliteStore, sql: str) -> list[Any]:
    db = sqlite3.connect(store.name.removeprefix("sqlite:///"))
    try:
        return [row[0] if len(row) == 1 else row for row in db.execute(sql)]
    finally:
        db.close()


async def open_shop(folder: Path, *, name: str = "shop", **keywords: Any) -> Shop:
    place = sqlite(folder)
    store = FaultyStore(folder / "work.db")
    await store.check()
    await asyncio.to_thread(_make_table, folder / "work.db")
    app = place.app(store=store, name=name, **{"retry": RETRY, "lease": 2.0, **keywords})
    return Shop(place, store, app)


def _make_table(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE IF NOT EXISTS effects (n)")
    db.close()

"""Each store with what a test needs beside it: time that passes, and a table to write into."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from brokerwq.clock import SYSTEM_CLOCK, Timer
from brokerwq.idempotency import SqliteStore, Store
from brokerwq.testing.stores import StoreBench, Work, a_claim

__all__ = ["MARKER_ONLY", "POSTGRES", "STORES", "TRANSACTIONAL", "a_claim"]

Opener: TypeAlias = Callable[[Path], AbstractAsyncContextManager[StoreBench]]

DEFERRED = "CREATE TABLE deferred (n INTEGER REFERENCES effects (n) DEFERRABLE INITIALLY DEFERRED)"


class LeapingClock:
    """The machine's clock, which can be told that time has passed.

    ``skew`` is how far its wall clock is ahead of what it should be; its monotonic time is right.
    """

    def __init__(self, skew: float = 0.0, leader: LeapingClock | None = None) -> None:
        self._skew = timedelta(seconds=skew)
        self._leader = leader or self
        self._leapt = 0.0

    def leap(self, seconds: float) -> None:
        self._leapt += seconds

    def now(self) -> float:
        return SYSTEM_CLOCK.now() + self._leader._leapt

    def utcnow(self) -> datetime:
        return SYSTEM_CLOCK.utcnow() + self._skew + timedelta(seconds=self._leader._leapt)

    async def sleep(self, seconds: float, /) -> None:
        await SYSTEM_CLOCK.sleep(seconds)

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        return SYSTEM_CLOCK.call_at(when - self._leader._leapt, callback)


class SqliteOwn:
    """A ``sqlite3`` connection of the user's own."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.tx = db

    async def begin(self) -> None:
        self.tx.execute("BEGIN IMMEDIATE")

    async def end(self, word: str, /) -> None:
        self.tx.execute(word)

    async def write(self, n: int, /) -> None:
        self.tx.execute("INSERT INTO effects VALUES (?)", (n,))

    async def run(self, sql: str, /) -> None:
        self.tx.execute(sql)


def sqlite_work(path: Path) -> Work:
    @asynccontextmanager
    async def own() -> AsyncGenerator[SqliteOwn]:
        db = sqlite3.connect(path, isolation_level=None)
        yield SqliteOwn(db)
        db.close()

    async def run(tx: Any, sql: str) -> object:
        return tx.conn.execute(sql)

    async def write(tx: Any, n: int) -> object:
        return tx.conn.execute("INSERT INTO effects VALUES (?)", (n,))

    async def effects() -> list[int]:
        db = sqlite3.connect(path)
        try:
            return [n for (n,) in db.execute("SELECT n FROM effects ORDER BY n")]
        finally:
            db.close()

    async def commit(tx: Any) -> object:
        return tx.conn.commit()

    async def rollback(tx: Any) -> object:
        return tx.conn.rollback()

    async def script(tx: Any) -> object:
        return tx.conn.executescript("")

    async def as_block(tx: Any) -> object:
        with tx.conn:
            return None

    async def defer(tx: Any) -> object:
        return tx.conn.execute("INSERT INTO deferred VALUES (-1)")

    return Work(
        write=write,
        run=run,
        effects=effects,
        own=own,
        aborts=False,
        habits={"commit": commit, "rollback": rollback, "executescript": script, "with": as_block},
        defer=defer,
    )


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncGenerator[StoreBench]:
    path = folder / f"keys-{os.urandom(4).hex()}.db"
    clock = LeapingClock()
    opened: list[Store] = []

    def another(skew: float = 0.0, file: Path = path, *, create: bool = True) -> SqliteStore:
        store = SqliteStore(
            file,
            clock=LeapingClock(skew, clock),
            busy_timeout=0.2,
            create=create,
            foreign_keys=True,
        )
        opened.append(store)
        return store

    async def passes(seconds: float) -> None:
        clock.leap(seconds)

    def by_hand(sql: str, *values: object) -> None:
        db = sqlite3.connect(path, isolation_level=None)
        db.execute(sql, values)
        db.close()

    async def damage(key: bytes) -> None:
        by_hand("UPDATE brokerwq_key SET state = 77 WHERE key = ?", key)

    async def outdate() -> None:
        by_hand("UPDATE brokerwq_meta SET value = '99' WHERE name = 'schema'")

    @asynccontextmanager
    async def bare() -> AsyncGenerator[Store]:
        file = path.with_suffix(".bare")
        sqlite3.connect(file).execute("CREATE TABLE effects (n)").connection.close()
        yield another(file=file, create=False)

    store = another()
    await store.init()
    by_hand("CREATE TABLE effects (n INTEGER PRIMARY KEY CHECK (n < 1000))")
    by_hand(DEFERRED)
    try:
        yield StoreBench(
            store=store,
            again=another,
            passes=passes,
            skewed=another,
            bears_skew=600.0,
            damage=damage,
            bare=bare,
            outdate=outdate,
            work=sqlite_work(path),
            where=f"sqlite {path}",
        )
    finally:
        for each in opened:
            await each.aclose()


def on_postgres(name: str) -> Opener:
    @asynccontextmanager
    async def opened(_folder: Path) -> AsyncGenerator[StoreBench]:
        # asyncpg is what the tests themselves look with, whatever library is under test.
        pytest.importorskip("asyncpg")
        from tests.idempotency.postgres import LIBRARIES, bench_of

        async with bench_of(LIBRARIES[name]) as bench:
            yield bench

    return opened


def in_redis(_folder: Path) -> AbstractAsyncContextManager[StoreBench]:
    from tests.idempotency.redis_lab import redis_bench

    return redis_bench()


def in_dynamodb(_folder: Path) -> AbstractAsyncContextManager[StoreBench]:
    from tests.idempotency.dynamodb_lab import dynamodb_bench

    return dynamodb_bench(on_fake_clock=False)


POSTGRES: tuple[str, ...] = ("asyncpg", "psycopg", "sqlalchemy, asyncpg", "sqlalchemy, psycopg")
STORES: dict[str, Opener] = {
    "sqlite": sqlite,
    **{f"postgres, {name}": on_postgres(name) for name in POSTGRES},
    "redis": in_redis,
    "dynamodb": in_dynamodb,
}
TRANSACTIONAL: tuple[str, ...] = ("sqlite", *(f"postgres, {name}" for name in POSTGRES))
MARKER_ONLY: tuple[str, ...] = ("redis", "dynamodb")

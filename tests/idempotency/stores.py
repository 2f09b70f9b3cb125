"""Each store with what a test needs beside it: time that passes, and a table to write into."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.idempotency import SqliteStore, Store
from brokerwq.idempotency.record import Claim
from brokerwq.testing import FakeClock
from brokerwq.testing.servers.postgres import program, shared_postgres

Opener: TypeAlias = Callable[[Path], AbstractAsyncContextManager["Bench"]]


@dataclass
class Bench:
    """A store under test.

    Attributes:
        store: The store.
        passes: Let so many seconds pass on its clock.
        again: Another store object on the same data, as another process has.
        write: One row in the effects table, through a transaction's ``conn``.
        run: A statement through ``conn``, as the driver has it.
        effects: The numbers in the effects table that are committed.
    """

    store: Any
    passes: Callable[[float], Awaitable[object]]
    again: Callable[[], Any]
    write: Callable[[Any, int], Awaitable[object]] | None = None
    run: Callable[[Any, str], Awaitable[object]] | None = None
    effects: Callable[[], Awaitable[list[int]]] | None = None
    opened: list[Store] = field(default_factory=list[Store])


@asynccontextmanager
async def sqlite(folder: Path, clock: Clock = SYSTEM_CLOCK) -> AsyncGenerator[Bench]:
    path = folder / "keys.db"
    opened: list[SqliteStore] = []

    def another() -> SqliteStore:
        store = SqliteStore(path, clock=clock, busy_timeout=0.2)
        opened.append(store)
        return store

    async def passes(seconds: float) -> None:
        if isinstance(clock, FakeClock):
            clock.advance(seconds)
        else:
            await asyncio.sleep(seconds)

    async def run(conn: sqlite3.Connection, sql: str) -> object:
        return conn.execute(sql)

    async def write(conn: sqlite3.Connection, n: int) -> object:
        return conn.execute("INSERT INTO effects VALUES (?)", (n,))

    async def effects() -> list[int]:
        db = sqlite3.connect(path)
        try:
            return [n for (n,) in db.execute("SELECT n FROM effects ORDER BY n")]
        finally:
            db.close()

    db = sqlite3.connect(path)
    db.execute("CREATE TABLE effects (n INTEGER NOT NULL CHECK (n < 1000))")
    db.close()
    bench = Bench(another(), passes, another, write, run, effects)
    try:
        yield bench
    finally:
        for store in opened:
            await store.aclose()


@asynccontextmanager
async def sqlite_on_fake_clock(folder: Path) -> AsyncGenerator[Bench]:
    async with sqlite(folder, FakeClock()) as bench:
        yield bench


@asynccontextmanager
async def asyncpg(_folder: Path) -> AsyncGenerator[Bench]:
    from brokerwq.idempotency.stores.asyncpg import AsyncpgStore

    opened: list[AsyncpgStore] = []
    with postgres_schema() as dsn:

        def another() -> AsyncpgStore:
            store = AsyncpgStore(dsn)
            opened.append(store)
            return store

        async def write(conn: Any, n: int) -> object:
            return await conn.execute("INSERT INTO effects VALUES ($1)", n)

        async def run(conn: Any, sql: str) -> object:
            return await conn.execute(sql)

        async def effects() -> list[int]:
            rows = await opened[0].fetch("SELECT n FROM effects ORDER BY n")
            return [row[0] for row in rows]

        store = another()
        await store.init()
        await store.fetch("CREATE TABLE effects (n integer NOT NULL CHECK (n < 1000))")
        try:
            yield Bench(store, asyncio.sleep, another, write, run, effects)
        finally:
            for each in opened:
                await each.aclose()


@contextmanager
def postgres_schema() -> Generator[str]:
    """A schema of one's own on the shared server; its URL."""
    try:
        server = shared_postgres()
    except FileNotFoundError as exc:
        pytest.skip(str(exc))
    name = f"t{uuid.uuid4().hex}"
    psql = [program("psql") or "psql", server.url, "-q", "-c"]
    subprocess.run([*psql, f"CREATE SCHEMA {name}"], check=True)
    yield f"{server.url}?search_path={name}"
    drop = f"SET client_min_messages = error; DROP SCHEMA {name} CASCADE"
    subprocess.run([*psql, drop], check=True)


STORES: dict[str, Opener] = {
    "sqlite": sqlite,
    "sqlite, fake clock": sqlite_on_fake_clock,
    "asyncpg": asyncpg,
}
RECORDS: tuple[str, ...] = ("sqlite, fake clock", "asyncpg")
TRANSACTIONAL: tuple[str, ...] = ("sqlite", "asyncpg")

_owners = count(1)


def a_claim(key: int = 1, **values: Any) -> Claim:
    """A claim of a new owner, on a key of its own for each number."""
    plain: dict[str, Any] = {
        "key": key.to_bytes(16),
        "worker": "shop/charge",
        "payload": b"p" * 16,
        "message_id": "m1",
        "generation": 0,
        "owner": next(_owners).to_bytes(16),
        "lease": 0.3,
        "retention": 1000.0,
    }
    return Claim(**{**plain, **values})

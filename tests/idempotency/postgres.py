"""PostgreSQL for tests: one server, a schema of its own for each, and every client library."""

from __future__ import annotations

import atexit
import subprocess
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import pytest

from brokerwq.idempotency import Store
from brokerwq.testing.servers.postgres import program, shared_postgres
from brokerwq.testing.servers.proxy import TcpProxy
from brokerwq.testing.stores import Own, StoreBench, Work
from brokerwq.testing.stores.bench import Habit

asyncpg: Any = import_module("asyncpg")  # it has no types

TABLES = (
    "CREATE TABLE effects (n integer PRIMARY KEY CHECK (n < 1000))",
    "CREATE TABLE deferred (n integer REFERENCES effects DEFERRABLE INITIALLY DEFERRED)",
)
CONFLICT = "DO $$ BEGIN RAISE EXCEPTION 'given up' USING ERRCODE = '40001'; END $$"


@dataclass(frozen=True)
class Library:
    """A client library: its store, and how handlers and users write with it.

    Attributes:
        open: A store on a URL.
        write: One row, as a handler writes it.
        run: One statement, as a handler runs it.
        own: A connection of the user's own on a URL.
        implicit: A statement of its own connection begins a transaction by itself.
        habits: See ``Work``.
    """

    open: Callable[[str], Any]
    write: Callable[[Any, int], Any]
    run: Callable[[Any, str], Any]
    own: Callable[[str], AbstractAsyncContextManager[Own]]
    implicit: bool = False
    habits: Mapping[str, Habit] = field(default_factory=dict[str, Habit])


# -- asyncpg -------------------------------------------------------------------------------


def open_asyncpg(dsn: str) -> Store:
    from brokerwq.idempotency.stores.asyncpg import AsyncpgStore

    return AsyncpgStore(dsn)


async def write_asyncpg(tx: Any, n: int) -> object:
    return await tx.conn.execute("INSERT INTO effects VALUES ($1)", n)


async def run_asyncpg(tx: Any, sql: str) -> object:
    return await tx.conn.execute(sql)


class AsyncpgOwn:
    def __init__(self, connection: Any) -> None:
        self.tx = connection

    async def begin(self) -> None:
        await self.tx.execute("BEGIN")

    async def end(self, word: str, /) -> None:
        await self.tx.execute(word)

    async def write(self, n: int, /) -> None:
        await self.tx.execute("INSERT INTO effects VALUES ($1)", n)

    async def run(self, sql: str, /) -> None:
        await self.tx.execute(sql)


@asynccontextmanager
async def own_asyncpg(dsn: str) -> AsyncGenerator[AsyncpgOwn]:
    connection = await asyncpg.connect(dsn)
    yield AsyncpgOwn(connection)
    await connection.close()


LIBRARIES: dict[str, Library] = {
    "asyncpg": Library(open_asyncpg, write_asyncpg, run_asyncpg, own_asyncpg),
}

# -- the server ----------------------------------------------------------------------------

_proxies: list[TcpProxy] = []


def server_url() -> str:
    """The shared server's."""
    try:
        return shared_postgres().url
    except FileNotFoundError as exc:
        pytest.skip(str(exc))


def shared_proxy() -> TcpProxy:
    """In front of the shared server."""
    if not _proxies:
        parts = urlsplit(server_url())
        proxy = TcpProxy(parts.hostname or "", parts.port or 0)
        _proxies.append(proxy.__enter__())
        atexit.register(proxy.__exit__, None, None, None)
    return _proxies[0]


async def sql(dsn: str, statement: str, *values: Any) -> list[Any]:
    """The first column of what a statement answers, on a connection of its own."""
    connection = await asyncpg.connect(dsn)
    try:
        return [row[0] for row in await connection.fetch(statement, *values)]
    finally:
        await connection.close()


@asynccontextmanager
async def schema() -> AsyncGenerator[str]:
    """A schema of one's own on the shared server; its URL."""
    name = f"t{uuid.uuid4().hex}"
    await sql(server_url(), f"CREATE SCHEMA {name}")
    yield f"{server_url()}?search_path={name}"
    drop = f"SET client_min_messages = error; DROP SCHEMA {name} CASCADE"
    connection = await asyncpg.connect(server_url())
    await connection.execute(drop)
    await connection.close()


@contextmanager
def postgres_schema() -> Generator[str]:
    """``schema`` for those without an event loop."""
    name = f"t{uuid.uuid4().hex}"
    psql = [program("psql") or "psql", server_url(), "-q", "-c"]
    subprocess.run([*psql, f"CREATE SCHEMA {name}"], check=True)
    yield f"{server_url()}?search_path={name}"
    drop = f"SET client_min_messages = error; DROP SCHEMA {name} CASCADE"
    subprocess.run([*psql, drop], check=True)


@asynccontextmanager
async def bench_of(library: Library) -> AsyncGenerator[StoreBench]:
    """A store behind a proxy; what is looked at and written by hand goes past that."""
    opened: list[Store] = []
    proxy = shared_proxy()
    async with schema() as dsn:
        behind = dsn.replace(f":{urlsplit(dsn).port}/", f":{proxy.port}/")

        def another(_skew: float = 0.0) -> Any:
            # It has no clock of its own that could be wrong.
            store = library.open(behind)
            opened.append(store)
            return store

        async def damage(key: bytes) -> None:
            await sql(
                dsn, "UPDATE brokerwq_key SET state = 77 WHERE key = $1", uuid.UUID(bytes=key)
            )

        async def outdate() -> None:
            await sql(dsn, "UPDATE brokerwq_meta SET value = '99'")

        @asynccontextmanager
        async def bare() -> AsyncGenerator[Store]:
            async with schema() as empty:
                store = library.open(empty)
                yield store
                await store.aclose()

        @asynccontextmanager
        async def outage() -> AsyncGenerator[None]:
            proxy.hang_up()
            yield
            proxy.answer()

        store = another()
        await store.init()
        for table in TABLES:
            await sql(dsn, table)
        try:
            yield StoreBench(
                store=store,
                again=another,
                skewed=another,
                bears_skew=600.0,
                damage=damage,
                bare=bare,
                outdate=outdate,
                outage=outage,
                work=_work(library, dsn, proxy),
            )
        finally:
            for each in opened:
                await each.aclose()


def _work(library: Library, dsn: str, proxy: TcpProxy) -> Work:
    async def effects() -> list[int]:
        return await sql(dsn, "SELECT n FROM effects ORDER BY n")

    @asynccontextmanager
    async def lose_commit() -> AsyncGenerator[None]:
        proxy.lose_answers()
        try:
            yield
        finally:
            proxy.deliver_answers()

    return Work(
        write=library.write,
        run=library.run,
        effects=effects,
        own=lambda: library.own(dsn),
        aborts=True,
        implicit=library.implicit,
        habits=library.habits,
        lose_commit=lose_commit,
        defer=lambda tx: library.run(tx, "INSERT INTO deferred VALUES (-1)"),
        conflict=lambda tx: library.run(tx, CONFLICT),
    )


def asyncpg_bench() -> AbstractAsyncContextManager[StoreBench]:
    return bench_of(LIBRARIES["asyncpg"])

"""PostgreSQL for tests: one server, a schema of its own for each, and every client library."""

from __future__ import annotations

import asyncio
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
        name: Its key in ``LIBRARIES``, without blanks.
        open: A store on a URL.
        write: One row, as a handler writes it.
        run: One statement, as a handler runs it.
        own: A connection of the user's own on a URL.
        implicit: A statement of its own connection begins a transaction by itself.
        habits: See ``Work``.
    """

    name: str
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


# -- psycopg -------------------------------------------------------------------------------


def for_libpq(dsn: str) -> str:
    """libpq has another way to say which schema is meant."""
    return dsn.replace("?search_path=", "?options=-csearch_path%3D")


def open_psycopg(dsn: str) -> Store:
    from brokerwq.idempotency.stores.psycopg import PsycopgStore

    return PsycopgStore(for_libpq(dsn))


async def write_psycopg(tx: Any, n: int) -> object:
    return await tx.conn.execute("INSERT INTO effects VALUES (%s)", (n,))


class PsycopgOwn(AsyncpgOwn):
    async def begin(self) -> None:
        await self.tx.execute("SELECT 1")  # it begins by itself

    async def write(self, n: int, /) -> None:
        await write_psycopg(Conn(self.tx), n)


@dataclass
class Conn:
    conn: Any


@asynccontextmanager
async def own_psycopg(dsn: str) -> AsyncGenerator[PsycopgOwn]:
    psycopg: Any = import_module("psycopg")
    connection = await psycopg.AsyncConnection.connect(for_libpq(dsn))
    yield PsycopgOwn(connection)
    await connection.close()


async def commit(tx: Any) -> object:
    return await tx.conn.commit()


async def rollback(tx: Any) -> object:
    return await tx.conn.rollback()


# -- SQLAlchemy ----------------------------------------------------------------------------


def engine_of(dsn: str, driver: str) -> Any:
    from sqlalchemy.ext.asyncio import create_async_engine

    server, _, name = dsn.partition("?search_path=")
    url = server.replace("postgresql://", f"postgresql+{driver}://")
    arguments: dict[str, Any] = {"options": f"-csearch_path={name}"}
    if driver == "asyncpg":
        arguments = {"server_settings": {"search_path": name}}
    return create_async_engine(url, connect_args=arguments)


def open_sqlalchemy(driver: str) -> Callable[[str], Store]:
    def opened(dsn: str) -> Store:
        from brokerwq.idempotency.stores.sqlalchemy import SqlalchemyStore

        engine = engine_of(dsn, driver)
        home = asyncio._get_running_loop()

        class Disposing(SqlalchemyStore):
            """It leaves the user's engine to the user, who is nobody else here."""

            async def aclose(self) -> None:
                await super().aclose()
                if asyncio.get_running_loop() is home:
                    await engine.dispose()

        return Disposing(engine)

    return opened


def text(sql: str) -> Any:
    from sqlalchemy import text as sa_text

    return sa_text(sql)


async def write_sqlalchemy(tx: Any, n: int) -> object:
    return await tx.session.execute(text("INSERT INTO effects VALUES (:n)"), {"n": n})


async def run_sqlalchemy(tx: Any, sql: str) -> object:
    return await tx.conn.exec_driver_sql(sql)


class SessionOwn:
    def __init__(self, session: Any) -> None:
        self.tx = session

    async def begin(self) -> None:
        await self.tx.begin()

    async def end(self, word: str, /) -> None:
        await getattr(self.tx, word.lower())()

    async def write(self, n: int, /) -> None:
        await self.tx.execute(text("INSERT INTO effects VALUES (:n)"), {"n": n})

    async def run(self, sql: str, /) -> None:
        await self.tx.execute(text(sql))


def own_session(driver: str) -> Callable[[str], AbstractAsyncContextManager[SessionOwn]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncGenerator[SessionOwn]:
        from sqlalchemy.ext.asyncio import AsyncSession

        engine = engine_of(dsn, driver)
        async with AsyncSession(engine) as session:
            yield SessionOwn(session)
        await engine.dispose()

    return opened


def own_core(driver: str) -> Callable[[str], AbstractAsyncContextManager[SessionOwn]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncGenerator[SessionOwn]:
        engine = engine_of(dsn, driver)
        async with engine.connect() as connection:
            yield SessionOwn(connection)
        await engine.dispose()

    return opened


async def session_commit(tx: Any) -> object:
    return await tx.session.commit()


async def session_rollback(tx: Any) -> object:
    return await tx.session.rollback()


async def session_block(tx: Any) -> object:
    async with tx.session.begin_nested():
        return None


SQLALCHEMY_HABITS: dict[str, Habit] = {
    "conn.commit": commit,
    "conn.rollback": rollback,
    "session.commit": session_commit,
    "session.rollback": session_rollback,
    "session.begin_nested": session_block,
}

LIBRARIES: dict[str, Library] = {
    "asyncpg": Library("asyncpg", open_asyncpg, write_asyncpg, run_asyncpg, own_asyncpg),
    "psycopg": Library(
        "psycopg",
        open_psycopg,
        write_psycopg,
        run_asyncpg,
        own_psycopg,
        implicit=True,
        habits={"commit": commit, "rollback": rollback},
    ),
    "sqlalchemy, asyncpg": Library(
        "sqlalchemy+asyncpg",
        open_sqlalchemy("asyncpg"),
        write_sqlalchemy,
        run_sqlalchemy,
        own_session("asyncpg"),
        implicit=True,
        habits=SQLALCHEMY_HABITS,
    ),
    "sqlalchemy, psycopg": Library(
        "sqlalchemy+psycopg",
        open_sqlalchemy("psycopg"),
        write_sqlalchemy,
        run_sqlalchemy,
        own_core("psycopg"),
        implicit=True,
        habits=SQLALCHEMY_HABITS,
    ),
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
                where=f"{library.name} {dsn}",
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

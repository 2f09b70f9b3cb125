"""Jobs whose work is done in PostgreSQL, through asyncpg: what is this database's own."""
# ruff: noqa: ARG001 -- a worker takes what its shape says, whether it needs it or not

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerwq import App, Job, Tx
from brokerwq.errors import ConfigError, StoreError, StoreUnavailableError
from brokerwq.events import StoreReached
from brokerwq.idempotency import TransactionAbortedError, processed
from brokerwq.idempotency.record import Busy, Completed
from brokerwq.testing.servers.postgres import postgres
from tests.cases.lab import Place, counts, sqlite
from tests.idempotency.lab import RETRY
from tests.idempotency.postgres import postgres_schema, schema, sql
from tests.idempotency.stores import a_claim

asyncpg = pytest.importorskip("asyncpg")

from brokerwq.idempotency.stores.asyncpg import AsyncpgStore  # noqa: E402 -- after the skip


class Shop:
    """An app on SQLite whose work is in PostgreSQL."""

    def __init__(self, place: Place, dsn: str) -> None:
        self.place = place
        self.dsn = dsn
        self.store = AsyncpgStore(dsn)
        self.app: App = place.app(store=self.store, name="shop", retry=RETRY, lease=2.0)
        self.runs: list[Any] = []

    async def sql(self, statement: str, *values: Any) -> list[Any]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return [row[0] for row in await connection.fetch(statement, *values)]
        finally:
            await connection.close()

    async def effects(self) -> list[int]:
        return await self.sql("SELECT n FROM effects ORDER BY n")


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncGenerator[Shop]:
    with postgres_schema() as dsn:
        shop = Shop(sqlite(tmp_path), dsn)
        await shop.store.init()
        await shop.sql("CREATE TABLE effects (n integer NOT NULL UNIQUE)")
        yield shop
        await shop.place.aclose()


@pytest.mark.parametrize("strategy", ["transactional", "lease_tx"])
async def test_effect_children_and_record_become_one(shop: Shop, strategy: Any) -> None:
    @shop.app.worker("q")
    async def mail(n: int) -> None:
        shop.runs.append(n)

    @shop.app.worker("q", once=strategy, key="n")
    async def charge(job: Job, tx: Tx, *, n: int) -> None:
        conn = await tx.begin()
        await conn.execute("INSERT INTO effects VALUES ($1)", n)
        async with tx.savepoint():
            await tx.enqueue(mail, n)
        job.enqueue(mail, n + 100)

    for n in (1, 2, 1, 2):
        await charge.enqueue(n=n)

    report = await shop.place.drain(shop.app, slots=1)

    assert await shop.effects() == [1, 2]
    assert sorted(shop.runs) == [1, 2, 101, 102]
    assert (report.done, report.duplicates, report.dead_count) == (6, 2, 0)


async def test_a_marker_can_be_kept_there_as_well(shop: Shop) -> None:
    @shop.app.worker("q", once="marker", key="n")
    async def charge(*, n: int) -> None:
        shop.runs.append(n)
        await asyncio.sleep(0.1)

    for n in (1, 1, 2):
        await charge.enqueue(n=n)

    report = await shop.place.drain(shop.app)

    assert (report.done, report.duplicates) == (2, 1)
    assert sorted(shop.runs) == [1, 2]


async def test_a_swallowed_error_is_no_success(shop: Shop) -> None:
    @shop.app.worker("q", once="transactional")
    async def charge(job: Job, tx: Tx, n: int) -> None:
        await tx.conn.execute("INSERT INTO effects VALUES ($1)", n)
        try:
            await tx.conn.execute("INSERT INTO effects VALUES ($1)", n)
        except asyncpg.UniqueViolationError:
            shop.runs.append(job.attempt)

    await charge.enqueue(1)

    report = await shop.place.drain(shop.app)

    assert report.dead == {"failed": 1}
    assert (report.done, report.failed) == (0, RETRY.max_attempts - 1)
    assert await shop.effects() == []
    assert await shop.sql("SELECT count(*) FROM brokerwq_key") == [0]


async def test_an_error_in_a_savepoint_may_be_handled(shop: Shop) -> None:
    @shop.app.worker("q", once="transactional")
    async def charge(job: Job, tx: Tx, n: int) -> None:
        await tx.conn.execute("INSERT INTO effects VALUES ($1)", n)
        try:
            async with tx.savepoint():
                await tx.conn.execute("INSERT INTO effects VALUES ($1)", n)
        except asyncpg.UniqueViolationError:
            shop.runs.append(job.attempt)

    await charge.enqueue(1)

    assert (await shop.place.drain(shop.app)).done == 1
    assert await shop.effects() == [1]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_a_handler_that_ends_its_transaction_is_found_out(shop: Shop, statement: str) -> None:
    @shop.app.worker("q", once="transactional")
    async def charge(job: Job, tx: Tx, n: int) -> None:
        await tx.conn.execute("INSERT INTO effects VALUES ($1)", n)
        await tx.conn.execute(statement)

    await charge.enqueue(1)

    report = await shop.place.drain(shop.app)

    reason = "transaction-escaped" if statement == "COMMIT" else "failed"
    assert report.dead == {reason: 1}
    assert await shop.effects() == ([1] if statement == "COMMIT" else [])


async def test_many_jobs_at_once_take_turns_with_the_connections(shop: Shop) -> None:
    @shop.app.worker("q", once="transactional")
    async def charge(job: Job, tx: Tx, n: int) -> None:
        await tx.conn.execute("INSERT INTO effects VALUES ($1)", n)
        await asyncio.sleep(0.005)

    await charge.enqueue_many(range(100))

    report = await shop.place.drain(shop.app, slots=30)

    assert (report.done, report.failed) == (100, 0)
    assert len(await shop.effects()) == 100


async def test_a_frozen_owner_holds_its_key_no_longer_than_the_idle_timeout(shop: Shop) -> None:
    impatient = AsyncpgStore(shop.dsn, idle_timeout=0.3)
    frozen: Any = await impatient.begin_marked(a_claim())

    second: Any = Busy(remaining=0.0)
    for _ in range(20):  # each waits for half a second
        if not isinstance(second, Busy):
            break
        second = await shop.store.begin_marked(a_claim())
    await second.commit()

    with pytest.raises(TransactionAbortedError, match="idle_timeout"):
        await frozen.examine()
    await frozen.rollback()
    await impatient.aclose()
    assert await shop.store.begin_marked(a_claim()) == Completed(result=None)


@pytest.mark.parametrize("library", ["asyncpg", "psycopg", "sqlalchemy"])
async def test_a_handler_that_outlasts_the_idle_timeout_fails_and_does_not_come_back_for_ever(
    tmp_path: Path, library: str
) -> None:
    place = sqlite(tmp_path)
    async with schema() as dsn:
        store = impatient(dsn, library)
        await store.init()
        app: App = place.app(store=store, name="shop", retry=RETRY)

        @app.worker("q", once="transactional")
        async def charge(job: Job, tx: Tx, n: int) -> None:
            await asyncio.sleep(0.6)

        await charge.enqueue(1)
        report = await place.drain(app)
        await place.aclose()

    assert (report.dead, report.put_back) == ({"failed": 1}, 0)


def impatient(dsn: str, library: str) -> Any:
    """A store whose transactions may be silent for a quarter of a second."""
    from brokerwq.idempotency.stores.psycopg import PsycopgStore
    from brokerwq.idempotency.stores.sqlalchemy import SqlalchemyStore
    from tests.idempotency.postgres import for_libpq

    if library == "asyncpg":
        return AsyncpgStore(dsn, idle_timeout=0.25)
    if library == "psycopg":
        return PsycopgStore(for_libpq(dsn), idle_timeout=0.25)
    url = for_libpq(dsn).replace("postgresql://", "postgresql+psycopg://")
    return SqlalchemyStore(url, idle_timeout=0.25)


async def test_a_server_that_dies_stops_the_work_and_its_return_resumes_it(
    tmp_path: Path,
) -> None:
    place = sqlite(tmp_path)
    with postgres() as first:
        shop = Shop(place, first.url)
        await shop.store.init()

        @shop.app.worker("q", once="marker", key="n")
        async def charge(*, n: int) -> None:
            shop.runs.append(n)

        async with place.running(shop.app) as running:
            await place.until(lambda: running.runner.state == "ready")
            await charge.enqueue(n=0)
            await place.until(lambda: shop.runs == [0])
            first.stop()
            for n in range(1, 6):
                await charge.enqueue(n=n)
            await place.until(lambda: running.runner.state == "degraded")
            await asyncio.sleep(0.5)
            assert shop.runs == [0]

            first.start()
            await place.until(lambda: len(shop.runs) == 6)
            await place.until(lambda: running.runner.state == "ready")
            report = await running.stop()
    assert report.dead_count == 0
    assert place.events.of(StoreReached)
    await place.aclose()


async def theirs(dsn: str, library: str) -> tuple[Any, Any, Any]:
    """A store on a pool or an engine of the user's, who tells its size and then closes it."""
    from tests.idempotency.postgres import engine_of, for_libpq

    if library == "asyncpg":
        pool = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
        return AsyncpgStore(dsn, pool=pool), pool.get_size, pool.close
    if library == "psycopg":
        from brokerwq.idempotency.stores.psycopg import PsycopgStore

        made: Any = pytest.importorskip("psycopg_pool").AsyncConnectionPool(
            for_libpq(dsn), min_size=1, max_size=2, open=False
        )
        await made.open()
        return (
            PsycopgStore(for_libpq(dsn), pool=made),
            lambda: made.get_stats()["pool_size"],
            made.close,
        )
    from brokerwq.idempotency.stores.sqlalchemy import SqlalchemyStore

    engine = engine_of(dsn, "asyncpg")
    return SqlalchemyStore(engine), engine.pool.checkedin, engine.dispose


@pytest.mark.parametrize("library", ["asyncpg", "psycopg", "sqlalchemy"])
async def test_a_pool_of_the_users_own_is_taken_as_it_is(tmp_path: Path, library: str) -> None:
    """Our settings hold in our transactions alone, and it is never closed here."""
    place = sqlite(tmp_path)
    settings: list[str] = []
    async with schema() as dsn:
        store, size, close = await theirs(dsn, library)
        await store.init()
        app: App = place.app(store=store, name="shop", retry=RETRY, lease=2.0)

        @app.worker("q", once="lease_tx", key="n")
        async def charge(job: Job, tx: Tx, *, n: int) -> None:
            await asyncio.sleep(0.9 if n == 0 else 0)  # long enough for a heartbeat elsewhere
            conn = await tx.begin()
            idle = await show(conn, "idle_in_transaction_session_timeout")
            settings.append(f"{idle}, {await show(conn, 'lock_timeout')}")

        for n in range(6):
            await charge.enqueue(n=n)
        report = await place.drain(app)
        await store.aclose()

        assert (report.done, report.failed) == (6, 0)
        assert settings == ["10s, 0"] * 6
        assert size() >= 1
        async with own_of(store, dsn) as plain:
            assert await show(plain, "idle_in_transaction_session_timeout") == "0"
        await place.aclose()
        await close()


async def show(conn: Any, name: str) -> str:
    if hasattr(conn, "fetchval"):
        return str(await conn.fetchval(f"SHOW {name}"))
    if hasattr(conn, "exec_driver_sql"):
        return str((await conn.exec_driver_sql(f"SHOW {name}")).scalar())
    return str((await (await conn.execute(f"SHOW {name}")).fetchone())[0])


@asynccontextmanager
async def own_of(store: Any, _dsn: str) -> AsyncGenerator[Any]:
    """A connection of the pool that the store was given."""
    given = store._given
    acquire = getattr(given, "acquire", None) or getattr(given, "connection", None)
    async with acquire() if acquire is not None else given.connect() as connection:
        yield connection


async def test_sessions_are_made_by_the_users_own_sessionmaker(tmp_path: Path) -> None:
    from sqlalchemy import Integer
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
    from sqlalchemy.orm import DeclarativeBase, mapped_column

    from brokerwq.idempotency.stores.sqlalchemy import SqlalchemyStore
    from tests.idempotency.postgres import engine_of

    class Base(DeclarativeBase): ...

    class Effect(Base):
        __tablename__ = "effects"
        n = mapped_column(Integer, primary_key=True)

    class Mine(AsyncSession): ...

    place = sqlite(tmp_path)
    kinds: list[type[Any]] = []
    async with schema() as dsn:
        engine = engine_of(dsn, "asyncpg")
        sessions = async_sessionmaker(class_=Mine, expire_on_commit=False)
        store = SqlalchemyStore(engine, sessions=sessions)
        await store.init()
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        app: App = place.app(store=store, name="shop", retry=RETRY)

        @app.worker("q", once="transactional", key="n")
        async def charge(job: Job, tx: Tx, *, n: int) -> None:
            kind: type[Any] = tx.session.__class__
            kinds.append(kind)
            tx.session.add(Effect(n=n))  # flushed before the guard
            if n == 1:
                await tx.session.commit()  # a habit: it commits nothing early
            if n == 2:
                tx.session.add(Effect(n=1))  # refused when it is flushed

        for n in (1, 2, 3, 3):
            await charge.enqueue(n=n)
        report = await place.drain(app, slots=1)

        assert (report.done, report.duplicates, report.dead) == (2, 1, {"failed": 1})
        assert set(kinds) == {Mine}
        assert await sql(dsn, "SELECT n FROM effects ORDER BY n") == [1, 3]
        await place.aclose()
        await engine.dispose()


async def test_a_database_without_tables_says_what_to_do() -> None:
    with postgres_schema() as dsn:
        store = AsyncpgStore(dsn)
        with pytest.raises(StoreError, match="keys init"):
            await store.check()
        await store.init()
        await store.check()
        await store.fetch("UPDATE brokerwq_meta SET value = '99'")
        with pytest.raises(StoreError, match="version 99"):
            await store.check()
        await store.aclose()


async def test_no_server_is_an_outage() -> None:
    store = AsyncpgStore("postgresql://postgres:secret@127.0.0.1:9/postgres")

    with pytest.raises(StoreUnavailableError) as caught:
        await store.check()

    assert "secret" not in str(caught.value) + repr(store)


def test_what_is_no_url_of_postgres_is_refused() -> None:
    with pytest.raises(ConfigError, match="postgresql://"):
        AsyncpgStore("mysql://x")


async def test_a_plain_function_is_refused(shop: Shop) -> None:
    def charge(job: Job, tx: Tx, n: int) -> None: ...

    with pytest.raises(ConfigError, match="async def"):
        shop.app.worker("q", once="transactional")(charge)


async def test_a_block_of_ones_own(shop: Shop) -> None:
    connection = await asyncpg.connect(shop.dsn)
    try:
        async with processed(connection, ["order", 7], payload={"n": 1}) as done:
            await connection.execute("INSERT INTO effects VALUES (7)")
            await done.keep("ok")
        async with processed(connection, ["order", 7], payload={"n": 1}) as done:
            assert (done.duplicate, done.result) == (True, '"ok"')
        with pytest.raises(TransactionAbortedError):
            await _swallow(connection)
        async with connection.transaction(), processed(connection, "in mine") as mine:
            assert not mine.duplicate
    finally:
        await connection.close()
    assert await shop.effects() == [7]
    assert await shop.sql("SELECT count(*) FROM brokerwq_key") == [2]


async def _swallow(connection: Any) -> None:
    async with processed(connection, "b"):
        try:
            await connection.execute("INSERT INTO effects VALUES (7)")
        except asyncpg.UniqueViolationError:
            return


async def test_a_message_can_be_sent_with_a_transaction_of_ones_own(shop: Shop) -> None:
    @shop.app.worker("q")
    async def mail(n: int) -> None:
        shop.runs.append(n)

    connection = await asyncpg.connect(shop.dsn)
    try:
        async with connection.transaction():
            await mail.enqueue(1, tx=connection)
        with pytest.raises(KeyError):
            await _enqueue_and_fail(connection, mail)
        with pytest.raises(ConfigError, match="no transaction"):
            await mail.enqueue(3, tx=connection)
    finally:
        await connection.close()

    assert (await shop.place.drain(shop.app)).done == 1
    assert shop.runs == [1]
    assert await counts(shop.app, "q") == (0, 0, 0, 0)


async def _enqueue_and_fail(connection: Any, mail: Any) -> None:
    async with connection.transaction():
        await mail.enqueue(2, tx=connection)
        raise KeyError

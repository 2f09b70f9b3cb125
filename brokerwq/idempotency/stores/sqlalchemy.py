"""Records in PostgreSQL through SQLAlchemy 2: ``tx.session`` and ``tx.conn`` are its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import lru_cache
from typing import Any, ClassVar, Final

from brokerwq.durations import Seconds
from brokerwq.errors import AdapterMissingError, ConfigError
from brokerwq.idempotency.stores import _postgres as pg
from brokerwq.idempotency.stores._postgres_link import Link, Pool, Rows
from brokerwq.idempotency.stores._postgres_store import (
    CONNECT_SECONDS,
    POOL_SECONDS,
    PostgresStore,
)

try:
    from sqlalchemy.engine import Engine, make_url
    from sqlalchemy.exc import (
        ArgumentError,
        InterfaceError,
        InvalidRequestError,
        OperationalError,
        ResourceClosedError,
    )
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_sessionmaker,
        create_async_engine,
    )
except ModuleNotFoundError as exc:
    _MISSING = "SqlalchemyStore needs SQLAlchemy 2: pip install 'brokerwq[sqlalchemy]'"
    raise AdapterMissingError(_MISSING) from exc

_DRIVERS: Final = {"asyncpg": "postgres", "psycopg": "psycopg"}
_PLACEHOLDER: Final = re.compile(r"\$(\d+)")


class SqlalchemyStore(PostgresStore):
    """Records in the database of ``engine``; make its tables with ``brokerwq keys init``.

    Args:
        engine: Your ``AsyncEngine`` on PostgreSQL, through asyncpg or psycopg; or its URL. Yours
            serves the event loop that uses the store first, that of the jobs; other loops, such
            as the one that sends heartbeats, get a pool like its own. It is never disposed of
            here, and its sessions keep their settings; ours hold within our transactions.
        sessions: What makes ``tx.session``: your ``async_sessionmaker``, with your own class of
            sessions and its options. It is bound to the transaction's connection, and joins it
            as ``rollback_only``.
        connections: Most connections of one event loop, for a URL; your engine has its own pool.
        idle_timeout: Seconds for which the server lets a transaction wait for its client; then
            it is rolled back. The longest pause of a transactional handler, and how long a
            frozen or cut-off runner keeps others from its key.
        command_timeout: Seconds for one statement of the store.

    Raises:
        ConfigError: it is of another database or client library.
    """

    lost: ClassVar[tuple[type[BaseException], ...]] = (
        InterfaceError,
        OperationalError,
        PoolTimeoutError,
    )

    def __init__(
        self,
        engine: AsyncEngine | str,
        *,
        sessions: async_sessionmaker[Any] | None = None,
        connections: int = 10,
        idle_timeout: Seconds = 10.0,
        command_timeout: Seconds = 10.0,
    ) -> None:
        self._given: AsyncEngine | None = None
        self._connections = connections
        self._sessions: async_sessionmaker[Any] = sessions or async_sessionmaker(
            class_=AsyncSession
        )
        if isinstance(engine, AsyncEngine):
            self._given = engine
            self._target = engine.url
        else:
            try:
                self._target = make_url(engine.removeprefix("sqlalchemy+"))
            except ArgumentError as exc:
                msg = f"the URL of SqlalchemyStore is wrong: {exc}"
                raise ConfigError(msg) from exc
        check_dialect(self._target.get_backend_name(), self._target.get_driver_name())
        url = self._target.render_as_string(hide_password=True)
        super().__init__(url, idle_timeout, command_timeout)

    async def _open_pool(self, *, is_first: bool) -> Pool:
        given = self._given
        if given is None:
            return _Pool(self._own_engine(), self._sessions, is_ours=True, is_borrowed=False)
        if is_first:
            return _Pool(given, self._sessions, is_ours=False, is_borrowed=True)
        sync = given.sync_engine
        like = AsyncEngine(Engine(sync.pool.recreate(), sync.dialect, sync.url))
        return _Pool(like, self._sessions, is_ours=True, is_borrowed=True)

    def _own_engine(self) -> AsyncEngine:
        settings = pg.session_settings(self._idle)
        arguments: dict[str, Any]
        if self._target.get_driver_name() == "asyncpg":
            arguments = {"server_settings": settings, "timeout": CONNECT_SECONDS}
        else:
            theirs = str(self._target.query.get("options", ""))
            options = pg.as_options(settings, theirs)
            arguments = {"options": options, "connect_timeout": CONNECT_SECONDS}
        return create_async_engine(
            self._target.difference_update_query(["options"]),
            pool_size=self._connections,
            max_overflow=0,
            pool_timeout=POOL_SECONDS,
            connect_args=arguments,
        )


def check_dialect(backend: str, driver: str) -> None:
    """Refuse what the statements were not written for.

    Raises:
        ConfigError: it is another database or client library.
    """
    if backend == "postgresql" and driver in _DRIVERS:
        return
    more = (
        "; for SQLite take SqliteStore, whose tx.conn is sqlite3's" if backend == "sqlite" else ""
    )
    msg = (
        "through SQLAlchemy a store is kept in PostgreSQL alone, as postgresql+asyncpg:// or "
        f"postgresql+psycopg://, not {backend}+{driver}://{more}"
    )
    raise ConfigError(msg)


class JoinedConnection(AsyncConnection):
    """A connection whose transaction somebody else ends.

    ``commit()`` and ``rollback()`` are habits that would end it, and take the record out of the
    transaction of the work.
    """

    async def commit(self) -> None:
        """Refuse."""
        msg = "this transaction is committed when the handler has returned; leave out commit()"
        raise InvalidRequestError(msg)

    async def rollback(self) -> None:
        """Refuse."""
        msg = "raise an exception, or call tx.abort(), to roll back; leave out rollback()"
        raise InvalidRequestError(msg)


class _Pool:
    """See ``_postgres_link.Pool``."""

    def __init__(
        self,
        engine: AsyncEngine,
        sessions: async_sessionmaker[Any],
        *,
        is_ours: bool,
        is_borrowed: bool,
    ) -> None:
        self._engine = engine
        self._single = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._sessions = sessions
        self._is_ours = is_ours
        self.is_borrowed = is_borrowed

    async def take(self) -> Link:
        connection = JoinedConnection(self._engine)
        _ = await connection.start()
        return SqlalchemyLink(connection, self._sessions, is_borrowed=self.is_borrowed)

    async def fetch(self, statement: str, values: Sequence[Any], /) -> Rows:
        connection = await _started(self._single.connect())
        try:
            return await _rows(connection, statement, values)
        finally:
            await connection.close()

    async def aclose(self) -> None:
        if self._is_ours:
            await self._engine.dispose()


async def _started(connection: AsyncConnection) -> AsyncConnection:
    """``connection``, opened; one whose caller is cancelled meanwhile is closed.

    SQLAlchemy would lose it: psycopg waits once more when it has it from the pool.
    """
    starting = asyncio.ensure_future(connection.start())
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(Exception):
            await (await starting).close()
        raise


@lru_cache(maxsize=64)
def _as_pyformat(statement: str) -> str:
    return _PLACEHOLDER.sub(r"%(p\1)s", statement.replace("%", "%%"))


async def _rows(connection: AsyncConnection, statement: str, values: Sequence[Any]) -> Rows:
    # The driver's own statement: compiling it anew each time would cost more than running it.
    if connection.dialect.driver == "asyncpg":
        result = await connection.exec_driver_sql(statement, tuple(values) or None)
    else:
        named = {f"p{n}": value for n, value in enumerate(values, 1)}
        result = await connection.exec_driver_sql(_as_pyformat(statement), named)
    return result.fetchall() if result.returns_rows else ()


class SqlalchemyLink:
    """See ``_postgres_link.Link``; without ``sessions`` it is somebody else's connection."""

    def __init__(
        self,
        connection: AsyncConnection,
        sessions: async_sessionmaker[Any] | None = None,
        *,
        is_borrowed: bool = False,
    ) -> None:
        self.native = connection
        self.is_borrowed = is_borrowed
        self._sessions = sessions
        self._session: AsyncSession | None = None
        self._transaction: Any = None

    @property
    def session(self) -> AsyncSession:
        """See ``Link.session``."""
        if self._session is None:
            sessions = self._sessions or async_sessionmaker(class_=AsyncSession)
            # In the mode that SQLAlchemy takes by itself the session would roll back to a
            # savepoint, and the record would be committed without the work.
            joined: AsyncSession = sessions(bind=self.native, join_transaction_mode="rollback_only")
            self._session = joined
        return self._session

    @property
    def in_transaction(self) -> bool:
        """See ``Link.in_transaction``."""
        return self.native.in_transaction()

    @property
    def begins_by_itself(self) -> bool:
        """See ``Link.begins_by_itself``."""
        sync = self.native.sync_connection
        level: object = sync and sync.get_execution_options().get("isolation_level")
        return level != "AUTOCOMMIT"

    async def begin(self, settings: str, /) -> None:
        """See ``Link.begin``."""
        self._transaction = await self.native.begin()
        if settings:
            await self.fetch(settings, ())

    async def fetch(self, statement: str, values: Sequence[Any], /) -> Rows:
        """See ``Link.fetch``."""
        return await _rows(self.native, statement, values)

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """See ``Link.savepoint``."""
        return self.session.begin_nested()

    async def flush(self) -> None:
        """See ``Link.flush``."""
        if self._session is not None:
            await self._session.flush()

    def is_ended(self, error: Exception, /) -> bool:
        """See ``Link.is_ended``."""
        return isinstance(error, (InvalidRequestError, ResourceClosedError))

    async def commit(self) -> None:
        """See ``Link.commit``."""
        transaction, self._transaction = self._transaction, None
        await transaction.commit()
        await self._close_session()

    async def rollback(self) -> None:
        """See ``Link.rollback``."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await transaction.rollback()
        elif self.native.in_transaction():
            await AsyncConnection.rollback(self.native)
        await self._close_session()

    async def _close_session(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def give_back(self, *, is_sound: bool) -> None:
        """See ``Link.give_back``."""
        if not is_sound and not self.native.closed:
            await self.native.invalidate()
        await self.native.close()


class SessionLink:
    """A session of the user's own. See ``_postgres_link.Link``."""

    is_borrowed = True

    def __init__(self, session: AsyncSession) -> None:
        self.native = session
        self.session = session

    @property
    def begins_by_itself(self) -> bool:
        """See ``Link.begins_by_itself``."""
        return True

    @property
    def in_transaction(self) -> bool:
        """See ``Link.in_transaction``."""
        return self.native.in_transaction()

    async def begin(self, _settings: str, /) -> None:
        """See ``Link.begin``."""
        _ = await self.native.begin()

    async def fetch(self, statement: str, values: Sequence[Any], /) -> Rows:
        """See ``Link.fetch``."""
        return await _rows(await self.native.connection(), statement, values)

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """See ``Link.savepoint``."""
        return self.native.begin_nested()

    async def flush(self) -> None:
        """See ``Link.flush``."""
        await self.native.flush()

    def is_ended(self, error: Exception, /) -> bool:
        """See ``Link.is_ended``."""
        return isinstance(error, (InvalidRequestError, ResourceClosedError))

    async def commit(self) -> None:
        """See ``Link.commit``."""
        await self.native.commit()

    async def rollback(self) -> None:
        """See ``Link.rollback``."""
        await self.native.rollback()

    async def give_back(self, *, is_sound: bool) -> None:
        """See ``Link.give_back``: it is its owner's."""


def link_of(tx: AsyncConnection | AsyncSession) -> Link:
    """Somebody else's connection or session.

    Raises:
        ConfigError: it is of another database or client library.
    """
    dialect = tx.get_bind().dialect if isinstance(tx, AsyncSession) else tx.dialect
    check_dialect(dialect.name, dialect.driver)
    return SessionLink(tx) if isinstance(tx, AsyncSession) else SqlalchemyLink(tx)

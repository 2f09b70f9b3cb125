"""Records in PostgreSQL through psycopg 3: ``tx.conn`` is a ``psycopg.AsyncConnection``."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from importlib import import_module
from typing import Any, ClassVar, Final, NoReturn

from brokerwq.durations import Seconds
from brokerwq.errors import AdapterMissingError, ConfigError
from brokerwq.idempotency.stores import _postgres as pg
from brokerwq.idempotency.stores._postgres_link import Link, Pool, Rows
from brokerwq.idempotency.stores._postgres_store import POOL_SECONDS, PostgresStore

try:
    # Taken without its types, as the other libraries are: the store must not need it to be there.
    psycopg: Any = import_module("psycopg")
except ModuleNotFoundError as exc:
    _MISSING = "PsycopgStore needs psycopg: pip install 'brokerwq[psycopg]'"
    raise AdapterMissingError(_MISSING) from exc

_SCHEMES: Final = ("postgresql://", "postgres://", "postgresql+psycopg://")
_CONNECT_SECONDS: Final = 5
_tuple_row: Any = import_module("psycopg.rows").tuple_row
_Status: Any = import_module("psycopg.pq").TransactionStatus


class PsycopgStore(PostgresStore):
    """Records in the database at ``dsn``; make its tables with ``brokerwq keys init``.

    Args:
        dsn: ``postgresql://user:password@host:port/database``, as libpq has it.
        pool: An open ``psycopg_pool.AsyncConnectionPool`` on the same database, for the event
            loop that uses the store first: that of the jobs. It is never closed here, and its
            sessions keep their settings; ours hold within our transactions. Other loops, such as
            the one that sends heartbeats, connect by ``dsn``.
        connections: Most connections of one event loop. One job in a transaction takes one.
        idle_timeout: Seconds for which the server lets a transaction wait for its client; then
            it is rolled back. The longest pause of a transactional handler, and how long a
            frozen or cut-off runner keeps others from its key.
        command_timeout: Seconds for one statement of the store.

    Raises:
        ConfigError: ``dsn`` is no URL of PostgreSQL.
    """

    # Those of a lost connection carry no SQLSTATE, unlike those of a server that said no.
    lost: ClassVar[tuple[type[BaseException], ...]] = (
        psycopg.OperationalError,
        psycopg.InterfaceError,
    )

    def __init__(
        self,
        dsn: str,
        *,
        pool: Any = None,
        connections: int = 10,
        idle_timeout: Seconds = 10.0,
        command_timeout: Seconds = 10.0,
    ) -> None:
        if not dsn.startswith(_SCHEMES):
            msg = "the dsn of PsycopgStore must begin with postgresql+psycopg:// or postgresql://"
            raise ConfigError(msg)
        super().__init__(dsn, idle_timeout, command_timeout)
        dsn = dsn.replace("postgresql+psycopg://", "postgresql://", 1)
        try:
            self._parameters: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
        except psycopg.ProgrammingError as exc:
            msg = f"the dsn of PsycopgStore is wrong: {exc}"
            raise ConfigError(msg) from exc
        settings = pg.as_options(pg.session_settings(self._idle))
        theirs = self._parameters.get("options", "")
        self._parameters["options"] = f"{settings} {theirs}".strip()
        self._parameters.setdefault("connect_timeout", _CONNECT_SECONDS)
        self._connections = connections
        self._given = pool

    async def _open_pool(self, *, is_first: bool) -> Pool:
        if self._given is not None and is_first:
            return _Borrowed(self._given)
        return _Own(self._parameters, self._connections)


class _Borrowed:
    """A pool of the user's own. See ``_postgres_link.Pool``."""

    is_borrowed = True

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def take(self) -> Link:
        connection = await self._pool.getconn(POOL_SECONDS)
        return PsycopgLink(connection, self._pool.putconn, is_borrowed=True)

    async def fetch(self, statement: str, values: Sequence[Any], /) -> Rows:
        async with self._pool.connection() as connection:
            return await _rows(connection, statement, values)

    async def aclose(self) -> None:
        """Leave it to its owner."""


class _Own:
    """Connections that are opened when they are needed. See ``_postgres_link.Pool``.

    A pool that reconnects by itself would hide for how long the server has been away.
    """

    is_borrowed = False

    def __init__(self, parameters: dict[str, Any], most: int) -> None:
        self._parameters = parameters
        self._places = asyncio.Semaphore(most)
        self._idle: list[Any] = []
        self._is_closed = False

    async def take(self) -> Link:
        return PsycopgLink(await self._acquire(), self._release)

    async def fetch(self, statement: str, values: Sequence[Any], /) -> Rows:
        connection = await self._acquire()
        try:
            return await _rows(connection, statement, values)
        finally:
            await self._release(connection)

    async def _acquire(self) -> Any:
        async with asyncio.timeout(POOL_SECONDS):
            await self._places.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if _is_alive(connection):
                    return connection
                await connection.close()
            return await psycopg.AsyncConnection.connect(**self._parameters, autocommit=True)
        except BaseException:
            self._places.release()
            raise

    async def _release(self, connection: Any) -> None:
        self._places.release()
        is_clean = connection.info.transaction_status == _Status.IDLE
        if is_clean and not self._is_closed:
            self._idle.append(connection)
        else:
            await connection.close()

    async def aclose(self) -> None:
        self._is_closed = True
        while self._idle:
            await self._idle.pop().close()


def _is_alive(connection: Any) -> bool:
    """Whether the server has neither closed an idle connection nor said that it will."""
    try:
        return not connection.closed and not select.select([connection.fileno()], [], [], 0)[0]
    except (psycopg.Error, OSError, ValueError):
        return False


def _cursor(connection: Any) -> Any:
    """One that takes placeholders as the server has them, and makes rows of our own kind."""
    return psycopg.AsyncRawCursor(connection, row_factory=_tuple_row)


async def _rows(connection: Any, statement: str, values: Sequence[Any]) -> Rows:
    async with _cursor(connection) as cursor:
        await cursor.execute(statement, values or None)
        rows: Rows = await cursor.fetchall() if cursor.description else ()
        return rows


class PsycopgLink:
    """See ``_postgres_link.Link``; without ``release`` it is somebody else's connection."""

    def __init__(self, connection: Any, release: Any = None, *, is_borrowed: bool = False) -> None:
        self.native: Any = connection
        self.is_borrowed = is_borrowed
        self._release = release
        self._transaction: Any = None

    @property
    def session(self) -> NoReturn:
        """See ``Link.session``."""
        msg = "tx.session is SQLAlchemy's; use tx.conn"
        raise RuntimeError(msg)

    @property
    def in_transaction(self) -> bool:
        """See ``Link.in_transaction``."""
        return bool(self.native.info.transaction_status != _Status.IDLE)

    @property
    def begins_by_itself(self) -> bool:
        """See ``Link.begins_by_itself``."""
        return not self.native.autocommit

    async def begin(self, settings: str, /) -> None:
        """See ``Link.begin``."""
        # As a block, in which the library itself refuses commit() and rollback().
        self._transaction = self.native.transaction()
        await self._transaction.__aenter__()
        if settings:
            async with _cursor(self.native) as cursor:
                await cursor.execute(settings)

    async def fetch(self, statement: str, values: Sequence[Any], /) -> Rows:
        """See ``Link.fetch``."""
        return await _rows(self.native, statement, values)

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """See ``Link.savepoint``."""
        block: AbstractAsyncContextManager[Any] = self.native.transaction()
        return block

    async def flush(self) -> None:
        """See ``Link.flush``: it keeps nothing to itself."""

    def is_ended(self, error: Exception, /) -> bool:
        """See ``Link.is_ended``: it leaves that to the server."""
        return False

    async def commit(self) -> None:
        """See ``Link.commit``."""
        transaction, self._transaction = self._transaction, None
        await transaction.__aexit__(None, None, None)

    async def rollback(self) -> None:
        """See ``Link.rollback``."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            with suppress(psycopg.Rollback):
                await transaction.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)
        elif self.begins_by_itself and self.in_transaction:
            await self.native.rollback()

    async def give_back(self, *, is_sound: bool) -> None:
        """See ``Link.give_back``."""
        if not is_sound or self.in_transaction:
            await self.native.close()
        if self._release is not None:
            await self._release(self.native)

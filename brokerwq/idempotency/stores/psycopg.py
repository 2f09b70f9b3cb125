"""Records in PostgreSQL through psycopg 3: ``tx.conn`` is a ``psycopg.AsyncConnection``."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, ClassVar

from brokerwq.errors import AdapterMissingError, ConfigError
from brokerwq.idempotency.stores import _postgres as pg
from brokerwq.idempotency.stores._postgres_link import Link, Pool, Rows
from brokerwq.idempotency.stores._postgres_plain import PlainLink, PlainStore
from brokerwq.idempotency.stores._postgres_store import CONNECT_SECONDS, POOL_SECONDS

try:
    # Taken without its types, as the other libraries are: the store must not need it to be there.
    psycopg: Any = import_module("psycopg")
except ModuleNotFoundError as exc:
    _MISSING = "PsycopgStore needs psycopg: pip install 'brokerwq[psycopg]'"
    raise AdapterMissingError(_MISSING) from exc

_tuple_row: Any = import_module("psycopg.rows").tuple_row
_Status: Any = import_module("psycopg.pq").TransactionStatus


class PsycopgStore(PlainStore):
    """Records in PostgreSQL; ``pool`` is a ``psycopg_pool.AsyncConnectionPool``.

    ``dsn`` is as libpq has it. For the rest see ``PlainStore``.
    """

    library = "psycopg"
    # Those of a lost connection carry no SQLSTATE, unlike those of a server that said no.
    lost: ClassVar[tuple[type[BaseException], ...]] = (
        psycopg.OperationalError,
        psycopg.InterfaceError,
    )

    def _arguments_of(self, dsn: str) -> dict[str, Any]:
        try:
            arguments: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
        except psycopg.ProgrammingError as exc:
            msg = f"the dsn of PsycopgStore is wrong: {exc}"
            raise ConfigError(msg) from exc
        theirs = arguments.get("options", "")
        arguments["options"] = pg.as_options(pg.session_settings(self._idle), theirs)
        arguments.setdefault("connect_timeout", CONNECT_SECONDS)
        return arguments

    def _borrow(self, pool: Any) -> Pool:
        return _Borrowed(pool)

    async def _connect(self) -> Pool:
        return _Own(self._arguments, self._connections)


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

    def __init__(self, arguments: dict[str, Any], most: int) -> None:
        self._arguments = arguments
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
            return await psycopg.AsyncConnection.connect(**self._arguments, autocommit=True)
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


class PsycopgLink(PlainLink):
    """See ``PlainLink``."""

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

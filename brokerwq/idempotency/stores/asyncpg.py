"""Records in PostgreSQL through asyncpg: ``tx.conn`` is an ``asyncpg.Connection``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, ClassVar

from brokerwq.errors import AdapterMissingError
from brokerwq.idempotency.stores import _postgres as pg
from brokerwq.idempotency.stores._postgres_link import Link, Pool, Rows
from brokerwq.idempotency.stores._postgres_plain import PlainLink, PlainStore
from brokerwq.idempotency.stores._postgres_store import CONNECT_SECONDS, POOL_SECONDS

try:
    # It has no types; what comes out of it is checked where it is used.
    asyncpg: Any = import_module("asyncpg")
except ModuleNotFoundError as exc:
    _MISSING = "AsyncpgStore needs asyncpg: pip install 'brokerwq[postgres]'"
    raise AdapterMissingError(_MISSING) from exc


class AsyncpgStore(PlainStore):
    """Records in PostgreSQL; ``pool`` is an ``asyncpg.Pool``. For the rest see ``PlainStore``."""

    library = "asyncpg"
    lost: ClassVar[tuple[type[BaseException], ...]] = (
        asyncpg.InterfaceError,
        # What a connection answers that the server has closed while it was idle.
        asyncpg.InternalClientError,
    )

    def _arguments_of(self, dsn: str) -> dict[str, Any]:
        settings = pg.session_settings(self._idle)
        return {"dsn": dsn, "timeout": CONNECT_SECONDS, "server_settings": settings}

    def _borrow(self, pool: Any) -> Pool:
        return _Pool(pool, None)

    async def _connect(self) -> Pool:
        used: set[int] = set()

        async def reset(connection: Any) -> None:
            # A statement of ours leaves nothing behind; a handler may have.
            pid = connection.get_server_pid()
            if pid in used:
                used.discard(pid)
                await connection.execute(connection.get_reset_query())

        opened = await asyncpg.create_pool(
            **self._arguments, min_size=0, max_size=self._connections, reset=reset
        )
        return _Pool(opened, used)


class _Pool:
    """See ``_postgres_link.Pool``.

    Args:
        pool: Of asyncpg.
        used: Sessions that a handler has had, by the server's number; None for the user's pool.
    """

    def __init__(self, pool: Any, used: set[int] | None) -> None:
        self._pool = pool
        self._used = used
        self.is_borrowed = used is None
        self._leaving: set[asyncio.Task[Any]] = set()

    async def take(self) -> Link:
        connection = await self._pool.acquire(timeout=POOL_SECONDS)
        if self._used is not None:
            self._used.add(connection.get_server_pid())
        return AsyncpgLink(connection, self._release, is_borrowed=self._used is None)

    async def fetch(self, statement: str, values: Sequence[Any], /) -> Rows:
        rows: Rows = await self._pool.fetch(statement, *values)
        return rows

    async def _release(self, connection: Any) -> None:
        """Hand ``connection`` back; nobody waits for its reset, which is one more round trip."""
        task = asyncio.ensure_future(self._pool.release(connection))
        self._leaving.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[Any]) -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()  # the connection was lost and has left by itself

    async def aclose(self) -> None:
        await asyncio.gather(*self._leaving, return_exceptions=True)
        if self._used is None:
            return
        try:
            await asyncio.wait_for(self._pool.close(), 5.0)
        except Exception:  # noqa: BLE001 -- whatever is wrong with it, it is given up
            self._pool.terminate()


class AsyncpgLink(PlainLink):
    """See ``PlainLink``."""

    @property
    def in_transaction(self) -> bool:
        """See ``Link.in_transaction``."""
        return bool(self.native.is_in_transaction())

    @property
    def begins_by_itself(self) -> bool:
        """See ``Link.begins_by_itself``."""
        return False

    async def begin(self, settings: str, /) -> None:
        """See ``Link.begin``."""
        self._transaction = self.native.transaction()
        await self._transaction.start()
        if settings:
            await self.native.execute(settings)

    async def fetch(self, statement: str, values: Sequence[Any], /) -> Rows:
        """See ``Link.fetch``."""
        rows: Rows = await self.native.fetch(statement, *values)
        return rows

    async def commit(self) -> None:
        """See ``Link.commit``."""
        transaction, self._transaction = self._transaction, None
        await transaction.commit()

    async def rollback(self) -> None:
        """See ``Link.rollback``."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await transaction.rollback()

    async def give_back(self, *, is_sound: bool) -> None:
        """See ``Link.give_back``."""
        with suppress(Exception):  # lost by itself
            if not is_sound or self.native.is_in_transaction():
                self.native.terminate()
        if self._release is not None:
            await self._release(self.native)

"""What asyncpg and psycopg have in common: a URL, and connections that handlers get as they are."""

from __future__ import annotations

import abc
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, NoReturn

from brokerwq.durations import Seconds
from brokerwq.errors import ConfigError
from brokerwq.idempotency.stores._postgres_link import Pool
from brokerwq.idempotency.stores._postgres_store import PostgresStore


class PlainStore(PostgresStore):
    """Records in the database at ``dsn``; make its tables with ``brokerwq keys init``.

    Args:
        dsn: ``postgresql://user:password@host:port/database``.
        pool: An open pool of the library's on the same database, for the event loop that uses
            the store first: that of the jobs. It is never closed here, and its sessions keep
            their settings; ours hold within our transactions. Other loops, such as the one that
            sends heartbeats, connect by ``dsn``.
        connections: Most connections of one event loop. One job in a transaction takes one.
        idle_timeout: Seconds for which the server lets a transaction wait for its client; then
            it is rolled back. The longest pause of a transactional handler, and how long a
            frozen or cut-off runner keeps others from its key.
        command_timeout: Seconds for one statement of the store.

    Attributes:
        library: What a URL's scheme may name behind ``postgresql+``.

    Raises:
        ConfigError: ``dsn`` is no URL of PostgreSQL.
    """

    library: ClassVar[str]

    def __init__(
        self,
        dsn: str,
        *,
        pool: Any = None,
        connections: int = 10,
        idle_timeout: Seconds = 10.0,
        command_timeout: Seconds = 10.0,
    ) -> None:
        scheme, _, rest = dsn.partition("://")
        own = f"postgresql+{self.library}"
        if not rest or scheme not in ("postgresql", "postgres", own):
            msg = f"the dsn of {type(self).__name__} must begin with postgresql:// or {own}://"
            raise ConfigError(msg)
        super().__init__(dsn, idle_timeout, command_timeout)
        self._arguments = self._arguments_of(f"postgresql://{rest}")
        self._connections = connections
        self._given = pool

    async def _open_pool(self, *, is_first: bool) -> Pool:
        if self._given is not None and is_first:
            return self._borrow(self._given)
        return await self._connect()

    @abc.abstractmethod
    def _arguments_of(self, dsn: str) -> dict[str, Any]:
        """What the library connects by.

        Raises:
            ConfigError: it cannot read ``dsn``.
        """

    @abc.abstractmethod
    def _borrow(self, pool: Any) -> Pool:
        """The user's own pool, as ours."""

    @abc.abstractmethod
    async def _connect(self) -> Pool:
        """A pool of our own."""


class PlainLink:
    """A connection of the library's. See ``_postgres_link.Link``.

    Args:
        connection: What handlers get.
        release: Hands it back to its pool; None for somebody else's connection.
        is_borrowed: See ``Link``.
    """

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

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """See ``Link.savepoint``."""
        block: AbstractAsyncContextManager[Any] = self.native.transaction()
        return block

    async def flush(self) -> None:
        """See ``Link.flush``: it keeps nothing to itself."""

    def is_ended(self, error: Exception, /) -> bool:
        """See ``Link.is_ended``: it leaves that to the server."""
        return False

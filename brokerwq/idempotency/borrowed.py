"""Records and outbox rows in a transaction of somebody else's."""

from __future__ import annotations

import sqlite3
from typing import Any, Protocol

from brokerwq.clock import Clock
from brokerwq.errors import ConfigError
from brokerwq.events import Instrumentation
from brokerwq.idempotency.outbox import traced
from brokerwq.idempotency.record import Answer, Claim
from brokerwq.idempotency.store import Outgoing, Soundness
from brokerwq.message import Message


class Borrowed(Protocol):
    """A connection that somebody else has opened, with or without a transaction on it."""

    @property
    def in_transaction(self) -> bool:
        """Whether one is open."""
        ...

    @property
    def begins_by_itself(self) -> bool:
        """Whether a statement outside of a transaction opens one, for its owner to commit."""
        ...

    async def begin(self) -> None:
        """Open one."""
        ...

    async def mark(self, claim: Claim, /) -> Answer:
        """Mark the key as completed, in the transaction, unless something speaks against it."""
        ...

    async def put_out(self, outgoing: Outgoing, /) -> None:
        """Write into the outbox."""
        ...

    async def keep_result(self, key: bytes, result: str, /) -> None:
        """Write a result into the record."""
        ...

    async def examine(self, claim: Claim, /) -> Soundness:
        """See ``Transaction.examine``; only for a transaction that ``begin`` has opened."""
        ...

    async def commit(self) -> None:
        """Commit what ``begin`` has opened."""
        ...

    async def rollback(self) -> None:
        """Roll back what ``begin`` has opened, if it is still open."""
        ...


def borrow(tx: Any, clock: Clock) -> Borrowed:
    """``tx`` as a ``Borrowed``.

    Raises:
        ConfigError: it is of no kind that is known.
    """
    if isinstance(tx, sqlite3.Connection):
        from brokerwq.idempotency.stores._sqlite_borrowed import BorrowedSqlite

        return BorrowedSqlite(tx, clock)
    opened = _opened_by(tx)
    if opened is None:
        found = f"{type(tx).__module__}.{type(tx).__name__}"
        msg = (
            "tx must be a connection of sqlite3, asyncpg or psycopg (async), or an AsyncConnection "
            f"or AsyncSession of SQLAlchemy, not {found}"
        )
        raise ConfigError(msg)
    return opened


def _opened_by(tx: Any) -> Borrowed | None:
    """``tx``, by the library that one of its classes comes from: none is imported for it."""
    # ruff: noqa: PLC0415 -- each is an extra
    from brokerwq.idempotency.stores._postgres_borrowed import BorrowedPostgres

    kind: type[Any] = tx.__class__
    for base in kind.__mro__:
        library = base.__module__.partition(".")[0]
        if library == "asyncpg":
            from brokerwq.idempotency.stores.asyncpg import AsyncpgLink

            return BorrowedPostgres(AsyncpgLink(tx))
        if library == "psycopg" and base.__name__ == "AsyncConnection":
            from brokerwq.idempotency.stores.psycopg import PsycopgLink

            return BorrowedPostgres(PsycopgLink(tx))
        if library == "sqlalchemy" and base.__name__ in ("AsyncConnection", "AsyncSession"):
            from brokerwq.idempotency.stores.sqlalchemy import link_of

            return BorrowedPostgres(link_of(tx))
    return None


async def put_out(
    tx: Any,
    queue: str,
    message: Message,
    delay: float,
    clock: Clock | None,
    *,
    instrumentation: Instrumentation | None = None,
) -> None:
    """Write ``message`` into the outbox, in the transaction that is open on ``tx``.

    Args:
        tx: A connection.
        queue: Where it goes.
        message: The message.
        delay: Seconds until it may be claimed.
        clock: The app's; None if that has no store, so that nobody would relay it.
        instrumentation: Told of the send, whose trace the message carries.

    Raises:
        ConfigError: no transaction is open, or it is no connection that is known, or there is
            no store.
    """
    if clock is None:
        msg = "tx needs App(store=…): its outbox is where the message goes"
        raise ConfigError(msg)
    connection = borrow(tx, clock)
    if not (connection.in_transaction or connection.begins_by_itself):
        msg = "no transaction is open on tx: the message would be sent whatever comes after"
        raise ConfigError(msg)
    outgoing = Outgoing(queue=queue, message=message, delay=delay)
    await connection.put_out(traced(outgoing, instrumentation))

"""An open transaction with a record in it, whatever the client library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    suppress,
)
from typing import TYPE_CHECKING, Any
from uuid import UUID

from brokerwq.errors import StoreError, StoreUnavailableError
from brokerwq.idempotency.store import (
    Outgoing,
    Soundness,
    TransactionAbortedError,
    TransactionConflictError,
)
from brokerwq.idempotency.stores import _postgres as pg
from brokerwq.idempotency.stores._postgres_errors import CONFLICTS, is_decided, kind_of, sqlstate_of
from brokerwq.idempotency.stores._postgres_link import Link, Rows

if TYPE_CHECKING:
    from brokerwq.idempotency.stores._postgres_store import PostgresStore


async def soundness_of(link: Link, xid: str) -> Soundness | None:
    """What has become of the transaction ``xid`` on ``link``; None if it is no longer open."""
    try:
        await link.flush()
        rows = await link.fetch(pg.GUARD, ())
    except Exception as exc:
        if kind_of(exc) == "spoilt":
            return "aborted"
        if link.is_ended(exc):
            return None
        raise
    return "sound" if rows[0][0] == xid else None


def commit_error(error: Exception) -> Exception:
    """What the ``error`` of a COMMIT means."""
    state = sqlstate_of(error)
    if state in CONFLICTS:
        return TransactionConflictError(f"the database gave the transaction up: {error}")
    if is_decided(error):
        return TransactionAbortedError(f"the database refused to commit: {error}")
    msg = f"whether the transaction was committed cannot be told: {type(error).__name__}: {error}"
    return StoreUnavailableError(msg)


class PostgresTransaction:
    """See ``brokerwq.idempotency.store.Transaction``.

    Attributes:
        xid: The id that the server has given to it.
    """

    def __init__(self, store: PostgresStore, link: Link, key: bytes, owner: bytes) -> None:
        self.xid = ""
        self._store = store
        self._link: Link | None = link
        self._key = UUID(bytes=key)
        self._owner = owner

    @property
    def link(self) -> Link:
        """The connection.

        Raises:
            RuntimeError: the transaction has ended.
        """
        if self._link is None:
            msg = "the transaction has ended"
            raise RuntimeError(msg)
        return self._link

    @property
    def conn(self) -> Any:
        """See ``Transaction.conn``."""
        return self.link.native

    @property
    def session(self) -> Any:
        """See ``Transaction.session``."""
        return self.link.session

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """See ``Transaction.savepoint``."""
        return self._savepoint()

    @asynccontextmanager
    async def _savepoint(self) -> AsyncGenerator[None]:
        async with self.link.savepoint():
            yield

    async def _fetch(self, statement: str, *values: Any) -> Rows:
        with _Told(self._store):
            return await self._store.within(self.link.fetch(statement, values))

    async def put_out(self, outgoing: Sequence[Outgoing], /) -> None:
        """See ``Transaction.put_out``."""
        for each in outgoing:
            await self._fetch(pg.PUT_OUT, *pg.outgoing_values(each))

    async def keep_result(self, result: str, /) -> None:
        """See ``Transaction.keep_result``."""
        await self._fetch(pg.KEEP_RESULT, self._key, result)

    async def examine(self) -> Soundness:
        """See ``Transaction.examine``."""
        with _Told(self._store):
            soundness = await self._store.within(soundness_of(self.link, self.xid))
        if soundness is not None:
            return soundness
        # The handler ended it. What it began after that goes with its connection.
        await self._end(is_sound=False)
        marked = await self._store.fetch(pg.MARKED, self._key, self._owner)
        return "escaped" if marked else "aborted"

    async def commit(self) -> None:
        """See ``Transaction.commit``."""
        link = self.link
        self._link = None
        try:
            await self._store.within(link.commit())
        except BaseException as exc:
            await _give_back(link, is_sound=False)
            if isinstance(exc, Exception):
                raise commit_error(exc) from exc
            raise
        await _give_back(link, is_sound=True)

    async def rollback(self) -> None:
        """See ``Transaction.rollback``."""
        await self._end(is_sound=True)

    async def _end(self, *, is_sound: bool) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        try:
            await self._store.within(link.rollback())
        except BaseException as exc:
            # The connection goes, and the transaction with it.
            await _give_back(link, is_sound=False)
            if not isinstance(exc, Exception):
                raise
        else:
            await _give_back(link, is_sound=is_sound)


async def _give_back(link: Link, *, is_sound: bool) -> None:
    with suppress(Exception):  # a connection that was lost has left by itself
        await asyncio.shield(link.give_back(is_sound=is_sound))


class _Told(AbstractContextManager[None]):
    """A block inside of a transaction: a loss and a conflict are told, other errors pass."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, StoreError):
            return
        kind = kind_of(error, self._store.lost)
        if kind == "conflict":
            msg = f"the database gave the transaction up: {error}"
            raise TransactionConflictError(msg) from error
        if kind == "passing":
            # Known to be nothing, unlike a lost answer to COMMIT; and counted, since it may be
            # the handler's own doing every time.
            msg = (
                "the connection was lost before anything was committed; the server ends a "
                f"transaction in which the handler is silent for idle_timeout: {error}"
            )
            raise TransactionAbortedError(msg) from error

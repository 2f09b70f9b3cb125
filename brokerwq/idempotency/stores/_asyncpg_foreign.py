"""Somebody else's ``asyncpg.Connection``. See ``brokerwq.idempotency.foreign.Foreign``."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

from brokerwq.errors import StoreError
from brokerwq.idempotency.record import Answer, Busy, Claim, Claimed, State, refusal
from brokerwq.idempotency.store import Outgoing, Soundness
from brokerwq.idempotency.stores import _postgres as pg
from brokerwq.idempotency.stores.asyncpg import asyncpg


class ForeignAsyncpg:
    """See ``Foreign``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transaction: Any = None
        self._xid = ""

    @property
    def in_transaction(self) -> bool:
        """See ``Foreign``."""
        return bool(self._connection.is_in_transaction())

    async def begin(self) -> None:
        """See ``Foreign``."""
        self._transaction = self._connection.transaction()
        await self._transaction.start()

    async def mark(self, claim: Claim, /) -> Answer:
        """See ``Foreign``."""
        try:
            values = pg.claim_values(claim, State.COMPLETED)
            row = await self._connection.fetchrow(pg.MARK, *values)
            if row is not None:
                self._xid = row[3]
                return Claimed(fence=row[0], attempt=row[1], takeover=row[2])
            found = await self._connection.fetchrow(pg.FIND, UUID(bytes=claim.key))
        except asyncpg.UndefinedTableError as exc:
            raise _no_tables() from exc
        answer = None if found is None else refusal(pg.record_of(found), claim)
        return answer or Busy(remaining=0.5)

    async def put_out(self, outgoing: Outgoing, /) -> None:
        """See ``Foreign``."""
        try:
            await self._connection.execute(pg.PUT_OUT, *pg.outgoing_values(outgoing))
        except asyncpg.UndefinedTableError as exc:
            raise _no_tables() from exc

    async def keep_result(self, key: bytes, result: str, /) -> None:
        """See ``Foreign``."""
        await self._connection.execute(pg.KEEP_RESULT, UUID(bytes=key), result)

    async def examine(self, claim: Claim, /) -> Soundness:
        """See ``Foreign``."""
        try:
            found = await self._connection.fetchval(pg.GUARD)
        except asyncpg.InFailedSQLTransactionError:
            return "aborted"
        if found == self._xid:
            return "sound"
        await self.rollback()
        marked = await self._connection.fetch(pg.MARKED, UUID(bytes=claim.key), claim.owner)
        return "escaped" if marked else "aborted"

    async def commit(self) -> None:
        """See ``Foreign``."""
        await self._transaction.commit()

    async def rollback(self) -> None:
        """See ``Foreign``."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            with contextlib.suppress(asyncpg.InterfaceError, asyncpg.PostgresError):
                await transaction.rollback()


def _no_tables() -> StoreError:
    return StoreError("the database has no tables of brokerwq: run brokerwq keys init")

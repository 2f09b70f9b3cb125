"""Somebody else's connection to PostgreSQL. See ``brokerwq.idempotency.borrowed.Borrowed``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from brokerwq.errors import StoreError
from brokerwq.idempotency.record import Answer, Busy, Claim, Claimed, State, refusal
from brokerwq.idempotency.store import Outgoing, Soundness
from brokerwq.idempotency.stores import _postgres as pg
from brokerwq.idempotency.stores._postgres_errors import kind_of
from brokerwq.idempotency.stores._postgres_link import Link, Rows
from brokerwq.idempotency.stores._postgres_transaction import commit_error, soundness_of


class BorrowedPostgres:
    """See ``Borrowed``."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._xid = ""

    @property
    def in_transaction(self) -> bool:
        """See ``Borrowed``."""
        return self._link.in_transaction

    @property
    def begins_by_itself(self) -> bool:
        """See ``Borrowed``."""
        return self._link.begins_by_itself

    async def begin(self) -> None:
        """See ``Borrowed``."""
        await self._link.begin("")

    async def _fetch(self, statement: str, *values: Any) -> Rows:
        try:
            return await self._link.fetch(statement, values)
        except Exception as exc:
            if kind_of(exc) == "tables":
                msg = "the database has no tables of brokerwq: run brokerwq keys init"
                raise StoreError(msg) from exc
            raise

    async def mark(self, claim: Claim, /) -> Answer:
        """See ``Borrowed``."""
        rows = await self._fetch(pg.MARK, *pg.claim_values(claim, State.COMPLETED))
        if rows:
            self._xid = rows[0][3]
            return Claimed(fence=rows[0][0], attempt=rows[0][1], takeover=rows[0][2])
        found = await self._fetch(pg.FIND, UUID(bytes=claim.key))
        answer = refusal(pg.record_of(found[0]), claim) if found else None
        return answer or Busy(remaining=0.5)

    async def put_out(self, outgoing: Outgoing, /) -> None:
        """See ``Borrowed``."""
        await self._fetch(pg.PUT_OUT, *pg.outgoing_values(outgoing))

    async def keep_result(self, key: bytes, result: str, /) -> None:
        """See ``Borrowed``."""
        await self._fetch(pg.KEEP_RESULT, UUID(bytes=key), result)

    async def examine(self, claim: Claim, /) -> Soundness:
        """See ``Borrowed``."""
        soundness = await soundness_of(self._link, self._xid)
        if soundness is not None:
            return soundness
        await self.rollback()
        marked = await self._fetch(pg.MARKED, UUID(bytes=claim.key), claim.owner)
        await self.rollback()  # where a look has begun another transaction
        return "escaped" if marked else "aborted"

    async def commit(self) -> None:
        """See ``Borrowed``."""
        try:
            await self._link.commit()
        except Exception as exc:
            raise commit_error(exc) from exc

    async def rollback(self) -> None:
        """See ``Borrowed``."""
        with suppress(Exception):  # the first error is the one to tell
            await self._link.rollback()

"""Somebody else's ``sqlite3.Connection``. See ``brokerwq.idempotency.borrowed.Borrowed``."""

from __future__ import annotations

import sqlite3

from brokerwq.clock import Clock
from brokerwq.errors import StoreError
from brokerwq.idempotency.record import Answer, Claim, State
from brokerwq.idempotency.store import Outgoing, Soundness, TransactionAbortedError
from brokerwq.idempotency.stores import _sqlite_rows as rows
from brokerwq.idempotency.stores._sqlite_rows import Moment

_GUARD = "brokerwq_block"


class BorrowedSqlite:
    """See ``Borrowed``."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    @property
    def in_transaction(self) -> bool:
        """See ``Borrowed``."""
        return self._db.in_transaction

    @property
    def begins_by_itself(self) -> bool:
        """See ``Borrowed``."""
        return False

    async def begin(self) -> None:
        """See ``Borrowed``."""
        # A transaction that reads before it writes would fail at once, whatever the timeout.
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(f"SAVEPOINT {_GUARD}")

    async def mark(self, claim: Claim, /) -> Answer:
        """See ``Borrowed``."""
        self._check()
        return rows.claim(self._db, self._moment(), claim, State.COMPLETED)

    async def put_out(self, outgoing: Outgoing, /) -> None:
        """See ``Borrowed``."""
        self._check()
        rows.put_out(self._db, self._moment(), [outgoing])

    async def keep_result(self, key: bytes, result: str, /) -> None:
        """See ``Borrowed``."""
        rows.keep_result(self._db, key, result)

    async def examine(self, claim: Claim, /) -> Soundness:
        """See ``Borrowed``."""
        try:
            self._db.execute(f"RELEASE {_GUARD}")
        except sqlite3.OperationalError:
            await self.rollback()
            record = rows.find(self._db, self._moment(), claim.key)
            return "escaped" if record is not None and record.owner == claim.owner else "aborted"
        return "sound"

    async def commit(self) -> None:
        """See ``Borrowed``."""
        try:
            self._db.execute("COMMIT")
        except sqlite3.IntegrityError as exc:
            msg = f"the database refused to commit: {exc}"
            raise TransactionAbortedError(msg) from exc

    async def rollback(self) -> None:
        """See ``Borrowed``."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _check(self) -> None:
        if rows.version_of(self._db) != rows.VERSION:
            msg = "the database has no tables of this brokerwq: run brokerwq keys init"
            raise StoreError(msg)

    def _moment(self) -> Moment:
        return Moment(self._clock.utcnow().timestamp(), self._clock.now())

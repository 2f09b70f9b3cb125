"""Records in an SQLite file: the embedded default, and the database of those whose work is there.

SQLite lets one connection write at a time, to the whole file: a transactional handler keeps
every other writer waiting for as long as it runs. What takes longer than some milliseconds
belongs into ``once="lease_tx"``, whose transaction opens when the slow part is over.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NoReturn
from weakref import WeakKeyDictionary

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.durations import Seconds, positive_seconds
from brokerwq.errors import ConfigError, StoreUnavailableError
from brokerwq.idempotency.record import Answer, Busy, Claim, Claimed, Record, State
from brokerwq.idempotency.store import (
    Outgoing,
    SendAll,
    Soundness,
    Transaction,
    TransactionAbortedError,
)
from brokerwq.idempotency.stores import _sqlite_rows as rows
from brokerwq.idempotency.stores._lasting import no_outage
from brokerwq.idempotency.stores._sqlite_desk import GUARD, Desk
from brokerwq.idempotency.stores._sqlite_file import BusyFileError, File, Writer

_BUSY_SECONDS: Final = 0.5


class SqliteStore:
    """Records in the file ``path``; made, with its tables, if it is missing.

    Args:
        path: The file. For ``transactional`` and ``lease_tx`` the one that the work is done in.
        create: Make the file and the tables; False refuses where they are missing.
        busy_timeout: Seconds to wait for another writer. After it a claim counts as busy.
        foreign_keys: Have SQLite keep foreign keys in what handlers write.
        clock: Time; for tests.

    Raises:
        ConfigError: the path is empty or means a database in memory, which no other process
            could see.
    """

    takes_threads: Final = True

    def __init__(
        self,
        path: str | Path,
        *,
        create: bool = True,
        busy_timeout: Seconds = 5.0,
        foreign_keys: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        text = str(path)
        if not text or text.startswith(":") or "\0" in text:
            msg = f"the store must be a file that all processes share, not {text!r:.100}"
            raise ConfigError(msg)
        timeout = positive_seconds(busy_timeout, "busy_timeout", limit=600.0)
        self._file = File(str(Path(text).absolute()), clock, create, timeout, foreign_keys)
        self._writer = Writer(self._file)
        self._desks: WeakKeyDictionary[asyncio.AbstractEventLoop, Desk] = WeakKeyDictionary()
        self._pid = os.getpid()
        self._pruned_to = b""

    def __repr__(self) -> str:
        """For people."""
        return f"<SqliteStore {self._file.path}>"

    @property
    def name(self) -> str:
        """See ``Store.name``."""
        return f"sqlite:///{self._file.path}"

    async def check(self) -> None:
        """See ``Store.check``."""
        with no_outage():
            await self._writer.call(lambda db, moment: rows.find(db, moment, b""))

    async def claim(self, claim: Claim, /) -> Answer:
        """See ``Store.claim``."""
        return await self._writer.call(
            lambda db, moment: rows.claim(db, moment, claim, State.IN_PROGRESS)
        )

    async def extend(self, key: bytes, owner: bytes, lease: float, /) -> bool:
        """See ``Store.extend``."""
        return await self._writer.call(
            lambda db, moment: rows.extend(db, moment, key, owner, lease)
        )

    async def complete(
        self, key: bytes, owner: bytes, retention: float, result: str | None, /
    ) -> bool:
        """See ``Store.complete``."""
        return await self._writer.call(
            lambda db, moment: rows.finish(
                db, moment, key, owner, State.COMPLETED, retention, result
            )
        )

    async def fail(self, key: bytes, owner: bytes, retention: float, reason: str, /) -> bool:
        """See ``Store.fail``."""
        return await self._writer.call(
            lambda db, moment: rows.finish(db, moment, key, owner, State.FAILED, retention, reason)
        )

    async def release(self, key: bytes, owner: bytes, /) -> bool:
        """See ``Store.release``."""
        return await self._writer.call(lambda db, moment: rows.release(db, moment, key, owner))

    async def get(self, key: bytes, /) -> Record | None:
        """See ``Store.get``."""
        return await self._writer.call(lambda db, moment: rows.find(db, moment, key))

    async def list(
        self, limit: int, /, *, state: State | None = None, worker: str | None = None
    ) -> Sequence[Record]:
        """See ``Store.list``."""
        return await self._writer.call(
            lambda db, moment: rows.listed(db, moment, limit, state, worker)
        )

    async def forget(self, key: bytes, /) -> bool:
        """See ``Store.forget``."""
        return await self._writer.call(lambda db, _: rows.forget(db, key))

    async def prune(self, limit: int, /) -> int:
        """See ``Store.prune``."""
        started = self._pruned_to
        while True:
            look = partial(rows.prune, limit=limit, after=self._pruned_to)
            found = await self._writer.call(look)
            self._pruned_to = found.last or b""
            if found.removed or (found.last is None and not started):
                return found.removed
            if found.last is None:
                started = b""  # the rest, before where the last call had come to

    def schema(self) -> Sequence[str]:
        """See ``Store.schema``."""
        return rows.SCHEMA

    async def init(self) -> None:
        """See ``Store.init``."""
        file = replace(self._file, create=True)
        await asyncio.get_running_loop().run_in_executor(None, lambda: file.connect().close())

    async def aclose(self) -> None:
        """See ``Store.aclose``."""
        desk = self._desks.pop(asyncio.get_running_loop(), None)
        if desk is not None:
            desk.close()
        await self._writer.aclose()

    # -- transactions ---------------------------------------------------------------------

    def is_conflict(self, _error: BaseException, /) -> bool:
        """See ``TransactionalStore.is_conflict``: who writes has the file to himself."""
        return False

    async def begin_marked(self, claim: Claim, /) -> Transaction | Answer:
        """See ``TransactionalStore.begin_marked``."""
        desk = self._desk()
        try:
            db = await desk.begin()
        except BusyFileError:
            return Busy(remaining=_BUSY_SECONDS)
        with desk.given_back_on_error():
            answer = rows.claim(db, self._file.moment(), claim, State.COMPLETED)
            if isinstance(answer, Claimed):
                return _Transaction(desk, db, claim.key, claim.owner)
            desk.end()
            return answer

    async def begin_completing(
        self, key: bytes, owner: bytes, retention: float, /
    ) -> Transaction | None:
        """See ``TransactionalStore.begin_completing``."""
        desk = self._desk()
        db = await desk.begin()
        with desk.given_back_on_error():
            moment = self._file.moment()
            if rows.finish(db, moment, key, owner, State.COMPLETED, retention, None):
                return _Transaction(desk, db, key, owner)
            desk.end()
            return None

    async def relay(self, send: SendAll, limit: int, /) -> int:
        """See ``TransactionalStore.relay``."""
        taken = await self._writer.call(lambda db, moment: rows.take_out(db, moment, limit))
        if not taken:
            return 0
        done: Sequence[bool] = [False] * len(taken)
        try:
            done = await send([outgoing for _, outgoing in taken])
        finally:
            sent = [seq for (seq, _), ok in zip(taken, done, strict=True) if ok]
            kept = [seq for (seq, _), ok in zip(taken, done, strict=True) if not ok]
            await asyncio.shield(self._writer.call(lambda db, _: rows.sent_out(db, sent, kept)))
        return len(sent)

    def _desk(self) -> Desk:
        if self._pid != os.getpid():
            self._desks, self._pid = WeakKeyDictionary(), os.getpid()
        loop = asyncio.get_running_loop()
        desk = self._desks.get(loop)
        if desk is None:
            desk = self._desks[loop] = Desk(self._file)
        return desk


class _Transaction:
    """See ``brokerwq.idempotency.store.Transaction``."""

    def __init__(self, desk: Desk, db: sqlite3.Connection, key: bytes, owner: bytes) -> None:
        self._desk = desk
        self._db: sqlite3.Connection | None = db
        self._key = key
        self._owner = owner
        self._savepoints = 0
        self._is_examined = False

    @property
    def conn(self) -> sqlite3.Connection:
        if self._db is None:
            msg = "the transaction has ended"
            raise RuntimeError(msg)
        return self._db

    @property
    def session(self) -> NoReturn:
        msg = "tx.session is there with SqlalchemyStore; use tx.conn"
        raise RuntimeError(msg)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return self._savepoint()

    @asynccontextmanager
    async def _savepoint(self) -> AsyncGenerator[None]:
        self._savepoints += 1
        name = f"brokerwq_{self._savepoints}"
        self.conn.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            self.conn.execute(f"ROLLBACK TO {name}")
            self.conn.execute(f"RELEASE {name}")
            raise
        self.conn.execute(f"RELEASE {name}")

    async def put_out(self, outgoing: Sequence[Outgoing], /) -> None:
        rows.put_out(self.conn, self._desk.file.moment(), outgoing)

    async def keep_result(self, result: str, /) -> None:
        rows.keep_result(self.conn, self._key, result)

    async def examine(self) -> Soundness:
        if self._is_examined:
            return "sound"
        db = self.conn
        try:
            # Gone with the transaction in which it was set, whoever ended that.
            db.execute(f"RELEASE {GUARD}")
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            record = rows.find(db, self._desk.file.moment(), self._key)
            is_ours = record is not None and record.owner == self._owner
            done = is_ours and record is not None and record.state is State.COMPLETED
            return "escaped" if done else "aborted"
        self._is_examined = True
        return "sound"

    async def commit(self) -> None:
        db = self.conn
        try:
            await self._desk.run(partial(db.execute, "COMMIT"))
        except sqlite3.IntegrityError as exc:
            self._end()
            msg = f"the database refused to commit: {exc}"
            raise TransactionAbortedError(msg) from exc
        except sqlite3.Error as exc:
            self._end()
            msg = f"the transaction could not be committed: {exc}"
            raise StoreUnavailableError(msg) from exc
        self._end()

    async def rollback(self) -> None:
        if self._db is not None:
            self._end()

    def _end(self) -> None:
        self._db = None
        self._desk.end()

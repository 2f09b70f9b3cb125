"""Connections to the store's file, and the thread that changes records in groups."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar
from urllib.parse import quote

from brokerwq.clock import Clock
from brokerwq.errors import StoreError, StoreUnavailableError
from brokerwq.idempotency.stores import _sqlite_rows as rows
from brokerwq.idempotency.stores._lasting import LastingError
from brokerwq.idempotency.stores._sqlite_rows import Moment

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection, Moment], T]

_MOST_AT_ONCE: Final = 500
_BLOCK: Final = "brokerwq_block"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
    }
)


class BusyFileError(StoreUnavailableError):
    """Another process has been writing to the file for too long."""


class JoinedConnection(sqlite3.Connection):
    """A connection whose transaction somebody else ends.

    ``commit()`` is a habit that would end it, and take the record out of the transaction of the
    work; ``with connection:`` is another, and becomes a savepoint.
    """

    def __enter__(self) -> Self:
        """Begin a part that may fail by itself; blocks may be nested."""
        self.execute(f"SAVEPOINT {_BLOCK}")
        return self

    def commit(self) -> None:
        """Refuse."""
        msg = "this transaction is committed when the handler has returned; leave out commit()"
        raise sqlite3.ProgrammingError(msg)

    def rollback(self) -> None:
        """Refuse."""
        msg = "raise an exception, or call tx.abort(), to roll back; leave out rollback()"
        raise sqlite3.ProgrammingError(msg)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        """Refuse: it begins with a COMMIT."""
        msg = "executescript() commits first; use execute() for each statement"
        raise sqlite3.ProgrammingError(msg)

    def __exit__(self, kind: object, *_: object) -> Literal[False]:
        """Take back what the block has written, if it has failed."""
        # A block that has ended the transaction is found out before the commit.
        if self.in_transaction:
            if kind is not None:
                self.execute(f"ROLLBACK TO {_BLOCK}")
            self.execute(f"RELEASE {_BLOCK}")
        return False


@dataclass(frozen=True, slots=True)
class File:
    """Where the store is and how it is opened."""

    path: str
    clock: Clock
    create: bool
    busy_timeout: float
    foreign_keys: bool = False

    def moment(self) -> Moment:
        """Now."""
        return Moment(self.clock.utcnow().timestamp(), self.clock.now())

    def connect(self, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        """An open connection to a file that has our tables.

        Raises:
            StoreUnavailableError: the file cannot be opened now.
            StoreError: it is no database, or its tables are of another version.
        """
        mode = "rwc" if self.create else "rw"
        if not self.create and not os.path.lexists(self.path):
            msg = f"{self.path} does not exist: the first run makes it, or brokerwq keys init"
            raise StoreUnavailableError(msg)
        db: sqlite3.Connection | None = None
        try:
            db = sqlite3.connect(
                f"file:{quote(self.path)}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                factory=factory,
            )
            db.execute(f"PRAGMA busy_timeout = {int(self.busy_timeout * 1000)}")
            db.execute("PRAGMA journal_mode = WAL")
            # A record that a power cut takes back would let finished work run again.
            db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA foreign_keys = {self.foreign_keys:d}")
            self._prepare(db)
        except BaseException as exc:
            if db is not None:
                db.close()
            if isinstance(exc, sqlite3.Error):
                raise self.translate(exc) from exc
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        if rows.version_of(db) != rows.VERSION or not _knows_boot(db):
            db.execute("BEGIN IMMEDIATE")
            try:
                self._upgrade(db)
                rows.note_boot(db, boot_id())
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _upgrade(self, db: sqlite3.Connection) -> None:
        found = rows.version_of(db)
        if found is None:
            if not self.create:
                msg = f"{self.path} has no tables of brokerwq: run brokerwq keys init"
                raise StoreError(msg)
            for statement in rows.SCHEMA:
                db.execute(statement)
            return
        while found is not None and found in rows.MIGRATIONS:
            if not self.create:
                msg = f"the tables in {self.path} are of version {found}: run brokerwq keys init"
                raise StoreError(msg)
            for statement in rows.MIGRATIONS[found]:
                db.execute(statement)
            found = rows.version_of(db)
        if found != rows.VERSION:
            msg = (
                f"the tables in {self.path} are of version {found or '?'}, and this brokerwq "
                f"knows version {rows.VERSION}: update the older one"
            )
            raise StoreError(msg)

    def translate(self, exc: Exception) -> Exception:
        """The error of ours that ``exc`` is."""
        if not isinstance(exc, sqlite3.Error):
            return exc
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        text = f"store {self.path}: {exc}"
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return BusyFileError(text)
        if "no such table: brokerwq" in str(exc):
            return LastingError(f"{text}: run brokerwq keys init")
        return (StoreUnavailableError if code in _PASSING else StoreError)(text)


def boot_id() -> str:
    """What names this boot of the machine; one for all where the machine has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return "unknown"


def _knows_boot(db: sqlite3.Connection) -> bool:
    row = db.execute("SELECT value FROM brokerwq_meta WHERE name = 'boot'").fetchone()
    return row is not None and row[0] == boot_id()


@dataclass(slots=True, eq=False)
class _Operation:
    work: Work[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Writer:
    """One thread and one connection; what comes while it commits shares the next commit."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._inbox: SimpleQueue[_Operation | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    async def call(self, work: Work[T]) -> T:
        """Do ``work`` in a transaction; its answer once that is committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._pid != os.getpid():
                self._thread, self._inbox, self._pid = None, SimpleQueue(), os.getpid()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, args=(self._inbox,), name="brokerwq-keys", daemon=True
                )
                self._thread.start()
            self._inbox.put(_Operation(work, loop, future))
        return await future

    async def aclose(self) -> None:
        """Do what is in the row and end the thread; the next call starts another one."""
        with self._lock:
            thread, self._thread = self._thread, None
            inbox, self._inbox = self._inbox, SimpleQueue()
            inbox.put(None)
        if thread is not None and self._pid == os.getpid():
            await asyncio.get_running_loop().run_in_executor(None, thread.join)

    def _run(self, inbox: SimpleQueue[_Operation | None]) -> None:
        db: sqlite3.Connection | None = None
        is_ending = False
        while not is_ending:
            operations, is_ending = _take(inbox)
            try:
                db = db or self._file.connect()
                answers = self._commit(db, operations)
            except Exception as exc:  # noqa: BLE001 -- an answer is owed in any case
                error = self._file.translate(exc)
                if db is not None and not isinstance(error, BusyFileError):
                    db.close()
                    db = None
                answers = [(operation, None, error) for operation in operations]
            _deliver(answers)
        if db is not None:
            db.close()

    def _commit(self, db: sqlite3.Connection, operations: Sequence[_Operation]) -> list[_Answer]:
        if not operations:
            return []
        db.execute("BEGIN IMMEDIATE")
        try:
            moment = self._file.moment()
            answers = [_attempt(db, moment, operation) for operation in operations]
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return answers


_Answer: TypeAlias = tuple[_Operation, Any, Exception | None]


def _attempt(db: sqlite3.Connection, moment: Moment, operation: _Operation) -> _Answer:
    try:
        return operation, operation.work(db, moment), None
    except StoreError as exc:  # of its own record: the others have nothing to do with it
        return operation, None, exc


def _take(inbox: SimpleQueue[_Operation | None]) -> tuple[list[_Operation], bool]:
    taken = inbox.get()
    operations: list[_Operation] = []
    with suppress(Empty):
        while taken is not None and len(operations) < _MOST_AT_ONCE:
            operations.append(taken)
            taken = inbox.get_nowait()
        if taken is not None:
            operations.append(taken)
    return operations, taken is None


def _deliver(answers: Sequence[_Answer]) -> None:
    for operation, result, error in answers:
        with suppress(RuntimeError):  # the loop was closed
            operation.loop.call_soon_threadsafe(_settle, operation.future, result, error)


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

"""A ledger in a SQLite file, for the movers of one machine."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from brokerwq.clock import Clock
from brokerwq.errors import ConfigError, StoreError, StoreUnavailableError
from brokerwq.migrate.schema import VERSION, tables

T = TypeVar("T")

_BUSY_SECONDS: Final = 30.0
_PAUSE: Final = 0.01
_APPLICATION_ID: Final = 0x6277716C  # "bwql"; queues in a file have another one
_STATEMENTS: Final = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
    *tables(blob="BLOB", number="INTEGER", entry_options="WITHOUT ROWID"),
)


class SqliteDatabase:
    """See ``LedgerDatabase``.

    Args:
        path: The file.
        clock: For the times that are written: the machine's is every mover's.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self.name = path
        self._clock = clock
        self._db: sqlite3.Connection | None = None

    def now(self) -> float:
        """See ``Statements.now``."""
        return self._clock.utcnow().timestamp()

    def fetch(self, statement: str, values: Sequence[Any] = (), /) -> list[tuple[Any, ...]]:
        """See ``Statements.fetch``."""
        return self._opened().execute(statement, values).fetchall()

    def run(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        """See ``Statements.run``."""
        self._opened().executemany(statement, rows)

    def prepare(self, *, create: bool) -> bool:
        """See ``LedgerDatabase.prepare``."""
        file = Path(self.name)
        if not create and (not file.exists() or not file.stat().st_size):
            return False
        with self._translated():
            self._db = sqlite3.connect(
                f"file:{quote(self.name)}?mode=rwc",
                uri=True,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._make()
        return True

    def read(self, work: Callable[[SqliteDatabase], T], /) -> T:
        """See ``LedgerDatabase.read``."""
        with self._translated():
            return work(self)

    def write(self, work: Callable[[SqliteDatabase], T], /) -> T:
        """See ``LedgerDatabase.write``."""
        with self._translated():
            db = self._opened()
            db.execute("BEGIN IMMEDIATE")
            try:
                answer = work(self)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            return answer

    def close(self) -> None:
        """See ``LedgerDatabase.close``."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _make(self) -> None:
        db = self._opened()
        has_tables = self._has_tables()
        # Asked for afterwards: another mover may be making both at this moment.
        ((application,),) = self.fetch("PRAGMA application_id")
        if has_tables and application != _APPLICATION_ID:
            msg = f"{self.name} is a database of something else, no ledger of a migration"
            raise ConfigError(msg)
        self._use_write_ahead_log()
        # A deletion that a power cut takes back would make a later copy of the id look moved.
        db.execute("PRAGMA synchronous = FULL")
        if not has_tables:
            self.write(SqliteDatabase._create)
        if self._lacks_parking():
            self.write(SqliteDatabase._add_parking)
        ((version,),) = self.fetch("PRAGMA user_version")
        if version != VERSION:
            msg = f"{self.name} is a ledger of version {version}; this brokerwq reads {VERSION}"
            raise StoreError(msg)

    def _use_write_ahead_log(self) -> None:
        # SQLite does not wait here for another mover that does the same.
        for tries_left in reversed(range(round(_BUSY_SECONDS / _PAUSE))):
            try:
                self._opened().execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or not tries_left:
                    raise
                time.sleep(_PAUSE)
            else:
                return

    def _has_tables(self) -> bool:
        return bool(self.fetch("SELECT 1 FROM sqlite_schema LIMIT 1"))

    def _create(self) -> None:
        if not self._has_tables():  # nobody has made them meanwhile
            for statement in _STATEMENTS:
                self._opened().execute(statement)

    def _lacks_parking(self) -> bool:
        names = {row[1] for row in self.fetch("PRAGMA table_info(entry)")}
        return bool(names) and "parked_until" not in names

    def _add_parking(self) -> None:
        """Add the column that a ledger of the same version may lack."""
        if self._lacks_parking():
            self._opened().execute(
                "ALTER TABLE entry ADD COLUMN parked_until REAL NOT NULL DEFAULT 0"
            )

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except sqlite3.OperationalError as exc:
            msg = f"the ledger {self.name} cannot be used: {exc}"
            raise StoreUnavailableError(msg) from exc
        except sqlite3.DatabaseError as exc:
            msg = f"{self.name} is no ledger of a migration: {exc}"
            raise StoreError(msg) from exc

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            msg = "the ledger is not open"
            raise StoreError(msg)
        return self._db

"""The file of a ledger: whose it is, how it is made, and how it is written."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from brokerwq.errors import ConfigError, StoreError
from brokerwq.migrate.entry import Entry, Session
from brokerwq.migrate.schema import APPLICATION_ID, STATEMENTS, VERSION

T = TypeVar("T")

_BUSY_SECONDS: Final = 30.0
_SILENT_SECONDS: Final = 60.0
"""A mover that has not shown itself for so long is taken for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRecord:
    """Which migration a ledger belongs to.

    Attributes:
        source: The source, by a text that is no other broker's whatever the credentials are.
        target: The target.
        queues: Names at the source and at the target.
    """

    source: str
    target: str
    queues: Mapping[str, str]

    def differences(self, other: MigrationRecord) -> list[str]:
        """In what ``other`` is another migration; empty if it is this one or a part of it."""
        found: list[str] = []
        if (self.source, self.target) != (other.source, other.target):
            found.append(f"{self.source} to {self.target}")
        for name, target in other.queues.items():
            if name in self.queues and self.queues[name] != target:
                found.append(f"{name} goes to {self.queues[name]}")
        return found


def path_of(url: str) -> str:
    """The file that ``url`` names.

    Raises:
        ConfigError: it names none.
    """
    scheme, separator, path = url.partition("://")
    if scheme != "sqlite" or not separator or len(path) < 2 or path[0] != "/":  # noqa: PLR2004
        msg = f"ledger {url!r:.200} must be a file: sqlite:///relative.db or sqlite:////absolute.db"
        raise ConfigError(msg)
    return path[1:]


def open_file(path: str, record: MigrationRecord, now: float) -> sqlite3.Connection:
    """A connection to the ledger at ``path``, which is made if it is missing.

    Raises:
        ConfigError: it is about another migration.
        StoreError: it is no ledger, or of another version.
    """
    db = _connect(path)
    try:
        _prepare(db, path)
        _check_record(db, record, path, now)
    except BaseException:
        db.close()
        raise
    return db


def record_of(path: str) -> MigrationRecord | None:
    """The migration that the ledger at ``path`` is about; None if there is no ledger yet."""
    file = Path(path)
    if not file.exists() or not file.stat().st_size:
        return None
    db = _connect(path)
    try:
        _prepare(db, path)
        return _record(db)
    finally:
        db.close()


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(path)}?mode=rwc",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )


def _record(db: sqlite3.Connection) -> MigrationRecord | None:
    row = db.execute("SELECT source, target, queues FROM migration").fetchone()
    if row is None:
        return None
    return MigrationRecord(source=row[0], target=row[1], queues=json.loads(row[2]))


def _prepare(db: sqlite3.Connection, path: str) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION_ID:
        msg = f"{path} is a database of something else, no ledger of a migration"
        raise ConfigError(msg)
    db.execute("PRAGMA journal_mode = WAL")
    # A deletion that a power cut takes back would make a later copy of the id look moved.
    db.execute("PRAGMA synchronous = FULL")
    if not tables:

        def create(db: sqlite3.Connection) -> None:
            (made_meanwhile,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if not made_meanwhile:
                for statement in STATEMENTS:
                    db.execute(statement)

        in_transaction(db, create)
    if _lacks_parking(db):
        in_transaction(db, _add_parking)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        msg = f"{path} is a ledger of version {version}; this brokerwq reads {VERSION}"
        raise StoreError(msg)


def _lacks_parking(db: sqlite3.Connection) -> bool:
    names = {row[1] for row in db.execute("PRAGMA table_info(entry)")}
    return bool(names) and "parked_until" not in names


def _add_parking(db: sqlite3.Connection) -> None:
    """Add the column that a ledger of the same version may lack."""
    if _lacks_parking(db):
        db.execute("ALTER TABLE entry ADD COLUMN parked_until REAL NOT NULL DEFAULT 0")


def _check_record(db: sqlite3.Connection, record: MigrationRecord, path: str, now: float) -> None:
    def check(db: sqlite3.Connection) -> None:
        known = _record(db)
        if known is None:
            db.execute(
                "INSERT INTO migration (source, target, queues, created_at) VALUES (?, ?, ?, ?)",
                (record.source, record.target, json.dumps(dict(record.queues)), now),
            )
            return
        if found := known.differences(record):
            msg = f"the ledger {path} belongs to another migration: {', '.join(found)}"
            raise ConfigError(msg)
        if not record.queues.items() <= known.queues.items():
            merged = {**known.queues, **record.queues}
            db.execute("UPDATE migration SET queues = ?", (json.dumps(merged),))

    in_transaction(db, check)


def in_transaction(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """What ``work`` returns, with all that it wrote, or nothing of it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        answer = work(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return answer


def stamp(moment: float) -> str:
    """A moment for people."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def entry_of(row: tuple[Any, ...]) -> Entry:
    """What a row of ``entry`` says of its message."""
    id_, direction, digest, pending, done, refusal, _ = row
    return Entry(
        id=id_,
        direction=direction,
        digest=digest,
        pending=pending,
        done=done,
        refusal=refusal or "",
    )


def session_of(row: tuple[Any, ...], now: float) -> Session:
    """The mover that a row of ``session`` is about, as it looks at ``now``."""
    id_, direction, host, pid, started, seen, ended = row
    is_silent = now - seen > _SILENT_SECONDS
    is_gone = host == socket.gethostname() and not _is_alive(pid)
    return Session(
        id=id_,
        direction=direction,
        place=f"{host}:{pid}",
        started_at=datetime.fromtimestamp(started, UTC),
        is_alive=ended is None and not is_silent and not is_gone,
        has_ended=ended is not None,
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

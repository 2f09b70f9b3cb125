"""One connection to the file: whose it is, how it is opened, and what a reboot means."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from brokerwq.clock import Clock
from brokerwq.errors import BrokerMissingError, ConfigError, ConnectionLostError, ProtocolError
from brokerwq_sqlite import schema
from brokerwq_sqlite.errors import code_of, reason, translate
from brokerwq_sqlite.schema import LEASED, READY
from brokerwq_sqlite.settings import SqliteSettings

T = TypeVar("T")

OLDEST_SQLITE: Final = (3, 35, 0)

WAL_LIMIT_BYTES: Final = 16 * 1024 * 1024
"""A write-ahead log that grew beyond this, because somebody read for long, is cut back to it."""

_PAUSES: Final = (0.001, 0.003)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_NEEDS_WRITING = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})


class Connection:
    """An open database that is known to be ours and of our version.

    Raises:
        BrokerMissingError: the file is missing and may not be made.
        ConfigError: it is a folder.
        ConnectionLostError: it is missing although it was there before.
        DriverError: as ``errors.translate`` says.
    """

    def __init__(self, settings: SqliteSettings, clock: Clock, *, is_first: bool) -> None:
        self.path = settings.path
        self._settings = settings
        self._clock = clock
        if not os.path.lexists(self.path):
            self._refuse_missing(is_first=is_first)
        elif Path(self.path).is_dir():
            msg = f"{self.path} is a folder"
            raise ConfigError(msg)
        try:
            self._probe()
            self.sqlite = self._connect("rwc" if is_first and settings.create else "rw")
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc
        try:
            self._prepare()
            self._identity = _identity_of(self.path)
        except BaseException as exc:
            self.close()
            if isinstance(exc, sqlite3.Error):
                raise translate(exc, self.path) from exc
            raise

    def close(self) -> None:
        """Close it, whatever its state."""
        with suppress(sqlite3.Error):
            self.sqlite.close()

    def check_file(self) -> None:
        """Make sure that the file at our path is still the one we hold open.

        SQLite would go on writing to a deleted file, and every message with it would be lost.

        Raises:
            ConnectionLostError: it was deleted or replaced.
        """
        try:
            if _identity_of(self.path) == self._identity:
                return
        except OSError:
            pass
        msg = f"{self.path} was deleted or replaced while in use"
        raise ConnectionLostError(msg)

    def patiently(self, work: Callable[[], T]) -> T:
        """What ``work`` returns once nobody is in its way any more.

        SQLite's own waiting looks every 100 ms in the end and favours who has just come: with
        eight busy processes the unluckiest waited more than a second for its turn, and waits a
        tenth of a second here.

        Raises:
            sqlite3.OperationalError: somebody was in the way for all of the busy timeout.
        """
        waited = 0.0
        while True:
            try:
                return work()
            except sqlite3.OperationalError as exc:
                if code_of(exc) != sqlite3.SQLITE_BUSY or waited >= self._settings.busy_timeout:
                    raise
            pause = random.uniform(*_PAUSES)  # noqa: S311  -- to keep out of step, nothing more
            time.sleep(pause)
            waited += pause

    def _refuse_missing(self, *, is_first: bool) -> None:
        if not is_first:
            msg = f"{self.path} is gone"
            raise ConnectionLostError(msg)
        if not self._settings.create:
            msg = (
                f"{self.path} does not exist: the first enqueue or run makes it, or brokerwq "
                "queues declare; a look does not, nor does anything with create=false"
            )
            raise BrokerMissingError(msg)
        if not Path(self.path).parent.is_dir():
            msg = f"{self.path} cannot be made: {reason(self.path)}"
            raise ConfigError(msg)

    def _probe(self) -> None:
        """Find out whose file it is before anything can change it."""
        try:
            size = Path(self.path).stat().st_size
        except FileNotFoundError:
            return
        if not size:
            return
        connection = self._connect("ro")
        try:
            schema.version_of(connection, self.path)
        except sqlite3.OperationalError as exc:
            # A file that was left in the middle of a commit needs writing to be read; then
            # ``upgrade`` looks again.
            if code_of(exc) not in _NEEDS_WRITING:
                raise
        finally:
            connection.close()

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(os.fsencode(self.path))}?mode={mode}",
            uri=True,
            timeout=self._settings.busy_timeout,
            isolation_level=None,
            check_same_thread=False,  # a fork closes it from the forking thread
        )

    def _prepare(self) -> None:
        schema.version_of(self.sqlite, self.path)
        mode: str = self.sqlite.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            msg = f"{self.path} cannot have a write-ahead log: its file system is not a local one"
            raise ProtocolError(msg)
        # What is written here needs no flush of its own: the first one that a message causes
        # takes with it all that stands before it in the log.
        self.sqlite.execute("PRAGMA synchronous = NORMAL")
        self.sqlite.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        schema.upgrade(self.sqlite, self.path)
        self._note_boot()
        self.sqlite.execute(f"PRAGMA synchronous = {self._settings.synchronous}")
        self.sqlite.execute("PRAGMA busy_timeout = 0")  # from here on see ``patiently``

    def _note_boot(self) -> None:
        """End the leases of an earlier boot, whose clock readings mean nothing any more.

        Where the machine gives its boots no name, a reading below the highest one seen tells
        of a reboot; one that is above it leaves at most the rest of each lease to wait for.
        """
        boot = _boot_id()
        self.sqlite.execute("BEGIN IMMEDIATE")
        try:
            # Read before the lock was ours, it could be below what another process has seen.
            now = self._clock.now()
            known, seen = self.sqlite.execute("SELECT boot, seen FROM machine").fetchone()
            # A process that cannot read the name, in a container say, must not end the leases
            # of those that can.
            if (known and boot and known != boot) or now < seen:
                self.sqlite.execute(
                    "UPDATE message SET state = ?, at = ?, token = NULL "
                    "WHERE queue IN (SELECT id FROM queue) AND state = ?",
                    (READY, self._clock.utcnow().timestamp(), LEASED),
                )
            # Written in any case, so that a file that cannot be written to is found out now.
            self.sqlite.execute("UPDATE machine SET boot = ?, seen = ?", (boot or known, now))
            self.sqlite.execute("COMMIT")
        except BaseException:
            if self.sqlite.in_transaction:
                self.sqlite.execute("ROLLBACK")
            raise


def check_sqlite(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> None:
    """Refuse an SQLite that is too old for us.

    Raises:
        ProtocolError: ``version`` is below ``OLDEST_SQLITE``.
    """
    if version < OLDEST_SQLITE:
        wanted, found = (".".join(map(str, numbers)) for numbers in (OLDEST_SQLITE, version))
        msg = f"brokerwq needs SQLite {wanted} or newer; this Python brings {found}"
        raise ProtocolError(msg)


def _identity_of(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116  -- once per transaction, and pathlib doubles its cost
    return found.st_dev, found.st_ino


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""

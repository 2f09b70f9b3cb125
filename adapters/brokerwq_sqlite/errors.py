"""SQLite's errors as brokerwq's."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from brokerwq.driver import Delivery
from brokerwq.errors import (
    ClosedError,
    ConnectionLostError,
    DriverError,
    LeaseLostError,
    MessageRefusedError,
    MessageTooLargeError,
    PermissionDeniedError,
    ProtocolError,
    QueueNotFoundError,
    StorageFullError,
    TransientError,
)

_PRIMARY = 0xFF
"""Extended result codes keep the primary code in their low byte (sqlite.org/rescode.html)."""

_NO_ROOM_BYTES = 256 * 1024


def code_of(exc: BaseException) -> int:
    """SQLite's primary result code; 0 where the error is not SQLite's own."""
    code: int = getattr(exc, "sqlite_errorcode", 0)
    return code & _PRIMARY


def keeps_connection(exc: BaseException) -> bool:
    """Whether the connection is as good as before ``exc``."""
    return code_of(exc) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG}


def translate(exc: Exception, path: str) -> DriverError:
    """What ``exc``, raised while working on ``path``, means."""
    explain = _BY_CODE.get(code_of(exc))
    if explain is not None:
        return explain(exc, path)
    if isinstance(exc, UnicodeError | OverflowError):
        return MessageRefusedError(f"SQLite cannot store the message: {exc}")
    if isinstance(exc, sqlite3.ProgrammingError):
        return _not_ours(exc, path)
    if isinstance(exc, sqlite3.Error):
        return TransientError(f"SQLite failed on {path}: {exc}")
    return DriverError(f"{type(exc).__name__} while working on {path}: {exc}")


def _busy(_: Exception, path: str) -> DriverError:
    return TransientError(f"{path} is being written to by another process for too long")


def _full(exc: Exception, path: str) -> DriverError:
    return StorageFullError(f"no room left for {path}: {exc}")


def _too_big(_: Exception, path: str) -> DriverError:
    return MessageTooLargeError(f"the message is larger than {path} can hold")


def _damaged(exc: Exception, path: str) -> DriverError:
    return ProtocolError(f"{path} is damaged or not an SQLite database: {exc}")


def _not_ours(exc: Exception, path: str) -> DriverError:
    return ProtocolError(f"{path} is not as brokerwq made it: {exc}")


def _read_only(exc: Exception, path: str) -> DriverError:
    return PermissionDeniedError(f"{path} cannot be written to: {reason(path) or exc}")


def _cannot_open(exc: Exception, path: str) -> DriverError:
    why = reason(path)
    if why:
        return PermissionDeniedError(f"{path} cannot be opened: {why}")
    if _is_full(path):
        return _full(exc, path)
    return ConnectionLostError(f"{path} cannot be opened: {exc}")


def _io_error(exc: Exception, path: str) -> DriverError:
    # A shared-memory file that cannot grow reports an input/output error, not a full disk.
    if _is_full(path):
        return _full(exc, path)
    return ConnectionLostError(f"input/output error on {path}: {exc}")


_BY_CODE: dict[int, Callable[[Exception, str], DriverError]] = {
    sqlite3.SQLITE_BUSY: _busy,
    sqlite3.SQLITE_LOCKED: _busy,
    sqlite3.SQLITE_FULL: _full,
    sqlite3.SQLITE_TOOBIG: _too_big,
    sqlite3.SQLITE_NOTADB: _damaged,
    sqlite3.SQLITE_CORRUPT: _damaged,
    sqlite3.SQLITE_FORMAT: _damaged,
    sqlite3.SQLITE_READONLY: _read_only,
    sqlite3.SQLITE_PERM: _read_only,
    sqlite3.SQLITE_AUTH: _read_only,
    sqlite3.SQLITE_CANTOPEN: _cannot_open,
    sqlite3.SQLITE_IOERR: _io_error,
    sqlite3.SQLITE_ERROR: _not_ours,
    sqlite3.SQLITE_CONSTRAINT: _not_ours,
    sqlite3.SQLITE_MISMATCH: _not_ours,
}


def reason(path: str) -> str:
    """Why ``path`` cannot be written to, as far as can be told; empty if it can."""
    folder = Path(path).parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    # Never by opening it: to close it would drop SQLite's locks on it in this process.
    if Path(path).exists() and not os.access(path, os.R_OK | os.W_OK):
        return "it may only be read" if os.access(path, os.R_OK) else "it may not be read"
    return "" if os.access(folder, os.W_OK) else f"the folder {folder} may only be read"


def _is_full(path: str) -> bool:
    try:
        return shutil.disk_usage(Path(path).parent).free < _NO_ROOM_BYTES
    except OSError:
        return False


def lease_lost(delivery: Delivery) -> LeaseLostError:
    """The lease of ``delivery`` has ended, or it was settled before."""
    return LeaseLostError(
        f"message {delivery.message.id!r:.200} of {delivery.queue} is no longer ours: "
        "its lease ended or it was settled before"
    )


def no_queue(name: str) -> QueueNotFoundError:
    """Nobody declared ``name``."""
    return QueueNotFoundError(f"no queue {name!r:.200} in the database; declare it first")


def no_dead_letter_queue(name: str) -> QueueNotFoundError:
    """``name`` came into being as a dead-letter queue and has none of its own."""
    return QueueNotFoundError(f"{name} has no dead-letter queue; declare it to give it one")


def closed(what: str) -> ClosedError:
    """``what`` is not open."""
    return ClosedError(f"the {what} is not open")


def forked(path: str) -> ClosedError:
    """Used in a child of the process that opened it."""
    return ClosedError(
        f"this driver of {path} was opened by the parent process, before the fork; "
        "open a new one in this process"
    )

"""Whether somebody has written to the database since we last asked, for next to nothing.

SQLite's own answer, ``PRAGMA data_version``, takes and returns file locks: five times the cost
of one ``stat`` of the write-ahead log, to which every commit of every process writes. Opening
that file, or any other of SQLite's, is out of the question: closing it again would drop all
the locks that SQLite holds on it in this process.
"""

from __future__ import annotations

import os
import time
from typing import Final

_GRAIN_NANOSECONDS: Final = 50_000_000
"""File systems stamp with the kernel's tick, 1 to 10 ms: two writes may carry one stamp."""

_LOOK_ANYWAY: Final = 50
"""Ask SQLite after so many quiet times, whatever the file system says."""


class Watch:
    """Compares what the file system knows of the write-ahead log with the last time."""

    def __init__(self, path: str) -> None:
        self._wal = f"{path}-wal"
        self._mark: tuple[int, int, int] | None = None
        self._may_be_shared = True
        self._quiet = 0

    def has_news(self) -> bool:
        """Whether a commit may have happened since the last call; wrong only in saying yes."""
        try:
            found = os.stat(self._wal)  # noqa: PTH116  -- many times a second; pathlib is slower
        except OSError:
            self._mark = None
            return True
        mark = (found.st_mtime_ns, found.st_size, found.st_ino)
        has_changed = mark != self._mark or self._may_be_shared
        self._mark = mark
        # A later write can carry this very stamp only while the stamp is fresh. Files are
        # stamped by the machine's wall clock, so that is the one to compare with.
        self._may_be_shared = abs(time.time_ns() - found.st_mtime_ns) < _GRAIN_NANOSECONDS
        self._quiet = 0 if has_changed else (self._quiet + 1) % _LOOK_ANYWAY
        return has_changed or self._quiet == 0

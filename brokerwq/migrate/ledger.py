"""The ledger: which message was moved, by its id, so that nothing can get lost unseen.

A SQLite file that all movers of a migration share. For each message it counts how often it was
sent to the target and how often its source copy was deleted afterwards. While the first number
is ahead, a mover died in between: who meets that message at the source again only deletes it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.errors import ConfigError, StoreError, StoreUnavailableError
from brokerwq.migrate.entry import Entry, Moved, QueueCounts, Session
from brokerwq.migrate.ledger_file import (
    MigrationRecord,
    entry_of,
    in_transaction,
    open_file,
    path_of,
    record_of,
    session_of,
    stamp,
)
from brokerwq.migrate.pair import Direction

T = TypeVar("T")

_BUSY_SECONDS: Final = 30.0
_CHUNK: Final = 500


class Ledger:
    """See the module. Use it as an async context manager, or call ``open`` and ``aclose``.

    Args:
        url: ``sqlite:///relative.db`` or ``sqlite:////absolute.db``.
        clock: For the times that are written.
    """

    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.url = url
        self._path = path_of(url)
        self._clock = clock
        self._db: sqlite3.Connection | None = None
        self._lock = asyncio.Lock()
        self._session: int | None = None

    # -- opening --------------------------------------------------------------------------

    async def open(self, record: MigrationRecord, *, create: bool) -> None:
        """Open the file and make sure that it is about this migration.

        Args:
            record: The migration; queues that the ledger does not know yet are added.
            create: Whether a missing file is made.

        Raises:
            ConfigError: it is about another migration, or missing and may not be made.
            StoreError: it is no ledger, or of another version.
        """
        await self._run(lambda: self._open(record, create=create))

    def _open(self, record: MigrationRecord, *, create: bool) -> None:
        path = Path(self._path)
        is_new = not path.exists() or not path.stat().st_size
        if is_new and not create:
            msg = f"there is no ledger {self._path}: nothing has been moved by one of that name"
            raise ConfigError(msg)
        self._db = open_file(self._path, record, self._now())

    async def known(self) -> MigrationRecord | None:
        """The migration that the ledger is about; None if there is no ledger yet.

        Raises:
            ConfigError, StoreError: it is no ledger.
        """
        return await self._run(lambda: record_of(self._path))

    async def aclose(self) -> None:
        """Close the file."""
        db, self._db = self._db, None
        if db is not None:
            await asyncio.to_thread(db.close)

    # -- movers ---------------------------------------------------------------------------

    async def begin(self, direction: Direction) -> int:
        """Note that a mover has begun; how many have begun before and never ended.

        Those have died, or are at work now: a message that one of them held shows one receive
        more for each.

        Raises:
            ConfigError: the migration is finished.
        """
        now = self._now()

        def begin(db: sqlite3.Connection) -> int:
            (closed,) = db.execute("SELECT closed_at FROM migration").fetchone()
            if closed is not None:
                msg = (
                    f"this migration was finished at {stamp(closed)}; "
                    "another one needs another ledger (--ledger)"
                )
                raise ConfigError(msg)
            (others,) = db.execute(
                "SELECT count(*) FROM session WHERE direction = ? AND ended_at IS NULL",
                (direction,),
            ).fetchone()
            cursor = db.execute(
                "INSERT INTO session (direction, host, pid, started_at, seen_at) "
                "VALUES (?, ?, ?, ?, ?)",
                (direction, socket.gethostname(), os.getpid(), now, now),
            )
            self._session = cursor.lastrowid
            return int(others)

        return await self._write(begin)

    async def show(self, direction: Direction) -> int:
        """Note that this mover is alive; how many others have not ended, see ``begin``."""
        now, session = self._now(), self._session

        def show(db: sqlite3.Connection) -> int:
            db.execute("UPDATE session SET seen_at = ? WHERE id = ?", (now, session))
            (others,) = db.execute(
                "SELECT count(*) FROM session WHERE direction = ? AND ended_at IS NULL AND id != ?",
                (direction, session),
            ).fetchone()
            return int(others)

        return await self._write(show)

    async def end(self) -> None:
        """Note that this mover has ended and holds nothing any more."""
        now, session = self._now(), self._session

        def end(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE session SET ended_at = ?, seen_at = ? WHERE id = ?", (now, now, session)
            )

        await self._write(end)

    async def sessions(self) -> list[Session]:
        """The movers that have ever begun."""
        now = self._now()

        def read(db: sqlite3.Connection) -> list[Session]:
            rows = db.execute(
                "SELECT id, direction, host, pid, started_at, seen_at, ended_at FROM session "
                "ORDER BY id"
            )
            return [session_of(row, now) for row in rows]

        return await self._read(read)

    # -- messages -------------------------------------------------------------------------

    async def pending(
        self, direction: Direction, queue: str, ids: Sequence[str], *, settled: bool = False
    ) -> dict[Moved, int]:
        """Which of ``ids`` were sent more often than they were deleted, and by how much.

        If ``settled``, also what was sent and is deleted, with 0.

        With the digest of what was sent: other programs may give one id to two messages, and
        having sent one of them is no reason to delete the other.
        """

        def read(db: sqlite3.Connection) -> dict[Moved, int]:
            found: dict[Moved, int] = {}
            for start in range(0, len(ids), _CHUNK):
                chunk = ids[start : start + _CHUNK]
                marks = ",".join("?" * len(chunk))
                rows = db.execute(
                    "SELECT id, digest, pending FROM entry WHERE direction = ? "  # noqa: S608
                    f"AND queue = ? AND (pending > 0 OR (? AND done > 0)) AND id IN ({marks})",
                    (direction, queue, settled, *chunk),
                )
                found.update({Moved(id_, digest): pending for id_, digest, pending in rows})
            return found

        return await self._read(read)

    async def sent(self, direction: Direction, queue: str, moved: Iterable[Moved]) -> None:
        """The target has accepted these; their source copies are still to be deleted."""
        now = self._now()
        rows = [(direction, queue, each.id, each.digest, now) for each in moved]
        other = "back" if direction == "forth" else "forth"

        def write(db: sqlite3.Connection) -> None:
            db.executemany(
                "INSERT INTO entry (direction, queue, id, digest, pending, done, at) "
                "VALUES (?, ?, ?, ?, 1, 0, ?) ON CONFLICT (direction, queue, id) DO UPDATE SET "
                "pending = pending + 1, digest = excluded.digest, at = excluded.at, refusal = NULL",
                rows,
            )
            # The one side was not empty, and the other is not any more.
            db.execute("DELETE FROM emptiness WHERE queue = ?", (queue,))
            # Where it came from by the other direction it has just been seen: what a mover that
            # died had left open there is settled.
            if db.execute("SELECT 1 FROM entry WHERE direction = ? LIMIT 1", (other,)).fetchone():
                db.executemany(
                    "UPDATE entry SET done = done + pending, pending = 0 "
                    "WHERE direction = ? AND queue = ? AND id = ? AND pending > 0",
                    [(other, queue, row[2]) for row in rows],
                )

        await self._write(write)

    async def deleted(self, direction: Direction, queue: str, ids: Sequence[str]) -> None:
        """The source copies of these are deleted."""

        def write(db: sqlite3.Connection) -> None:
            db.executemany(
                "UPDATE entry SET pending = max(pending - 1, 0), done = done + 1 "
                "WHERE direction = ? AND queue = ? AND id = ?",
                [(direction, queue, id_) for id_ in ids],
            )

        await self._write(write)

    async def refused(
        self, direction: Direction, queue: str, refusals: Sequence[tuple[Moved, str]]
    ) -> list[int]:
        """These do not fit, and why; how often each has been met by now."""
        now = self._now()

        def write(db: sqlite3.Connection) -> list[int]:
            seen: list[int] = []
            for each, reason in refusals:
                row = db.execute(
                    "INSERT INTO entry "
                    "(direction, queue, id, digest, pending, done, at, refusal, sightings) "
                    "VALUES (?, ?, ?, ?, 0, 0, ?, ?, 1) "
                    "ON CONFLICT (direction, queue, id) DO UPDATE SET digest = excluded.digest, "
                    "refusal = excluded.refusal, at = excluded.at, sightings = sightings + 1 "
                    "RETURNING sightings",
                    (direction, queue, each.id, each.digest, now, reason[:500]),
                ).fetchone()
                seen.append(int(row[0]))
            return seen

        return await self._write(write)

    async def parked(self, direction: Direction, queue: str, delays: Mapping[str, float]) -> None:
        """These misfits were put back, out of the way for so many seconds; by their ids."""
        rows = [(self._now() + delay, direction, queue, id_) for id_, delay in delays.items()]
        statement = "UPDATE entry SET parked_until = ? WHERE direction = ? AND queue = ? AND id = ?"
        await self._write(lambda db: db.executemany(statement, rows))

    async def misfits(self, direction: Direction, queue: str) -> dict[Moved, bool]:
        """What was refused, and whether it is still out of the way, so that no look meets it."""
        now = self._now()

        def read(db: sqlite3.Connection) -> dict[Moved, bool]:
            rows = db.execute(
                "SELECT id, digest, parked_until FROM entry "
                "WHERE direction = ? AND queue = ? AND refusal IS NOT NULL",
                (direction, queue),
            )
            return {Moved(id_, digest): until > now for id_, digest, until in rows}

        return await self._read(read)

    async def settle_pending(self, direction: Direction, queue: str) -> int:
        """What movers that died had left open is done: the source is known to be empty."""

        def write(db: sqlite3.Connection) -> int:
            return db.execute(
                "UPDATE entry SET done = done + pending, pending = 0 "
                "WHERE direction = ? AND queue = ? AND pending > 0",
                (direction, queue),
            ).rowcount

        return await self._write(write)

    async def counts(self, direction: Direction) -> dict[str, QueueCounts]:
        """How many messages of each queue were moved, left open and refused."""

        def read(db: sqlite3.Connection) -> dict[str, QueueCounts]:
            rows = db.execute(
                "SELECT queue, sum(done + pending > 0), sum(done + pending), sum(pending > 0), "
                "sum(refusal IS NOT NULL) FROM entry WHERE direction = ? GROUP BY queue",
                (direction,),
            )
            return {
                queue: QueueCounts(moved=moved, copies=copies, pending=pending, refused=refused)
                for queue, moved, copies, pending, refused in rows
            }

        return await self._read(read)

    async def entries(self, queue: str) -> list[Entry]:
        """What is known of each message of ``queue``: the last thing that was done with it."""

        def read(db: sqlite3.Connection) -> list[Entry]:
            rows = db.execute(
                "SELECT id, direction, digest, pending, done, refusal, max(at) FROM entry "
                "WHERE queue = ? GROUP BY id ORDER BY id",
                (queue,),
            )
            return [entry_of(row) for row in rows]

        return await self._read(read)

    # -- the old side ---------------------------------------------------------------------

    async def looked(self, direction: Direction, queue: str, *, empty: bool) -> float | None:
        """Note a look at the side that is to become empty; since when it is, in seconds.

        None if it is not.
        """
        now = self._now()

        def write(db: sqlite3.Connection) -> float | None:
            if not empty:
                db.execute(
                    "DELETE FROM emptiness WHERE direction = ? AND queue = ?", (direction, queue)
                )
                return None
            db.execute(
                "INSERT INTO emptiness (direction, queue, since) VALUES (?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (direction, queue, now),
            )
            (since,) = db.execute(
                "SELECT since FROM emptiness WHERE direction = ? AND queue = ?", (direction, queue)
            ).fetchone()
            return max(0.0, now - float(since))

        return await self._write(write)

    async def close_migration(self) -> None:
        """The migration is finished: no mover may begin any more."""
        now = self._now()

        def write(db: sqlite3.Connection) -> None:
            db.execute("UPDATE migration SET closed_at = ? WHERE closed_at IS NULL", (now,))

        await self._write(write)

    async def closed_at(self) -> datetime | None:
        """When the migration was finished; None if it is not."""

        def read(db: sqlite3.Connection) -> datetime | None:
            (closed,) = db.execute("SELECT closed_at FROM migration").fetchone()
            return None if closed is None else datetime.fromtimestamp(closed, UTC)

        return await self._read(read)

    # -- calls ----------------------------------------------------------------------------

    def _now(self) -> float:
        return self._clock.utcnow().timestamp()

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._run(lambda: work(self._opened()))

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._run(lambda: in_transaction(self._opened(), work))

    async def _run(self, work: Callable[[], T]) -> T:
        # A transaction is carried out whole, though its caller be cancelled.
        task = asyncio.ensure_future(self._locked(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            with suppress(BaseException):
                await task
            raise

    async def _locked(self, work: Callable[[], T]) -> T:
        async with self._lock:
            try:
                return await asyncio.to_thread(work)
            except sqlite3.OperationalError as exc:
                msg = f"the ledger {self._path} cannot be used: {exc}"
                raise StoreUnavailableError(msg) from exc
            except sqlite3.DatabaseError as exc:
                msg = f"{self._path} is no ledger of a migration: {exc}"
                raise StoreError(msg) from exc

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            msg = "the ledger is not open"
            raise StoreError(msg)
        return self._db

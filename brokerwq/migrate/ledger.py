"""The ledger: which message was moved, by its id, so that nothing can get lost unseen.

All movers of a migration share it. For each message it counts how often it was sent to the
target and how often its source copy was deleted afterwards. While the first number is ahead, a
mover died in between: who meets that message at the source again only deletes it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.errors import ConfigError
from brokerwq.migrate.entry import Entry, Moved, QueueCounts, Session
from brokerwq.migrate.ledger_access import LedgerAccess
from brokerwq.migrate.ledger_database import Row, Statements, database_at
from brokerwq.migrate.pair import Direction

_CHUNK: Final = 500


class Ledger(LedgerAccess):
    """See the module. Use ``open`` and ``aclose``.

    Args:
        url: ``sqlite:///relative.db`` or ``sqlite:////absolute.db`` for the movers of one machine;
            ``postgresql://user@host/database?schema=NAME`` for those of several.
        clock: For the times that are written.

    Raises:
        ConfigError: ``url`` names no place for a ledger.
        AdapterMissingError: the client library of its database is not installed.
    """

    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(database_at(url, clock))
        self._session: int | None = None

    # -- movers ---------------------------------------------------------------------------

    async def begin(self, direction: Direction) -> int:
        """Note that a mover has begun; how many have begun before and never ended.

        Those have died, or are at work now: a message that one of them held shows one receive
        more for each.

        Raises:
            ConfigError: the migration is finished.
        """

        def begin(db: Statements) -> tuple[int, int]:
            ((closed,),) = db.fetch("SELECT closed_at FROM migration")
            if closed is not None:
                msg = (
                    f"this migration was finished at {_moment(closed):%Y-%m-%d %H:%M:%S UTC}; "
                    "another one needs another ledger (--ledger)"
                )
                raise ConfigError(msg)
            now = db.now()
            ((session,),) = db.fetch(
                "INSERT INTO session (direction, host, pid, started_at, seen_at) "
                "VALUES (?, ?, ?, ?, ?) RETURNING id",
                (direction, socket.gethostname(), os.getpid(), now, now),
            )
            return session, _others(db, direction, session)

        self._session, others = await self._write(begin)
        return others

    async def show(self, direction: Direction) -> int:
        """Note that this mover is alive; how many others have not ended, see ``begin``."""
        session = self._session

        def show(db: Statements) -> int:
            db.run("UPDATE session SET seen_at = ? WHERE id = ?", [(db.now(), session)])
            return _others(db, direction, session)

        return await self._write(show)

    async def end(self) -> None:
        """Note that this mover has ended and holds nothing any more."""
        session = self._session

        def end(db: Statements) -> None:
            now = db.now()
            db.run(
                "UPDATE session SET ended_at = ?, seen_at = ? WHERE id = ?", [(now, now, session)]
            )

        await self._write(end)

    async def sessions(self) -> list[Session]:
        """The movers that have ever begun."""

        def read(db: Statements) -> list[Session]:
            rows = db.fetch(
                "SELECT id, direction, host, pid, started_at, seen_at, ended_at FROM session "
                "ORDER BY id"
            )
            now = db.now()
            return [Session.of(row, now) for row in rows]

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

        def read(db: Statements) -> dict[Moved, int]:
            rows = _of_ids(db, ("digest", "pending", "done"), direction, queue, ids)
            return {
                Moved(id_, digest): pending
                for id_, digest, pending, done in rows
                if pending > 0 or (settled and done > 0)
            }

        return await self._read(read)

    async def sent(self, direction: Direction, queue: str, moved: Iterable[Moved]) -> None:
        """The target has accepted these; their source copies are still to be deleted."""
        accepted = list(moved)
        other = "back" if direction == "forth" else "forth"

        def write(db: Statements) -> None:
            now = db.now()
            db.run(
                "INSERT INTO entry (direction, queue, id, digest, pending, done, at) "
                "VALUES (?, ?, ?, ?, 1, 0, ?) ON CONFLICT (direction, queue, id) DO UPDATE SET "
                "pending = entry.pending + 1, digest = excluded.digest, at = excluded.at, "
                "refusal = NULL",
                [(direction, queue, each.id, each.digest, now) for each in accepted],
            )
            # The one side was not empty, and the other is not any more.
            db.run("DELETE FROM emptiness WHERE queue = ?", [(queue,)])
            # Where it came from by the other direction it has just been seen: what a mover that
            # died had left open there is settled.
            if db.fetch("SELECT 1 FROM entry WHERE direction = ? LIMIT 1", (other,)):
                db.run(
                    "UPDATE entry SET done = done + pending, pending = 0 "
                    "WHERE direction = ? AND queue = ? AND id = ? AND pending > 0",
                    [(other, queue, each.id) for each in accepted],
                )

        await self._write(write)

    async def deleted(self, direction: Direction, queue: str, ids: Sequence[str]) -> None:
        """The source copies of these are deleted."""
        statement = (
            "UPDATE entry SET pending = CASE WHEN pending > 0 THEN pending - 1 ELSE 0 END, "
            "done = done + 1 WHERE direction = ? AND queue = ? AND id = ?"
        )
        rows = [(direction, queue, id_) for id_ in ids]
        await self._write(lambda db: db.run(statement, rows))

    async def refused(
        self, direction: Direction, queue: str, refusals: Sequence[tuple[Moved, str]]
    ) -> list[int]:
        """These do not fit, and why; how often each has been met by now."""
        ids = [each.id for each, _ in refusals]

        def write(db: Statements) -> list[int]:
            now = db.now()
            db.run(
                "INSERT INTO entry "
                "(direction, queue, id, digest, pending, done, at, refusal, sightings) "
                "VALUES (?, ?, ?, ?, 0, 0, ?, ?, 1) "
                "ON CONFLICT (direction, queue, id) DO UPDATE SET digest = excluded.digest, "
                "refusal = excluded.refusal, at = excluded.at, sightings = entry.sightings + 1",
                [
                    (direction, queue, each.id, each.digest, now, reason[:500])
                    for each, reason in refusals
                ],
            )
            seen: dict[str, int] = dict(_of_ids(db, ("sightings",), direction, queue, ids))
            return [seen.get(id_, 1) for id_ in ids]

        return await self._write(write)

    async def parked(self, direction: Direction, queue: str, delays: Mapping[str, float]) -> None:
        """These misfits were put back, out of the way for so many seconds; by their ids."""
        statement = "UPDATE entry SET parked_until = ? WHERE direction = ? AND queue = ? AND id = ?"

        def write(db: Statements) -> None:
            now = db.now()
            db.run(
                statement, [(now + delay, direction, queue, id_) for id_, delay in delays.items()]
            )

        await self._write(write)

    async def misfits(self, direction: Direction, queue: str) -> dict[Moved, bool]:
        """What was refused, and whether it is still out of the way, so that no look meets it."""

        def read(db: Statements) -> dict[Moved, bool]:
            rows = db.fetch(
                "SELECT id, digest, parked_until FROM entry "
                "WHERE direction = ? AND queue = ? AND refusal IS NOT NULL",
                (direction, queue),
            )
            now = db.now()
            return {Moved(id_, digest): until > now for id_, digest, until in rows}

        return await self._read(read)

    async def away(self, direction: Direction, queue: str) -> int:
        """How many misfits are out of the way now, whichever mover put them there."""
        query = (
            "SELECT count(*) FROM entry WHERE direction = ? AND queue = ? "
            "AND refusal IS NOT NULL AND parked_until > ?"
        )
        return await self._read(lambda db: int(db.fetch(query, (direction, queue, db.now()))[0][0]))

    async def settle_pending(self, direction: Direction, queue: str) -> int:
        """What movers that died had left open is done: the source is known to be empty."""
        statement = (
            "UPDATE entry SET done = done + pending, pending = 0 "
            "WHERE direction = ? AND queue = ? AND pending > 0 RETURNING 1"
        )
        return len(await self._write(lambda db: db.fetch(statement, (direction, queue))))

    async def counts(self, direction: Direction) -> dict[str, QueueCounts]:
        """How many messages of each queue were moved, left open and refused."""

        def read(db: Statements) -> dict[str, QueueCounts]:
            rows = db.fetch(
                "SELECT queue, count(*) FILTER (WHERE done + pending > 0), sum(done + pending), "
                "count(*) FILTER (WHERE pending > 0), count(refusal) "
                "FROM entry WHERE direction = ? GROUP BY queue",
                (direction,),
            )
            return {
                queue: QueueCounts(moved=moved, copies=copies, pending=pending, refused=refused)
                for queue, moved, copies, pending, refused in rows
            }

        return await self._read(read)

    async def entries(self, queue: str) -> list[Entry]:
        """What is known of each message of ``queue``: the last thing that was done with it."""
        statement = (
            "SELECT id, direction, digest, pending, done, refusal FROM entry WHERE queue = ? "
            "ORDER BY id, at"
        )
        rows = await self._read(lambda db: db.fetch(statement, (queue,)))
        return list({row[0]: Entry.of(row) for row in rows}.values())

    # -- the old side ---------------------------------------------------------------------

    async def looked(self, direction: Direction, queue: str, *, empty: bool) -> float | None:
        """Note a look at the side that is to become empty; since when it is, in seconds.

        None if it is not.
        """
        which = direction, queue

        def write(db: Statements) -> float | None:
            if not empty:
                db.run("DELETE FROM emptiness WHERE direction = ? AND queue = ?", [which])
                return None
            now = db.now()
            db.run(
                "INSERT INTO emptiness (direction, queue, since) VALUES (?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                [(*which, now)],
            )
            ((since,),) = db.fetch(
                "SELECT since FROM emptiness WHERE direction = ? AND queue = ?", which
            )
            return max(0.0, now - float(since))

        return await self._write(write)

    async def close_migration(self) -> None:
        """The migration is finished: no mover may begin any more."""
        statement = "UPDATE migration SET closed_at = ? WHERE closed_at IS NULL"
        await self._write(lambda db: db.run(statement, [(db.now(),)]))

    async def closed_at(self) -> datetime | None:
        """When the migration was finished; None if it is not."""
        statement = "SELECT closed_at FROM migration"
        ((closed,),) = await self._read(lambda db: db.fetch(statement))
        return None if closed is None else _moment(closed)


def _others(db: Statements, direction: Direction, session: int | None) -> int:
    """How many other movers have not ended."""
    ((others,),) = db.fetch(
        "SELECT count(*) FROM session WHERE direction = ? AND ended_at IS NULL AND id != ?",
        (direction, session),
    )
    return int(others)


def _of_ids(
    db: Statements, columns: Sequence[str], direction: Direction, queue: str, ids: Sequence[str]
) -> list[Row]:
    """Those columns of what is known of ``ids``, behind the id."""
    # One search for each. Asked for all by IN, a server that has no statistics of a new table yet
    # takes that for few rows and reads them all.
    found: list[Row] = []
    which = "FROM entry WHERE direction = ? AND queue = ? AND id = column1"
    wanted = ", ".join(f"(SELECT {column} {which})" for column in columns)
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        marks = ",".join(["(?)"] * len(chunk))
        found += db.fetch(
            f"SELECT column1, {wanted} FROM (VALUES {marks}) AS asked",  # noqa: S608 -- our words
            (*(direction, queue) * len(columns), *chunk),
        )
    return [row for row in found if row[1] is not None]


def _moment(stored: float) -> datetime:
    return datetime.fromtimestamp(stored, UTC)

"""The work on messages, statement by statement. Runs on the engine's thread, in a transaction.

Every statement works on a whole batch where it can: Python gives up its global lock at each
step of a statement, and a thread that competes for it waits up to 5 ms to get it back.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from brokerwq.driver import Count, QueueStats
from brokerwq.errors import DriverError
from brokerwq_sqlite import sql
from brokerwq_sqlite.errors import no_dead_letter_queue, no_queue, translate
from brokerwq_sqlite.schema import DELAYED, READY
from brokerwq_sqlite.wire import INLINE_BODY_BYTES, Claimed, Row

Handle: TypeAlias = tuple[int, int]
"""``seq`` and the token of one lease: no other lease, of any message, ever has that token."""

PURGE_CHUNK: Final = 5000
_UNSTORABLE = (
    UnicodeError,
    OverflowError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)


class Moment(NamedTuple):
    """When a transaction runs: seconds on the wall clock and on the monotonic one."""

    wall: float
    now: float


class Outlook(NamedTuple):
    """What a claim would find, by a look that writes nothing.

    ``delayed_until`` is on the wall clock, ``leased_until`` on the monotonic one; infinity
    where there is none.
    """

    has_ready: bool
    delayed_until: float
    leased_until: float

    @property
    def has_timers(self) -> bool:
        """Whether there will be more without anybody writing."""
        return min(self.delayed_until, self.leased_until) < inf

    def has_work(self, moment: Moment) -> bool:
        """Whether a claim at ``moment`` would find anything."""
        return self.has_ready or self.is_due(moment)

    def is_due(self, moment: Moment) -> bool:
        """Whether a delay or a lease has ended at ``moment``."""
        return self.delayed_until <= moment.wall or self.leased_until <= moment.now


class Leased(NamedTuple):
    """What one claim took.

    Attributes:
        token: The token of each row is this plus its ``seq``.
        until: When the leases end, on the monotonic clock.
        rows: In order of ``at``; each holds the ``at`` that it had before.
    """

    token: int
    until: float
    rows: Sequence[Claimed]


def queue_id(db: sqlite3.Connection, name: str) -> int:
    """The id of a queue.

    Raises:
        QueueNotFoundError: there is none of that name.
    """
    found = db.execute("SELECT id FROM queue WHERE name = ?", (name,)).fetchone()
    if found is None:
        raise no_queue(name)
    identifier: int = found[0]
    return identifier


def send(
    db: sqlite3.Connection, moment: Moment, queue: str, rows: Sequence[Row], path: str
) -> list[DriverError | None]:
    """Insert ``rows``; an answer for each."""
    target = queue_id(db, queue)
    db.execute("SAVEPOINT send")
    try:
        _insert(db, moment, target, rows)
    except _UNSTORABLE:
        db.execute("ROLLBACK TO send")
    else:
        db.execute("RELEASE send")
        return [None] * len(rows)
    answers: list[DriverError | None] = []
    for row in rows:
        try:
            _insert(db, moment, target, [row])
        except _UNSTORABLE as exc:
            answers.append(translate(exc, path))
        else:
            answers.append(None)
    db.execute("RELEASE send")
    return answers


def _insert(db: sqlite3.Connection, moment: Moment, queue: int, rows: Sequence[Row]) -> None:
    if any(len(row[-1]) > INLINE_BODY_BYTES for row in rows):
        for row in rows:
            _insert_one(db, moment, queue, row)
        return
    at = 0
    while at < len(rows):
        # Powers of two: a handful of statements, prepared once, for batches of any size.
        size = min(1 << (len(rows) - at).bit_length() - 1, sql.MOST_ROWS)
        values = chain.from_iterable(
            (queue, *_place(moment, row[0]), moment.wall, *row[1:]) for row in rows[at : at + size]
        )
        db.execute(sql.INSERT[size], tuple(values))
        at += size


def _insert_one(db: sqlite3.Connection, moment: Moment, queue: int, row: Row) -> None:
    delay, *columns, body = row
    is_large = len(body) > INLINE_BODY_BYTES
    inline = None if is_large else body
    added = db.execute(
        sql.INSERT[1], (queue, *_place(moment, delay), moment.wall, *columns, inline)
    )
    if is_large:
        db.execute(sql.INSERT_LARGE, (added.lastrowid, body))


def look(db: sqlite3.Connection, queue: int) -> Outlook:
    """What a claim would find in ``queue``."""
    has_ready, delayed, leased = db.execute(sql.LOOK, {"queue": queue}).fetchone()
    return Outlook(
        bool(has_ready), inf if delayed is None else delayed, inf if leased is None else leased
    )


def claim(db: sqlite3.Connection, moment: Moment, queue: int, most: int, lease: float) -> Leased:
    """Lease up to ``most`` ready rows."""
    if look(db, queue).is_due(moment):
        db.execute(sql.SWEEP, {"queue": queue, "wall": moment.wall, "now": moment.now})
    rows = _rows(db, sql.SELECT, (queue, most))
    token = secrets.randbits(62)
    until = moment.now + lease
    if rows:
        db.execute(sql.LEASE, (until, token, _json(row.seq for row in rows)))
    return Leased(token, until, rows)


def read(db: sqlite3.Connection, queue: str, after: int, most: int) -> list[Claimed]:
    """Up to ``most`` rows behind ``after``, whatever their state, and as they are."""
    return _rows(db, sql.READ, (queue_id(db, queue), after, most))


def _rows(db: sqlite3.Connection, query: str, parameters: Sequence[int]) -> list[Claimed]:
    try:
        rows = _select(db, query, parameters)
    except sqlite3.OperationalError as exc:
        if "decode" not in str(exc):
            raise
        # Somebody else stored text that is not UTF-8: it shall become a defect, not an outage.
        db.text_factory = _lenient_text
        try:
            rows = _select(db, query, parameters)
        finally:
            db.text_factory = str
    return _with_large_bodies(db, rows)


def _select(db: sqlite3.Connection, query: str, parameters: Sequence[int]) -> list[Claimed]:
    return [Claimed._make(row) for row in db.execute(query, parameters)]


def _with_large_bodies(db: sqlite3.Connection, rows: list[Claimed]) -> list[Claimed]:
    apart = [row.seq for row in rows if row.body is None]
    if not apart:
        return rows
    bodies: dict[int, Any] = dict(db.execute(sql.SELECT_LARGE, (_json(apart),)).fetchall())
    return [row._replace(body=bodies.get(row.seq)) if row.body is None else row for row in rows]


def _lenient_text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def unclaim(db: sqlite3.Connection, leased: Leased) -> None:
    """Undo a claim that nobody got to see: as if it had never been."""
    db.executemany(sql.UNCLAIM, [(row.at, row.seq, leased.token + row.seq) for row in leased.rows])


def ack(db: sqlite3.Connection, moment: Moment, handles: Sequence[Handle]) -> list[bool]:
    """Delete what is still leased; an answer for each."""
    return _settle_all(db, moment, handles, (sql.ACK_ALL, sql.ACK_ONE), ())


def extend(
    db: sqlite3.Connection, moment: Moment, handles: Sequence[Handle], seconds: float
) -> list[bool]:
    """Move the end of what is still leased; an answer for each."""
    until = moment.now + seconds
    return _settle_all(db, moment, handles, (sql.EXTEND_ALL, sql.EXTEND_ONE), (until,))


def _settle_all(
    db: sqlite3.Connection,
    moment: Moment,
    handles: Sequence[Handle],
    statements: tuple[str, str],
    parameters: tuple[float, ...],
) -> list[bool]:
    for_all, for_one = statements
    if len(handles) > 1:
        seqs, tokens = (_json(column) for column in zip(*handles, strict=True))
        db.execute("SAVEPOINT settle")
        changed = db.execute(for_all, (*parameters, seqs, tokens, moment.now))
        if changed.rowcount == len(handles):
            db.execute("RELEASE settle")
            return [True] * len(handles)
        # Some lease is lost: which, only one statement each can tell.
        db.execute("ROLLBACK TO settle")
        db.execute("RELEASE settle")
    return [_settle(db, moment, handle, for_one, parameters) for handle in handles]


def _settle(
    db: sqlite3.Connection,
    moment: Moment,
    handle: Handle,
    statement: str,
    parameters: Sequence[object],
) -> bool:
    return db.execute(statement, (*parameters, *handle, moment.now)).rowcount == 1


def release(
    db: sqlite3.Connection, moment: Moment, handles: Sequence[Handle], delays: Sequence[float]
) -> list[bool]:
    """Make what is still leased claimable after its delay; an answer for each."""
    return [
        _settle(db, moment, handle, sql.RELEASE, _place(moment, delay))
        for handle, delay in zip(handles, delays, strict=True)
    ]


def put_back(
    db: sqlite3.Connection,
    moment: Moment,
    handles: Sequence[Handle],
    delays: Sequence[float],
    envelopes: Sequence[str | None],
) -> list[bool]:
    """As ``release``, as a message that has not been received yet."""
    return [
        _settle(db, moment, handle, sql.PUT_BACK, (*_place(moment, delay), envelope))
        for handle, delay, envelope in zip(handles, delays, envelopes, strict=True)
    ]


def dead_letter(
    db: sqlite3.Connection,
    moment: Moment,
    queue: str,
    handles: Sequence[Handle],
    envelopes: Sequence[str | None],
) -> list[bool]:
    """Move what is still leased to the dead-letter queue of ``queue``; an answer for each.

    Raises:
        QueueNotFoundError: it has none.
    """
    found = db.execute("SELECT dead_letter FROM queue WHERE name = ?", (queue,)).fetchone()
    if found is None:
        raise no_queue(queue)
    if found[0] is None:
        raise no_dead_letter_queue(queue)
    return [
        _settle(db, moment, handle, sql.DEAD_LETTER, (found[0], moment.wall, moment.wall, envelope))
        for handle, envelope in zip(handles, envelopes, strict=True)
    ]


def _place(moment: Moment, delay: float) -> tuple[int, float]:
    return (DELAYED if delay > 0 else READY), moment.wall + delay


def inspect(db: sqlite3.Connection, moment: Moment, queue: str) -> QueueStats:
    """Count, by the index alone."""
    parameters = {"queue": queue_id(db, queue), "wall": moment.wall, "now": moment.now}
    ready, delayed, due, leased, expired, dead, sent, next_at = db.execute(
        sql.INSPECT, parameters
    ).fetchone()
    return QueueStats(
        ready=Count(ready + due + expired),
        leased=Count(leased),
        delayed=Count(delayed),
        dead=Count(dead),
        oldest_age=None if sent is None else max(0.0, moment.wall - sent),
        next_due=None if next_at is None else next_at - moment.wall,
    )


def hasten(db: sqlite3.Connection, moment: Moment, queue: str, beyond: float) -> int:
    """Make a part of what is due later than ``beyond`` seconds claimable; how many that were."""
    values = {
        "queue": queue_id(db, queue),
        "wall": moment.wall,
        "beyond": moment.wall + beyond,
        "most": PURGE_CHUNK,
    }
    return db.execute(sql.HASTEN, values).rowcount


def purge(db: sqlite3.Connection, moment: Moment, queue: str, last: int) -> int:
    """Delete up to ``PURGE_CHUNK`` claimable or delayed rows up to ``last``; how many it were."""
    return db.execute(
        sql.PURGE,
        {"queue": queue_id(db, queue), "now": moment.now, "last": last, "most": PURGE_CHUNK},
    ).rowcount


def last_seq(db: sqlite3.Connection) -> int:
    """The highest ``seq`` in use; 0 where there is none."""
    found: int | None = db.execute("SELECT max(seq) FROM message").fetchone()[0]
    return found or 0


def _json(numbers: Iterable[object]) -> str:
    return f"[{','.join(map(str, numbers))}]"

"""The tables of the SQLite store, and what is done to their rows inside a transaction.

Leases are kept on the machine's monotonic clock, which all processes of one boot share and
nobody can set; what must outlive a reboot is on the wall clock.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from brokerwq import envelope
from brokerwq.errors import StoreError
from brokerwq.idempotency.record import (
    Answer,
    Claim,
    Claimed,
    Record,
    State,
    next_fence,
    refusal,
)
from brokerwq.idempotency.store import Outgoing

VERSION: Final = "2"

SCHEMA: Final[Sequence[str]] = (
    "CREATE TABLE brokerwq_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE brokerwq_key (
    key BLOB PRIMARY KEY,
    worker TEXT NOT NULL,
    state INTEGER NOT NULL,
    owner BLOB NOT NULL,
    fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    lease_until REAL NOT NULL,
    payload BLOB NOT NULL,
    message_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    result TEXT,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL
) WITHOUT ROWID""",
    """CREATE TABLE brokerwq_outbox (
    seq INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    due_at REAL NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    taken_until REAL NOT NULL
)""",
    f"INSERT INTO brokerwq_meta VALUES ('schema', '{VERSION}'), ('boot', '')",
)

MIGRATIONS: Final[Mapping[str, Sequence[str]]] = {
    # Every job paid for an index that pruning alone has a use for.
    "1": (
        "DROP INDEX brokerwq_key_expiry",
        "UPDATE brokerwq_meta SET value = '2' WHERE name = 'schema'",
    ),
}
"""From an older version to the next one."""

_COLUMNS: Final = (
    "key, worker, state, owner, fence, attempt, lease_until, payload, message_id, "
    "generation, result, created_at, expires_at"
)
_OURS: Final = "WHERE key = ? AND owner = ? AND state = 1"
_VALUES: Final = f"INTO brokerwq_key ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,NULL,?,?)"
_ADD: Final = f"INSERT OR IGNORE {_VALUES}"
_REPLACE: Final = f"REPLACE {_VALUES}"
RELAY_SECONDS: Final = 30.0


class Moment(NamedTuple):
    """Now, on both clocks, in seconds."""

    wall: float
    steady: float


def version_of(db: sqlite3.Connection) -> str | None:
    """The version of the tables; None if there are none."""
    found = db.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'brokerwq_meta'"
    ).fetchone()
    if found is None:
        return None
    row = db.execute("SELECT value FROM brokerwq_meta WHERE name = 'schema'").fetchone()
    return "" if row is None else str(row[0])


def note_boot(db: sqlite3.Connection, boot: str) -> None:
    """End the leases of an earlier boot, whose clock readings mean nothing any more."""
    known = db.execute("SELECT value FROM brokerwq_meta WHERE name = 'boot'").fetchone()
    if known is not None and known[0] == boot:
        return
    db.execute("UPDATE brokerwq_key SET lease_until = 0 WHERE state = 1")
    db.execute("INSERT OR REPLACE INTO brokerwq_meta VALUES ('boot', ?)", (boot,))


def record_of(row: Sequence[Any], moment: Moment) -> Record:
    """The record in ``row``.

    Raises:
        StoreError: it is damaged.
    """
    try:
        return Record(
            key=bytes(row[0]),
            worker=str(row[1]),
            state=State(row[2]),
            owner=bytes(row[3]),
            fence=int(row[4]),
            attempt=int(row[5]),
            lease_left=float(row[6]) - moment.steady,
            payload=bytes(row[7]),
            message_id=str(row[8]),
            generation=int(row[9]),
            result=None if row[10] is None else str(row[10]),
            created_at=float(row[11]),
            expires_at=float(row[12]),
            is_expired=float(row[12]) <= moment.wall,
        )
    except (TypeError, ValueError) as exc:
        key = row[0].hex() if isinstance(row[0], bytes) else repr(row[0])
        msg = f"the record of key {key:.64} is damaged: {exc}; forget it to run its work again"
        raise StoreError(msg) from exc


def find(db: sqlite3.Connection, moment: Moment, key: bytes) -> Record | None:
    """The record of ``key``."""
    row = db.execute(f"SELECT {_COLUMNS} FROM brokerwq_key WHERE key = ?", (key,)).fetchone()
    return None if row is None else record_of(row, moment)


def claim(db: sqlite3.Connection, moment: Moment, wanted: Claim, state: State) -> Answer:
    """Claim in ``state``, or say what speaks against it."""
    fence = next_fence(0, int(moment.wall * 1000))
    # Nearly every key is new: not looked for first.
    added = db.execute(_ADD, _values(moment, wanted, state, fence, 1, moment.wall))
    if added.rowcount == 1:
        return Claimed(fence=fence, attempt=1, takeover=False)
    record = find(db, moment, wanted.key)
    if record is None:
        msg = "a record is neither there nor can it be added"
        raise StoreError(msg)
    against = refusal(record, wanted)
    if against is not None:
        return against
    live = not record.is_expired and record.state is State.IN_PROGRESS
    claimed = Claimed(
        fence=next_fence(record.fence, fence),
        attempt=record.attempt + 1 if live else 1,
        takeover=live and bool(record.owner),
    )
    created_at = record.created_at if live else moment.wall
    values = _values(moment, wanted, state, claimed.fence, claimed.attempt, created_at)
    db.execute(_REPLACE, values)
    return claimed


def _values(  # noqa: PLR0917 -- a row has many columns
    moment: Moment, wanted: Claim, state: State, fence: int, attempt: int, created_at: float
) -> tuple[Any, ...]:
    return (
        wanted.key,
        wanted.worker,
        int(state),
        wanted.owner,
        fence,
        attempt,
        moment.steady + wanted.lease,
        wanted.payload,
        wanted.message_id,
        wanted.generation,
        created_at,
        moment.wall + max(wanted.retention, wanted.lease),
    )


def extend(db: sqlite3.Connection, moment: Moment, key: bytes, owner: bytes, lease: float) -> bool:
    """See ``Store.extend``."""
    changed = db.execute(
        f"UPDATE brokerwq_key SET lease_until = ?, expires_at = max(expires_at, ?) {_OURS}",
        (moment.steady + lease, moment.wall + lease, key, owner),
    )
    return changed.rowcount == 1


def finish(  # noqa: PLR0917 -- a row has many columns
    db: sqlite3.Connection,
    moment: Moment,
    key: bytes,
    owner: bytes,
    state: State,
    retention: float,
    result: str | None,
) -> bool:
    """See ``Store.complete`` and ``Store.fail``."""
    changed = db.execute(
        f"UPDATE brokerwq_key SET state = ?, result = ?, expires_at = ? {_OURS}",
        (state, result, moment.wall + retention, key, owner),
    )
    return changed.rowcount == 1 or _is_so(db, key, owner, state)


def release(db: sqlite3.Connection, moment: Moment, key: bytes, owner: bytes) -> bool:
    """See ``Store.release``."""
    changed = db.execute(
        f"UPDATE brokerwq_key SET owner = x'', lease_until = ? {_OURS}",
        (moment.steady, key, owner),
    )
    return changed.rowcount == 1


def _is_so(db: sqlite3.Connection, key: bytes, owner: bytes, state: State) -> bool:
    found = db.execute(
        "SELECT 1 FROM brokerwq_key WHERE key = ? AND owner = ? AND state = ?", (key, owner, state)
    ).fetchone()
    return found is not None


def keep_result(db: sqlite3.Connection, key: bytes, result: str) -> None:
    """Write the result into a completed record."""
    db.execute("UPDATE brokerwq_key SET result = ? WHERE key = ?", (result, key))


def listed(
    db: sqlite3.Connection, moment: Moment, limit: int, state: State | None, worker: str | None
) -> list[Record]:
    """See ``Store.list``."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM brokerwq_key WHERE (?1 IS NULL OR state = ?1) "
        "AND (?2 IS NULL OR worker = ?2) ORDER BY created_at DESC LIMIT ?3",
        (state, worker, limit),
    ).fetchall()
    return [record_of(row, moment) for row in rows]


def forget(db: sqlite3.Connection, key: bytes) -> bool:
    """See ``Store.forget``."""
    return db.execute("DELETE FROM brokerwq_key WHERE key = ?", (key,)).rowcount == 1


_WINDOW: Final = 10_000


class Pruned(NamedTuple):
    """What one look for expired records has found.

    Attributes:
        removed: How many were removed.
        last: The last key that was looked at; None at the end of the table.
    """

    removed: int
    last: bytes | None


def prune(db: sqlite3.Connection, moment: Moment, limit: int, after: bytes) -> Pruned:
    """Remove up to ``limit`` expired records of the next some thousand keys behind ``after``."""
    window = db.execute(
        "SELECT max(key), count(*) FROM "
        "(SELECT key FROM brokerwq_key WHERE key > ? ORDER BY key LIMIT ?)",
        (after, _WINDOW),
    ).fetchone()
    if window[0] is None:
        return Pruned(0, None)
    last = bytes(window[0])
    expired = db.execute(
        "SELECT key FROM brokerwq_key WHERE key > ? AND key <= ? AND expires_at <= ? "
        "ORDER BY key LIMIT ?",
        (after, last, moment.wall, limit),
    ).fetchall()
    db.executemany("DELETE FROM brokerwq_key WHERE key = ?", expired)
    if len(expired) == limit:
        return Pruned(limit, bytes(expired[-1][0]))
    return Pruned(len(expired), last if window[1] == _WINDOW else None)


# -- outbox -------------------------------------------------------------------------------


def put_out(db: sqlite3.Connection, moment: Moment, outgoing: Sequence[Outgoing]) -> None:
    """Write into the outbox."""
    db.executemany(
        "INSERT INTO brokerwq_outbox (queue, due_at, headers, body, taken_until) "
        "VALUES (?, ?, ?, ?, 0)",
        [
            (
                each.queue,
                moment.wall + each.delay,
                json.dumps(envelope.encode(each.message)),
                each.message.body,
            )
            for each in outgoing
        ],
    )


def take_out(db: sqlite3.Connection, moment: Moment, limit: int) -> list[tuple[int, Outgoing]]:
    """Messages of the outbox, for the caller alone for ``RELAY_SECONDS``."""
    rows = db.execute(
        "UPDATE brokerwq_outbox SET taken_until = ? WHERE seq IN "
        "(SELECT seq FROM brokerwq_outbox WHERE taken_until <= ? ORDER BY seq LIMIT ?) "
        "RETURNING seq, queue, due_at, headers, body",
        (moment.steady + RELAY_SECONDS, moment.steady, limit),
    ).fetchall()
    taken: list[tuple[int, Outgoing]] = []
    for seq, queue, due_at, headers, body in sorted(rows):
        message, _ = envelope.decode(cast("dict[str, str]", json.loads(headers)), bytes(body))
        delay = max(0.0, due_at - moment.wall)
        taken.append((seq, Outgoing(queue=queue, message=message, delay=delay)))
    return taken


def sent_out(db: sqlite3.Connection, sent: Sequence[int], kept: Sequence[int]) -> None:
    """Remove what was sent, and let others try the rest."""
    db.executemany("DELETE FROM brokerwq_outbox WHERE seq = ?", [(seq,) for seq in sent])
    db.executemany(
        "UPDATE brokerwq_outbox SET taken_until = 0 WHERE seq = ?", [(seq,) for seq in kept]
    )

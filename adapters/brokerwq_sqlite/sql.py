"""The statements on messages.

Only constants of ours are put together here; whatever comes from outside is a parameter.
"""
# ruff: noqa: S608

from __future__ import annotations

from typing import Final

from brokerwq_sqlite.schema import DELAYED, LEASED, READY

MOST_ROWS: Final = 64
"""Of one insert; with more, SQLite before 3.32 has not enough parameters."""

_COLUMNS: Final = "queue, state, at, sent, id, type, content_type, created, headers, envelope, body"


def _insert(rows: int) -> str:
    row = f"({', '.join('?' for _ in _COLUMNS.split(','))})"
    return f"INSERT INTO message ({_COLUMNS}) VALUES {', '.join([row] * rows)}"


INSERT: Final = {1 << power: _insert(1 << power) for power in range(MOST_ROWS.bit_length())}
"""By number of rows."""

LOOK: Final = f"""
SELECT
    EXISTS (SELECT 1 FROM message WHERE queue = :queue AND state = {READY}),
    (SELECT min(at) FROM message WHERE queue = :queue AND state = {DELAYED}),
    (SELECT min(at) FROM message WHERE queue = :queue AND state = {LEASED})
"""

_SWEEP_LIMIT: Final = 1000

SWEEP: Final = f"""
UPDATE message
SET at = CASE state WHEN {DELAYED} THEN at ELSE :wall - (:now - at) END,
    state = {READY},
    token = NULL
WHERE seq IN (
    SELECT seq FROM (
        SELECT seq FROM message
        WHERE queue = :queue AND state = {DELAYED} AND at <= :wall
        ORDER BY at LIMIT {_SWEEP_LIMIT}
    )
    UNION ALL
    SELECT seq FROM (
        SELECT seq FROM message
        WHERE queue = :queue AND state = {LEASED} AND at <= :now
        ORDER BY at LIMIT {_SWEEP_LIMIT}
    )
)
"""
"""Makes ready what is due. Some of it, where there is much: a claim must be quick."""

SELECT: Final = f"""
SELECT seq, at, receives + 1, id, type, content_type, created, headers, envelope, body
FROM message
WHERE queue = ? AND state = {READY}
ORDER BY at, seq
LIMIT ?
"""

READ: Final = """
SELECT seq, at, receives, id, type, content_type, created, headers, envelope, body
FROM message
WHERE queue = ? AND seq > ?
ORDER BY seq
LIMIT ?
"""

SELECT_LARGE: Final = """
SELECT seq, body FROM large_body WHERE seq IN (SELECT value FROM json_each(?))
"""

INSERT_LARGE: Final = "INSERT INTO large_body VALUES (?, ?)"

LEASE: Final = f"""
UPDATE message
SET state = {LEASED}, at = ?, token = ? + seq, receives = receives + 1
WHERE seq IN (SELECT value FROM json_each(?))
"""

UNCLAIM: Final = f"""
UPDATE message
SET state = {READY}, at = ?, token = NULL, receives = receives - 1
WHERE seq = ? AND token = ?
"""

_HELD_ONE = f"WHERE seq = ? AND token = ? AND state = {LEASED} AND at > ?"
_HELD_ALL = f"""
WHERE seq IN (SELECT value FROM json_each(?))
    AND token IN (SELECT value FROM json_each(?))
    AND state = {LEASED} AND at > ?
"""

ACK_ONE: Final = f"DELETE FROM message {_HELD_ONE}"
ACK_ALL: Final = f"DELETE FROM message {_HELD_ALL}"
EXTEND_ONE: Final = f"UPDATE message SET at = ? {_HELD_ONE}"
EXTEND_ALL: Final = f"UPDATE message SET at = ? {_HELD_ALL}"

RELEASE: Final = f"UPDATE message SET state = ?, at = ?, token = NULL {_HELD_ONE}"

PUT_BACK: Final = f"""
UPDATE message SET state = ?, at = ?, envelope = ?, token = NULL, receives = 0 {_HELD_ONE}
"""

DEAD_LETTER: Final = f"""
UPDATE message
SET queue = ?, state = {READY}, at = ?, sent = ?, envelope = ?, token = NULL, receives = 0
{_HELD_ONE}
"""

_NOT_BEFORE = """'$."bwq-not-before"'"""
HASTEN: Final = f"""
UPDATE message
SET state = {READY},
    envelope = json_set(
        coalesce(envelope, '{{}}'),
        {_NOT_BEFORE},
        CAST(
            max(
                CAST(at * 1000 AS INTEGER) + 1,
                CAST(coalesce(json_extract(envelope, {_NOT_BEFORE}), 0) AS INTEGER)
            ) AS TEXT
        )
    ),
    at = :wall
WHERE seq IN (
    SELECT seq FROM message
    WHERE queue = :queue AND state = {DELAYED} AND at > :beyond
    ORDER BY at LIMIT :most
)
"""
"""Makes ready what is due later, and writes on it when that is."""

_COUNT = "SELECT count(*) FROM message WHERE queue = :queue AND state ="
_FIRST = "SELECT sent FROM message WHERE queue = :queue AND state ="

INSPECT: Final = f"""
SELECT
    ({_COUNT} {READY}),
    ({_COUNT} {DELAYED} AND at > :wall),
    ({_COUNT} {DELAYED} AND at <= :wall),
    ({_COUNT} {LEASED} AND at > :now),
    ({_COUNT} {LEASED} AND at <= :now),
    (SELECT count(*) FROM message WHERE queue = (SELECT dead_letter FROM queue WHERE id = :queue)),
    (SELECT min(sent) FROM (
        SELECT * FROM ({_FIRST} {READY} ORDER BY at LIMIT 1)
        UNION ALL SELECT * FROM ({_FIRST} {DELAYED} AND at <= :wall ORDER BY at LIMIT 1)
        UNION ALL SELECT * FROM ({_FIRST} {LEASED} AND at <= :now ORDER BY at LIMIT 1)
    )),
    (SELECT min(at) FROM message WHERE queue = :queue AND state = {DELAYED} AND at > :wall)
"""

PURGE: Final = f"""
DELETE FROM message WHERE seq IN (
    SELECT seq FROM message
    WHERE queue = :queue AND seq <= :last
        AND (state IN ({READY}, {DELAYED}) OR (state = {LEASED} AND at <= :now))
    LIMIT :most
)
"""

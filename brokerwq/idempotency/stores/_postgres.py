"""Records in PostgreSQL, whatever the client library: the statements, and what they mean.

Placeholders are ``$1``, ``$2`` …, as the server has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from uuid import UUID

from brokerwq import envelope
from brokerwq.errors import StoreError
from brokerwq.idempotency.record import Claim, Record, State
from brokerwq.idempotency.store import Outgoing

VERSION: Final = "1"
MIGRATIONS: Final[Mapping[str, Sequence[str]]] = {}
"""From an older version to the next one; the last statement of each notes the version."""

SCHEMA: Final[Sequence[str]] = (
    "CREATE TABLE IF NOT EXISTS brokerwq_meta (name text PRIMARY KEY, value text NOT NULL)",
    """CREATE TABLE IF NOT EXISTS brokerwq_key (
    key uuid PRIMARY KEY,
    payload uuid NOT NULL,
    fence bigint NOT NULL,
    lease_until timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    attempt integer NOT NULL,
    generation integer NOT NULL,
    state smallint NOT NULL,
    owner bytea NOT NULL,
    worker text NOT NULL,
    message_id text NOT NULL,
    result text
)""",
    "CREATE INDEX IF NOT EXISTS brokerwq_key_expiry ON brokerwq_key (expires_at)",
    """CREATE TABLE IF NOT EXISTS brokerwq_outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    due_at timestamptz NOT NULL,
    queue text NOT NULL,
    headers text NOT NULL,
    body bytea NOT NULL
)""",
    f"INSERT INTO brokerwq_meta VALUES ('schema', '{VERSION}') ON CONFLICT DO NOTHING",
)

# Two that make the tables at the same moment would get in each other's way.
SCHEMA_LOCK: Final = "SELECT pg_advisory_xact_lock(8103246710236791)"

LOCK_MS: Final = 500
"""For so long a claim waits for a transaction that has the key; then the key is busy."""

_NOW: Final = "clock_timestamp()"
_SECONDS: Final = "make_interval(secs => {}::float8)"


def _in_seconds(parameter: str) -> str:
    return f"{_NOW} + {_SECONDS.format(parameter)}"


_LIVE: Final = f"(k.state = 1 AND NOT (k.expires_at <= {_NOW} AND k.lease_until <= {_NOW}))"
_EXPIRED: Final = f"(k.expires_at <= {_NOW} AND NOT (k.state = 1 AND k.lease_until > {_NOW}))"
_NEWER: Final = "(k.message_id <> excluded.message_id OR k.generation < excluded.generation)"

# One statement: whoever comes second waits for the first's row, and then sees it. The old row
# is read beside it for what is only told, not decided. The lock's bound ends with the claim:
# what the handler waits for is its own affair.
CLAIM: Final = f"""
WITH old AS (
    SELECT k.owner <> '' AND {_LIVE} AS held FROM brokerwq_key AS k WHERE k.key = $1
)
INSERT INTO brokerwq_key AS k (key, worker, state, owner, fence, attempt, lease_until, payload,
    message_id, generation, result, created_at, expires_at)
VALUES ($1, $2, $3, $4, (extract(epoch FROM {_NOW}) * 1000)::bigint, 1, {_in_seconds("$5")}, $6,
    $7, $8, NULL, {_NOW}, {_in_seconds("greatest($9, $5)")})
ON CONFLICT (key) DO UPDATE SET worker = excluded.worker, state = excluded.state,
    owner = excluded.owner, fence = greatest(k.fence + 1, excluded.fence),
    attempt = CASE WHEN {_LIVE} THEN k.attempt + 1 ELSE 1 END,
    lease_until = excluded.lease_until, payload = excluded.payload,
    message_id = excluded.message_id, generation = excluded.generation, result = NULL,
    created_at = CASE WHEN {_LIVE} THEN k.created_at ELSE excluded.created_at END,
    expires_at = excluded.expires_at
WHERE {_EXPIRED} OR (k.payload = excluded.payload AND (
    (k.state = 3 AND {_NEWER})
    OR (k.state = 1 AND (k.owner = '' OR (k.lease_until <= {_NOW} AND ($10 OR {_NEWER}))))
))
RETURNING k.fence, k.attempt, coalesce((SELECT held FROM old), false),
    pg_current_xact_id()::text, set_config('lock_timeout', '0', true)
"""

MARK: Final = CLAIM.replace(", set_config('lock_timeout', '0', true)", "")
"""``CLAIM`` in a transaction of somebody else's, whose settings are not ours to change."""

_COLUMNS: Final = (
    "key, worker, state, owner, fence, attempt, "
    f"extract(epoch FROM lease_until - {_NOW})::float8, payload, message_id, generation, result, "
    "extract(epoch FROM created_at)::float8, extract(epoch FROM expires_at)::float8, "
    f"{_EXPIRED}"
)
FIND: Final = f"SELECT {_COLUMNS} FROM brokerwq_key AS k WHERE key = $1"
LIST: Final = (
    f"SELECT {_COLUMNS} FROM brokerwq_key AS k WHERE ($2::smallint IS NULL OR state = $2) "
    "AND ($3::text IS NULL OR worker = $3) ORDER BY created_at DESC LIMIT $1"
)
_OURS: Final = "WHERE key = $1 AND owner = $2 AND state = 1"
EXTEND: Final = f"UPDATE brokerwq_key SET lease_until = {_in_seconds('$3')} {_OURS} RETURNING 1"


def _kept(parameter: str) -> str:
    """When a record expires; as the claim has said where that is the same within a hundredth.

    A row whose indexed columns stay as they are is updated in its page, and no index grows.
    """
    margin = f"make_interval(secs => least({parameter}::float8 / 100, 3600))"
    until = _in_seconds(parameter)
    return (
        f"CASE WHEN expires_at BETWEEN {until} - {margin} AND {until} THEN expires_at "
        f"ELSE {until} END"
    )


FINISH: Final = f"""
WITH done AS (
    UPDATE brokerwq_key SET state = $3, result = $5, expires_at = {_kept("$4")} {_OURS}
    RETURNING 1
)
SELECT 1 FROM done UNION ALL
SELECT 1 FROM brokerwq_key WHERE key = $1 AND owner = $2 AND state = $3
"""
COMPLETE_FIRST: Final = f"""
UPDATE brokerwq_key SET state = 2, expires_at = {_kept("$3")} {_OURS}
RETURNING pg_current_xact_id()::text, set_config('lock_timeout', '0', true)
"""
RELEASE: Final = f"UPDATE brokerwq_key SET owner = '', lease_until = {_NOW} {_OURS} RETURNING 1"
KEEP_RESULT: Final = "UPDATE brokerwq_key SET result = $2 WHERE key = $1"
FORGET: Final = "DELETE FROM brokerwq_key WHERE key = $1 RETURNING 1"
PRUNE: Final = f"""
DELETE FROM brokerwq_key WHERE key IN (
    SELECT key FROM brokerwq_key AS k WHERE {_EXPIRED} ORDER BY expires_at LIMIT $1
    FOR UPDATE SKIP LOCKED
) RETURNING 1
"""
GUARD: Final = "SELECT pg_current_xact_id_if_assigned()::text"
MARKED: Final = "SELECT 1 FROM brokerwq_key WHERE key = $1 AND owner = $2 AND state = 2"
SCHEMA_VERSION: Final = (
    "SELECT value FROM brokerwq_meta WHERE name = 'schema' "
    "AND NOT EXISTS (SELECT FROM brokerwq_key, brokerwq_outbox WHERE false)"
)
PUT_OUT: Final = (
    "INSERT INTO brokerwq_outbox (queue, due_at, headers, body) "
    f"VALUES ($1, {_in_seconds('$2')}, $3, $4)"
)
# Not "what came after the last one": numbers become visible out of their order.
TAKE_OUT: Final = f"""
SELECT seq, queue, greatest(extract(epoch FROM due_at - {_NOW})::float8, 0), headers, body
FROM brokerwq_outbox ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED
"""
SENT_OUT: Final = "DELETE FROM brokerwq_outbox WHERE seq = ANY($1::bigint[])"

SESSION: Final[dict[str, str]] = {
    # A killed process is noticed while a statement runs, not only at its end.
    "client_connection_check_interval": "500ms",
    "lock_timeout": f"{LOCK_MS}ms",
    # A commit that a crash takes back after the message was acked is a lost job.
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
}
"""Parameters of every session, as measured; ``idle_in_transaction_session_timeout`` beside."""


def session_settings(idle_seconds: float) -> dict[str, str]:
    """The parameters of a session of ours, whose client may be silent for so long."""
    idle = f"{max(1, int(idle_seconds * 1000))}ms"
    return {**SESSION, "idle_in_transaction_session_timeout": idle}


def as_options(settings: Mapping[str, str], theirs: str = "") -> str:
    """``settings`` as libpq's ``options`` has them, and behind them those that the user gave."""
    escaped = {name: value.replace(" ", r"\ ") for name, value in settings.items()}
    return " ".join([*(f"-c {name}={value}" for name, value in escaped.items()), theirs]).strip()


def local_settings(idle_seconds: float) -> str:
    """A statement that sets the same for one transaction, in somebody else's session."""
    settings = session_settings(idle_seconds)
    del settings["default_transaction_isolation"]  # it is too late for that
    calls = (f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    return f"SELECT {', '.join(calls)}"


def claim_values(claim: Claim, state: State) -> tuple[Any, ...]:
    """The parameters of ``CLAIM``."""
    return (
        UUID(bytes=claim.key),
        claim.worker,
        int(state),
        claim.owner,
        claim.lease,
        UUID(bytes=claim.payload),
        claim.message_id,
        claim.generation,
        claim.retention,
        claim.takes_over,
    )


def record_of(row: Sequence[Any]) -> Record:
    """The record in a row of ``FIND`` or ``LIST``.

    Raises:
        StoreError: it is damaged.
    """
    try:
        return Record(
            key=row[0].bytes,
            worker=row[1],
            state=State(row[2]),
            owner=bytes(row[3]),
            fence=row[4],
            attempt=row[5],
            lease_left=row[6],
            payload=row[7].bytes,
            message_id=row[8],
            generation=row[9],
            result=row[10],
            created_at=row[11],
            expires_at=row[12],
            is_expired=row[13],
        )
    except (TypeError, ValueError, AttributeError) as exc:
        msg = f"the record of key {row[0]} is damaged: {exc}; forget it to run its work again"
        raise StoreError(msg) from exc


def outgoing_values(outgoing: Outgoing) -> tuple[Any, ...]:
    """The parameters of ``PUT_OUT``."""
    message = outgoing.message
    return outgoing.queue, outgoing.delay, json.dumps(envelope.encode(message)), message.body


def outgoing_of(row: Sequence[Any]) -> Outgoing:
    """The message in a row of ``TAKE_OUT``."""
    headers = cast("dict[str, str]", json.loads(row[3]))
    message, _ = envelope.decode(headers, bytes(row[4]))
    return Outgoing(queue=row[1], message=message, delay=row[2])


def check_version(found: str | None) -> None:
    """Refuse tables that are missing or of another version.

    Raises:
        StoreError: they are.
    """
    if found is None:
        msg = "the database has no tables of brokerwq: run brokerwq keys init"
        raise StoreError(msg)
    if found in MIGRATIONS:
        msg = f"the tables are of version {found}: run brokerwq keys init"
        raise StoreError(msg)
    if found != VERSION:
        msg = (
            f"the tables are of version {found}, and this brokerwq knows version {VERSION}: "
            "update the older one"
        )
        raise StoreError(msg)

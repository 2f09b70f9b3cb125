"""Records in Redis: one hash a key, and the scripts that change them.

A script is one step for everybody else, and reads the server's clock; each touches one key, so
that a cluster takes them. The fields have one letter, since they are stored with each record:

==  ==========  ==  ==========================  ==  ====================
w   worker      a   attempt                     g   generation
s   state       l   end of the lease, in ms     r   result, or a reason
o   owner       p   payload                     c   first claim, in ms
f   fence       m   message_id                  x   expires at, in ms
==  ==========  ==  ==========================  ==  ====================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from brokerwq.errors import StoreError
from brokerwq.idempotency.record import Claim, Record, State

VERSION: Final = "1"

_TIME: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local key = KEYS[1]
local function digits(number) return string.format('%.0f', number) end
"""

# A record in progress outlives its time by an hour, so that its owner can still complete it.
_KEEP: Final = """
local function keep(expires, lease)
    local last = expires
    if lease then last = math.max(expires, lease) + 3600000 end
    redis.call('PEXPIREAT', key, digits(last))
end
"""

_OURS: Final = """
local old = redis.call('HMGET', key, 's', 'o')
local is_owner = old[2] == ARGV[1]
local is_ours = is_owner and old[1] == '1'
"""

_FIELDS: Final = "'w', 's', 'o', 'f', 'a', 'l', 'p', 'm', 'g', 'r', 'c', 'x'"

GET: Final = f"""{_TIME}
if redis.call('EXISTS', key) == 0 then return false end
return {{digits(now), redis.call('HMGET', key, {_FIELDS})}}
"""

CLAIM: Final = f"""-- Takes owner, worker, payload, message, generation, lease, retention,
-- and whether it takes over.{_TIME}{_KEEP}
local owner, payload, message = ARGV[1], ARGV[3], ARGV[4]
local fence, attempt, created, takeover = now, 1, now, 0
if redis.call('EXISTS', key) == 1 then
    local old = redis.call('HMGET', key, {_FIELDS})
    local state, lease, expires = tonumber(old[2]), tonumber(old[6]), tonumber(old[12])
    local is_whole = state and lease and expires and old[3] and old[7] and old[8]
        and tonumber(old[4]) and tonumber(old[5]) and tonumber(old[9]) and tonumber(old[11])
    local is_free = false
    if is_whole then
        local is_over = lease <= now
        local is_expired = expires <= now and not (state == 1 and not is_over)
        local is_newer = old[8] ~= message or tonumber(old[9]) < tonumber(ARGV[5])
        is_free = is_expired or (old[7] == payload and ((state == 3 and is_newer)
            or (state == 1 and (old[3] == '' or (is_over and (ARGV[8] == '1' or is_newer))))))
        if is_free then
            fence = math.max(tonumber(old[4]) + 1, now)
            if state == 1 and not is_expired then
                attempt, created = tonumber(old[5]) + 1, tonumber(old[11])
                if old[3] ~= '' then takeover = 1 end
            end
        end
    end
    if not is_free then return {{0, digits(now), old}} end
end
local lease = now + ARGV[6]
local expires = now + math.max(ARGV[6], ARGV[7])
redis.call('HSET', key, 'w', ARGV[2], 's', '1', 'o', owner, 'f', digits(fence),
    'a', digits(attempt), 'l', digits(lease), 'p', payload, 'm', message, 'g', ARGV[5],
    'c', digits(created), 'x', digits(expires))
redis.call('HDEL', key, 'r')
keep(expires, lease)
return {{1, digits(fence), attempt, takeover}}
"""

EXTEND: Final = f"""-- Takes owner, lease.{_TIME}{_KEEP}{_OURS}
if not is_ours then return 0 end
local lease = now + ARGV[2]
redis.call('HSET', key, 'l', digits(lease))
keep(tonumber(redis.call('HGET', key, 'x')), lease)
return 1
"""

FINISH: Final = f"""-- Takes owner, state, retention, result if there is one.{_TIME}{_KEEP}{_OURS}
if not is_ours then return (is_owner and old[1] == ARGV[2]) and 1 or 0 end
local expires = now + ARGV[3]
redis.call('HSET', key, 's', ARGV[2], 'x', digits(expires))
if ARGV[4] then redis.call('HSET', key, 'r', ARGV[4]) else redis.call('HDEL', key, 'r') end
keep(expires)
return 1
"""

RELEASE: Final = f"""-- Takes owner.{_TIME}{_OURS}
if not is_ours then return 0 end
redis.call('HSET', key, 'o', '', 'l', digits(now))
return 1
"""

_DIGITS: Final = 32
"""Of a key, in hexadecimal, at the end of its name."""


def milliseconds(seconds: float) -> int:
    """Seconds as a script takes them."""
    return round(seconds * 1000)


def claim_values(claim: Claim) -> tuple[Any, ...]:
    """The arguments of ``CLAIM``."""
    return (
        claim.owner,
        claim.worker,
        claim.payload,
        claim.message_id,
        claim.generation,
        milliseconds(claim.lease),
        milliseconds(claim.retention),
        int(claim.takes_over),
    )


def record_of(key: bytes, now: bytes, fields: Sequence[bytes | None]) -> Record:
    """The record in an answer of ``GET``, or in a refusal of ``CLAIM``.

    Raises:
        StoreError: it is damaged.
    """
    try:
        worker, state, owner, fence, attempt, lease, payload, message = map(_there, fields[:8])
        generation, created, expires = map(_there, (fields[8], fields[10], fields[11]))
        result = fields[9]
        moment, lease_left = int(now), int(lease) - int(now)
        is_held = int(state) == State.IN_PROGRESS and lease_left > 0
        return Record(
            key=key,
            worker=worker.decode(),
            state=State(int(state)),
            owner=owner,
            fence=int(fence),
            attempt=int(attempt),
            lease_left=lease_left / 1000,
            payload=payload,
            message_id=message.decode(),
            generation=int(generation),
            result=None if result is None else result.decode(),
            created_at=int(created) / 1000,
            expires_at=int(expires) / 1000,
            is_expired=int(expires) <= moment and not is_held,
        )
    except (ValueError, TypeError) as exc:
        raise damaged(key, exc) from exc


def damaged(key: bytes, why: object) -> StoreError:
    """What is said of a record that makes no sense."""
    return StoreError(
        f"the record of key {key.hex()} is damaged: {why}; forget it to run its work again"
    )


def _there(value: bytes | None) -> bytes:
    if value is None:
        msg = "a field is missing"
        raise ValueError(msg)
    return value


def key_in(name: bytes, start: bytes) -> bytes | None:
    """The key of the record that Redis has under ``name``; None if that is no record's."""
    digits = name.removeprefix(start)
    if len(digits) != _DIGITS or not name.startswith(start):
        return None
    try:
        return bytes.fromhex(digits.decode())
    except ValueError:
        return None

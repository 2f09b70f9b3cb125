"""The record of one key, and the one decision about it: who may work, and who may not.

::

             claim                     complete (owner)
    absent ─────────► in progress ─────────────────────► completed ──expires──► absent
       ▲               │  ▲  │  ▲
       │               │  │  │  └── extend (owner)
       │               │  │  └───── takeover: the lease is over; new owner, higher fence
       │               │  └──────── release (owner): free at once, the row stays
       │               └─ fail (owner) ──► failed ──another message, or a redrive──► in progress
       └─────────── expires ──────────────────┘

Every change but a claim is a compare-and-set on the owner, and is refused to anybody else. A
completed record never goes back to work before it expires.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias


class State(enum.IntEnum):
    """Where the work of a key is; no record: nobody has begun it."""

    IN_PROGRESS = 1
    COMPLETED = 2
    FAILED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a store keeps of a key.

    Attributes:
        key: 16 bytes, see ``brokerwq.idempotency.keys``.
        worker: ``app/worker``, for people.
        state: See ``State``.
        owner: 16 random bytes of the claim that holds it; empty once it was released.
        fence: Higher for each claim.
        attempt: Claims so far; informative.
        lease_left: Seconds of the owner's lease on the store's clock; 0 or less: over.
        payload: 16 bytes of the payload that came with the key.
        message_id: Id of the message that claimed it last.
        generation: How often that message had been redriven.
        result: What the handler returned, as JSON; or why it failed. None without.
        created_at: First claim, seconds since 1970 on the store's wall clock.
        expires_at: When the record means nothing any more; the same clock.
        is_expired: That moment has passed.
    """

    key: bytes
    worker: str
    state: State
    owner: bytes
    fence: int
    attempt: int
    lease_left: float
    payload: bytes
    message_id: str
    generation: int
    result: str | None
    created_at: float
    expires_at: float
    is_expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who wants to work on a key.

    Attributes:
        key, worker, payload, message_id, generation: See ``Record``.
        owner: 16 random bytes, made before the call so that it can be repeated safely.
        lease: Seconds.
        retention: Seconds that the record is kept at least.
        takes_over: May take what another owner has left; else that is for people.
    """

    key: bytes
    worker: str
    payload: bytes
    message_id: str
    generation: int
    owner: bytes
    lease: float
    retention: float
    takes_over: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The work is yours, or was already; see ``Record`` for the attributes."""

    fence: int
    attempt: int
    takeover: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Somebody else works on it, for ``remaining`` seconds unless it is extended."""

    remaining: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """It is done; ``result`` if that was kept."""

    result: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """This very message was given up on, for ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The key is known with another payload."""

    state: State
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLost:
    """Its owner vanished, and the claim does not take over."""


Answer: TypeAlias = Claimed | Busy | Completed | Failed | Mismatch | OwnerLost
ANSWERS: Final = (Claimed, Busy, Completed, Failed, Mismatch, OwnerLost)


def refusal(record: Record, claim: Claim) -> Answer | None:
    """What speaks against ``claim``; None if the record may be claimed.

    The stores whose claim is one statement have the same condition in it, and come here to
    learn why it was not met; the others decide by it inside a transaction.
    """
    if record.is_expired:
        return None
    if record.payload != claim.payload:
        return Mismatch(state=record.state, payload=record.payload)
    if record.state is State.COMPLETED:
        return Completed(result=record.result)
    is_newer = record.message_id != claim.message_id or record.generation < claim.generation
    if record.state is State.FAILED:
        return None if is_newer else Failed(reason=record.result or "failed")
    return _refusal_of_owner(record, claim, is_newer=is_newer)


def _refusal_of_owner(record: Record, claim: Claim, *, is_newer: bool) -> Answer | None:
    if record.owner == claim.owner:
        return Claimed(fence=record.fence, attempt=record.attempt, takeover=False)
    if record.owner and record.lease_left > 0:
        return Busy(remaining=record.lease_left)
    if record.owner and not claim.takes_over and not is_newer:
        return OwnerLost()
    return None


def next_fence(previous: int, epoch_ms: int) -> int:
    """The fence of the next claim.

    Never below the wall clock in milliseconds: after a record has expired its successor must
    not start below what a sink remembers.
    """
    return max(previous + 1, epoch_ms)

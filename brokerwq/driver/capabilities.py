"""What a broker can do, as data: the core plans with it, users read it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Lease(enum.Enum):
    """What keeps a claimed message ours."""

    TIMED = "timed"
    """A clock at the broker; ``extend`` moves the deadline."""
    CONNECTION = "connection"
    """The open connection. Length and deadline are kept by the core."""


class UncountedReturn(enum.Enum):
    """How well ``put_back`` can return a message without spending an attempt."""

    EXACT = "exact"
    """In one step."""
    COPY = "copy"
    """By a confirmed copy and an ack; a crash in between leaves two copies of one id."""
    COUNTED = "counted"
    """Not at all: the broker counts every return, and marks are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Limits are inclusive; durations are seconds; ``math.inf`` means no limit.

    Attributes:
        lease: What keeps a claimed message ours.
        max_lease: Longest time one receive may be held, extensions included.
        max_claim: Messages in one ``claim``.
        max_settle: Deliveries in one ``ack``, ``extend``, ``release``, ``put_back`` or
            ``dead_letter``.
        max_send: Messages in one ``send``.
        max_message_bytes: One encoded message, headers included.
        max_batch_bytes: All messages of one ``send`` together.
        max_wait: Longest wait that one ``claim`` honours.
        max_send_delay: 0 where a new message cannot be delayed.
        max_release_delay: 0 where a returned message comes back at once.
        fences: A settle never touches another runner's lease on the same message.
        counts_receives: ``Delivery.receives`` survives a crash of the runner.
        uncounted_return: How ``put_back`` returns a message.
        atomic_dead_letter: ``dead_letter`` cannot leave two copies behind.
        ordered_groups: Messages of one group are claimed one after another.
        exact_stats: The counts of ``inspect`` are exact, not estimates.
        durable: What was sent survives a restart of the broker.
        lists_queues: ``queues`` can tell which queues exist.
    """

    lease: Lease = Lease.TIMED
    max_lease: float = math.inf
    max_claim: int = 100
    max_settle: int = 100
    max_send: int = 100
    max_message_bytes: float = math.inf
    max_batch_bytes: float = math.inf
    max_wait: float = math.inf
    max_send_delay: float = math.inf
    max_release_delay: float = math.inf
    fences: bool = True
    counts_receives: bool = True
    uncounted_return: UncountedReturn = UncountedReturn.EXACT
    atomic_dead_letter: bool = True
    ordered_groups: bool = False
    exact_stats: bool = True
    durable: bool = True
    lists_queues: bool = False

"""The errors this broker knows, worded once."""

from __future__ import annotations

from brokerwq.driver import Delivery
from brokerwq.errors import ClosedError, LeaseLostError, QueueNotFoundError


def lease_lost(delivery: Delivery, *, sent: bool = False) -> LeaseLostError:
    """The lease of ``delivery`` has ended, or it was settled before.

    Args:
        delivery: What was to be settled.
        sent: It was acked all the same, as where the broker cannot tell whose lease it ends.
    """
    return LeaseLostError(
        f"message {delivery.message.id!r:.200} of {delivery.queue} is no longer ours: "
        f"its lease ended or it was settled before{'; the ack was sent all the same' * sent}",
        sent=sent,
    )


def no_queue(name: str) -> QueueNotFoundError:
    """Nobody declared ``name``."""
    return QueueNotFoundError(f"no queue {name!r:.200} in this memory:// space; declare it first")


def no_dead_letter_queue(name: str) -> QueueNotFoundError:
    """``name`` came into being as a dead-letter queue and has none of its own."""
    return QueueNotFoundError(f"{name} has no dead-letter queue; declare it to give it one")


def closed(what: str) -> ClosedError:
    """``what`` is not open."""
    return ClosedError(f"the {what} is not open")


def forked() -> ClosedError:
    """Used in a child of the process that filled it."""
    return ClosedError(
        "this memory:// space belongs to the parent process: after a fork the child has only "
        "a copy that the parent never sees; use sqlite:// between processes"
    )

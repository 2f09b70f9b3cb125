"""Amazon SQS: its limits, and what is refused with which words. Durations are seconds.

Sources: the API reference (CreateQueue, SendMessage, SendMessageBatch, ReceiveMessage,
ChangeMessageVisibility, SetQueueAttributes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator
from dataclasses import replace
from typing import Final

from brokerwq.driver.protocol import QueueSpec
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.errors import (
    CannotExtendError,
    ConfigError,
    DriverError,
    MessageTooLargeError,
    UnsupportedError,
)
from brokerwq.message import DeadLetterNote

FIFO: Final = ".fifo"

MAX_ENTRIES: Final = 10
"""Messages in one call, of any kind."""
MAX_ATTRIBUTES: Final = 10
MAX_BYTES: Final = 1_048_576
"""One message and one batch, attributes counted (API reference, SendMessageBatch)."""
MAX_DELAY: Final = 900
"""A message can be delayed at its sending."""
LONGEST_VISIBILITY: Final = 43_200
"""From the receive, all extensions together; what goes beyond is refused, not cut."""
MAX_LEASE: Final = 43_140.0
"""From the receive; the service's 12 hours less a margin, since it refuses the rest."""
SHORTEST_LEASE: Final = 3
"""Polls last whole seconds, and the lease is counted from before the poll: of a lease of one
second nothing might be left."""
LONGEST_POLL: Final = 20
SHORTEST_RETENTION: Final = 60
LONGEST_RETENTION: Final = 1_209_600
"""14 days, the longest that SQS keeps a message."""
DEDUPLICATION: Final = 300.0
"""How long a FIFO queue drops what it takes for a repeated send."""
MAX_RECEIVES: Final = 1000
"""The highest ``maxReceiveCount`` of a redrive policy."""
MAX_NAME: Final = 80

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_SHORT_ERROR: Final = 200
_SHORT_REASON: Final = 100


def check_name(name: str) -> str:
    """``name``, if SQS takes it for a queue.

    Raises:
        ConfigError: it does not.
    """
    if len(name) > MAX_NAME:
        msg = f"queue name {name!r:.200} has {len(name)} characters; SQS takes {MAX_NAME}"
        raise ConfigError(msg)
    if not _NAME.fullmatch(name.removesuffix(FIFO)):
        hint = (
            f"; a FIFO queue's name ends in {FIFO!r}, lower case" if ".fifo" in name.lower() else ""
        )
        msg = (
            f"queue name {name!r:.200} is not for SQS: letters, digits, hyphens and underscores"
            f"{hint}"
        )
        raise ConfigError(msg)
    return name


def check_spec(spec: QueueSpec, name: str, dead_letter: str) -> None:
    """Refuse what SQS will never take.

    Args:
        spec: The queue to be declared.
        name: What it is called at SQS.
        dead_letter: What its dead-letter queue is called there.

    Raises:
        ConfigError: a number is out of its range, or the two queues do not fit.
    """
    if name == dead_letter:
        msg = f"queue {spec.name} cannot be its own dead-letter queue"
        raise ConfigError(msg)
    if name.endswith(FIFO) != dead_letter.endswith(FIFO):
        msg = f"{spec.name} and {spec.dead_letter_queue} must both be FIFO queues, or neither"
        raise ConfigError(msg)
    if not 1 <= spec.broker_limit <= MAX_RECEIVES:
        msg = f"broker_limit of {spec.name} is {spec.broker_limit}; SQS takes 1 to {MAX_RECEIVES}"
        raise ConfigError(msg)
    if spec.lease is not None:
        positive_seconds(spec.lease, "lease", limit=MAX_LEASE)
    if spec.retention is not None and spec.retention != math.inf:
        seconds = seconds_of(spec.retention, "retention")
        if not SHORTEST_RETENTION <= seconds <= LONGEST_RETENTION:
            msg = (
                f"retention of {spec.name} is {seconds:g} seconds; SQS takes "
                f"{SHORTEST_RETENTION} to {LONGEST_RETENTION}"
            )
            raise ConfigError(msg)


def refusal(
    queue: str, size: int, wait: int, *, limit: int = MAX_BYTES, is_fifo: bool
) -> DriverError | None:
    """Why a message cannot be sent; None if it can.

    Args:
        queue: Its name, for the words.
        size: Bytes, attributes counted.
        wait: How long it shall be delayed.
        limit: Bytes that the queue takes.
        is_fifo: Whether the queue keeps groups in order.
    """
    if size > limit:
        return MessageTooLargeError(
            f"the message has {size} bytes with its attributes; {queue} takes {limit}"
        )
    if wait and is_fifo:
        return UnsupportedError(f"{queue} is a FIFO queue, which delays no single message")
    if wait > MAX_DELAY:
        return UnsupportedError(f"a delay of {wait} seconds; SQS takes {MAX_DELAY} at most")
    return None


def lease_refusal(lease: float) -> UnsupportedError:
    """A lease above ``MAX_LEASE``."""
    return UnsupportedError(f"lease is {lease:g} seconds; SQS gives {MAX_LEASE:g} at most")


def release_refusal(wait: int) -> UnsupportedError:
    """A release with a delay above ``MAX_LEASE``."""
    return UnsupportedError(
        f"a delay of {wait} seconds; SQS hides a message for {MAX_LEASE:g} at most"
    )


def cannot_extend() -> CannotExtendError:
    """An extend that would make one receive last longer than ``MAX_LEASE``."""
    msg = f"SQS ends every receive after 12 hours; {MAX_LEASE:g} s are given out"
    return CannotExtendError(msg, limit=MAX_LEASE)


def shorter(note: DeadLetterNote) -> Generator[DeadLetterNote]:
    """``note``, then shorter ones, for a message that leaves it little room."""
    yield note
    yield replace(note, error=note.error[:_SHORT_ERROR])
    yield replace(note, error="", digest="")
    yield DeadLetterNote(reason=note.reason[:_SHORT_REASON], attempts=note.attempts)

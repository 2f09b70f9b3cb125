"""RabbitMQ: its limits, and what is refused with which words. Durations are seconds.

Sources: RabbitMQ's documentation (quorum queues, consumers, TTL), AMQP 0-9-1 (basic class, field
tables), and what was measured on 3.10 to 4.3.
"""

from __future__ import annotations

import json
from typing import Final

from brokerwq import envelope
from brokerwq.driver.protocol import QueueSpec
from brokerwq.durations import positive_seconds
from brokerwq.errors import (
    CannotExtendError,
    ConfigError,
    DriverError,
    MessageRefusedError,
    MessageTooLargeError,
    UnsupportedError,
)
from brokerwq.message import Message

LEVELS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
"""What one delay queue can wait. A longer or odd delay is made of several; the factor keeps both
numbers small."""
LONGEST_DELAY: Final = 86400.0
"""Beyond it the core sends a message on again when it comes."""
CONSUMER_TIMEOUT: Final = 1800.0
"""How long RabbitMQ leaves a message unacked, unless its operator says otherwise."""
MAX_BODY: Final = 16 * 1024 * 1024
"""Bytes; the default ``max_message_size`` from 4.0 on."""
MAX_FRAME: Final = 131_072
"""Bytes; the default ``frame_max``."""
MAX_SHORT_BYTES: Final = 255
"""The longest short string: queue and header names, message id, type."""

PACKED: Final = "bwq-headers"
"""Headers of the sender's own whose names the broker would take for its own, as JSON."""
DUE: Final = "bwq-due"
"""When a message that a delay queue held back may be handed out; wall clock, milliseconds."""
AS_PROPERTY: Final = {
    envelope.ID: "message_id",
    envelope.TYPE: "type",
    envelope.CONTENT_TYPE: "content_type",
}

_ID_BYTES: Final = 36
_DUE_DIGITS: Final = 13  # until the year 2286
# A content header is one frame and cannot be split.
_FRAME_OVERHEAD: Final = 64
# What the broker writes into a message, and what makes it send more copies elsewhere. Such a
# header of the sender's own would be overwritten, obeyed or refused.
_BROKERS_OWN: Final = frozenset({"x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC"})
_BROKERS_PREFIXES: Final = ("x-first-death-", "x-last-death-", "x-opt-")


def is_brokers(name: str) -> bool:
    """Whether a header of that name is the broker's own."""
    return name in _BROKERS_OWN or name.startswith(_BROKERS_PREFIXES)


def level_name(queue: str, seconds: int) -> str:
    """The queue in which messages for ``queue`` wait ``seconds``."""
    return f"{queue}.delay.{seconds}"


def level_for(delay: float) -> int:
    """The longest wait that does not exceed ``delay``; at least the shortest there is."""
    return max((level for level in LEVELS if level <= delay), default=LEVELS[0])


def max_lease_of(consumer_timeout: float) -> float:
    """How long a message may be held: shorter than ``consumer_timeout``.

    A minute for the broker's own timer and one for what is on its way; where the timeout is so
    short that this would leave little, a quarter of it.
    """
    return consumer_timeout - min(120.0, consumer_timeout / 4)


def check(spec: QueueSpec, max_lease: float) -> None:
    """Refuse what no RabbitMQ can be.

    Raises:
        ConfigError: a name, limit or lease is out of range.
    """
    longest = level_name(spec.name, LEVELS[-1])
    for name in (longest if spec.declare == "create" else spec.name, spec.dead_letter_queue):
        size = len(name.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= MAX_SHORT_BYTES or not name.isprintable() or name.startswith("amq."):
            msg = (
                f"queue name {name!r:.300} must be printable, have 1 to {MAX_SHORT_BYTES} bytes "
                "and not start with 'amq.'"
            )
            raise ConfigError(msg)
    if not spec.name:
        msg = "a queue must have a name"
        raise ConfigError(msg)
    if spec.dead_letter_queue == spec.name:
        msg = f"queue {spec.name} cannot be its own dead-letter queue"
        raise ConfigError(msg)
    if spec.broker_limit < 1:
        msg = f"broker_limit must be 1 or more, not {spec.broker_limit}"
        raise ConfigError(msg)
    if spec.lease is not None:
        positive_seconds(spec.lease, "lease", limit=max_lease)


def check_header(name: str, text: str) -> None:
    """Refuse a header that AMQP cannot carry.

    Raises:
        MessageRefusedError: its name is too long, or one of both is no Unicode.
    """
    if not 1 <= len(utf8(name)) <= MAX_SHORT_BYTES:
        msg = f"header name {name!r:.100} must have 1 to {MAX_SHORT_BYTES} bytes"
        raise MessageRefusedError(msg)
    utf8(text)


def utf8(text: str) -> bytes:
    """``text`` as it goes over the wire.

    Raises:
        MessageRefusedError: it cannot.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        msg = f"{text!r:.100} holds a lone surrogate, which no encoding carries"
        raise MessageRefusedError(msg) from exc


def properties_size(message: Message, delay: float = 0.0) -> int:
    """Bytes of the properties of ``message``, headers included, on its way to be so delayed.

    Raises:
        MessageRefusedError: a header cannot be carried.
    """
    headers = envelope.encode(message)
    if delay > 0 and delay > level_for(delay):
        headers[DUE] = "0" * _DUE_DIGITS
    size = 3  # flags and delivery mode
    for name in AS_PROPERTY:
        data = utf8(headers.get(name, ""))
        if name in headers and len(data) <= MAX_SHORT_BYTES:
            size += 1 + len(data)
            del headers[name]
        elif name == envelope.ID:
            size += 1 + _ID_BYTES
            headers.setdefault(name, message.id)
    packed = {name: headers.pop(name) for name in list(headers) if is_brokers(name)}
    if packed:
        headers[PACKED] = json.dumps(packed)
    for name, text in headers.items():
        check_header(name, text)
        size += 6 + len(utf8(name)) + len(utf8(text))
    return size + 4  # the length of the table


def size_refusal(
    properties: int, body: int, *, max_body: float = MAX_BODY, max_frame: int = MAX_FRAME
) -> DriverError | None:
    """Why the broker would not take a message of so many bytes; None if it would."""
    if body > max_body:
        return MessageTooLargeError(
            f"the body has {body} bytes; the limit is {max_body:g} (max_message_bytes)"
        )
    if properties > max_frame - _FRAME_OVERHEAD:
        return MessageTooLargeError(
            f"headers and properties have {properties} bytes; RabbitMQ takes at most "
            f"{max_frame - _FRAME_OVERHEAD} of them, whatever the body"
        )
    return None


def delay_refusal(delay: float) -> UnsupportedError:
    """A delay above ``LONGEST_DELAY``."""
    return UnsupportedError(f"a delay of {delay:g} s; the longest is {LONGEST_DELAY:g}")


def cannot_extend(consumer_timeout: float, limit: float) -> CannotExtendError:
    """An extend beyond what the broker leaves unacked."""
    return CannotExtendError(
        f"RabbitMQ leaves a message unacked for {consumer_timeout:g} s "
        f"(consumer_timeout); {limit:g} of them can be used",
        limit=limit,
    )


def cannot_list() -> UnsupportedError:
    """``Driver.queues`` was asked."""
    return UnsupportedError("RabbitMQ does not list queues over AMQP")

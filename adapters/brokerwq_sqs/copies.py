"""Copies of received messages: to come back uncounted, or to lie in a dead-letter queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brokerwq.driver import Mark
from brokerwq.driver.rules import sqs as rules
from brokerwq.driver.support import unstarted
from brokerwq.message import DeadLetterNote, Message
from brokerwq_sqs import wire
from brokerwq_sqs.batch import Entry
from brokerwq_sqs.received import Received
from brokerwq_sqs.wire import Encoded

_TRACE = "AWSTraceHeader"


def spent(received: Received) -> Mark:
    """The mark of a message that comes back by copy and spent its attempt."""
    mark = unstarted(received.message, received.receives)
    return replace(mark, attempts=mark.attempts + 1, not_before=None)


def returned_copy(received: Received, mark: Mark, limit: int) -> Encoded | None:
    """A copy for the same queue; None where the message has no room for the mark."""
    encoded = _encoded(received, mark.on(received.message), make_room=False)
    return encoded if encoded is not None and encoded.size <= limit else None


def dead_copy(received: Received, note: DeadLetterNote, limit: int) -> Encoded:
    """A copy for the dead-letter queue, the note cut to what fits beside an untouched body."""
    for shorter in rules.shorter(note):
        encoded = _encoded(received, _dead(received.message, shorter), make_room=True)
        if encoded is not None and encoded.size <= limit:
            return encoded
    if received.is_foreign:
        return wire.encode_as_is(received.body, received.attributes)
    return wire.encode(_dead(received.message, None))


def entry_of(encoded: Encoded, delay: int | None = None) -> dict[str, Any]:
    """The arguments of an entry of ``SendMessageBatch``."""
    entry: dict[str, Any] = {"MessageBody": encoded.body}
    if encoded.attributes:
        entry["MessageAttributes"] = encoded.attributes
    if delay is not None:
        entry["DelaySeconds"] = delay
    return entry


def copy_entry(encoded: Encoded, received: Received, delay: int | None = None) -> Entry:
    """The same for a copy, which keeps its group and the trace that AWS itself carries."""
    entry = entry_of(encoded, delay)
    group = received.message.group or received.system.get("MessageGroupId")
    if group:
        entry["MessageGroupId"] = wire.group_id(group)
    trace = received.system.get(_TRACE)
    if trace:
        entry["MessageSystemAttributes"] = {_TRACE: {"DataType": "String", "StringValue": trace}}
    return Entry(entry, encoded.size)


def dead_entry(encoded: Encoded, received: Received, *, is_fifo: bool) -> Entry:
    """An entry for the dead-letter queue."""
    if not is_fifo:
        return copy_entry(encoded, received, 0)
    entry = copy_entry(encoded, received)
    # Tells this stored copy from an earlier one of the same id, which a console may have moved
    # back within the five minutes in which SQS drops what it takes for a repeated send.
    receive = f"{received.native_id}:{received.system.get('SequenceNumber', '')}"
    dead_id = wire.dead_id(received.message, receive)
    return Entry({**entry.arguments, "MessageDeduplicationId": dead_id}, entry.size)


def _encoded(received: Received, message: Message, *, make_room: bool) -> Encoded | None:
    if received.is_foreign:
        return wire.encode_copy(received.body, received.attributes, message, make_room=make_room)
    return wire.encode(message)


def _dead(message: Message, note: DeadLetterNote | None) -> Message:
    # One that a console moves back starts afresh.
    return replace(
        message,
        attempts=0,
        suspect=False,
        unknown_since=None,
        not_before=None,
        snoozed=0.0,
        dead=note,
    )

"""How a message is kept: as flat headers and a body, as at a broker behind a network.

Keeping the ``Message`` itself would be quicker, and would hide from a test what a real
broker does to it: whole milliseconds, dropped unknown headers, no shared dicts.
"""

from __future__ import annotations

from dataclasses import replace

from brokerwq import envelope
from brokerwq.driver import Delivery, Mark
from brokerwq.driver.rules import sqs_wire
from brokerwq.message import DeadLetterNote, Message
from brokerwq_memory.space import Claim, Record


def record_of(message: Message, sent_at: float, *, in_group: bool) -> Record:
    """What is kept of a new ``message``.

    Args:
        message: The message.
        sent_at: Clock reading.
        in_group: Whether it keeps its place in a group; without one it is a group of its own.
    """
    return Record(
        headers=envelope.encode(message),
        body=bytes(message.body),
        sent_at=sent_at,
        group=sqs_wire.group_id(message.group or message.id) if in_group else "",
    )


def delivery_of(claim: Claim, queue: str, lease_left: float) -> Delivery:
    """One receive of a record, which has just been leased."""
    record = claim.record
    message, defect = envelope.decode(record.headers, record.body)
    return Delivery(
        message=message,
        queue=queue,
        handle=claim,
        receives=record.receives,
        lease_left=lease_left,
        defect=defect,
    )


def message_of(record: Record) -> Message:
    """The message that is kept."""
    return envelope.decode(record.headers, record.body)[0]


def mark(record: Record, mark: Mark) -> None:
    """Make ``record`` one that carries ``mark`` and has not been received yet."""
    record.headers = envelope.encode(mark.on(message_of(record)))
    record.receives = 0


def bury(record: Record, note: DeadLetterNote) -> None:
    """Make ``record`` a dead letter that starts afresh should somebody move it back."""
    record.headers = envelope.encode(replace(message_of(record), attempts=0, dead=note))
    record.receives = 0

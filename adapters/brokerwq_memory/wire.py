"""How a message is kept: as flat headers and a body, as at a broker behind a network.

Keeping the ``Message`` itself would be quicker, and would hide from a test what a real
broker does to it: whole milliseconds, dropped unknown headers, no shared dicts.
"""

from __future__ import annotations

from dataclasses import replace

from brokerwq import envelope
from brokerwq.driver import Delivery, Mark
from brokerwq.message import DeadLetterNote, Message
from brokerwq_memory.space import Record


def record_of(message: Message, sent_at: float) -> Record:
    """What is kept of a new ``message``."""
    return Record(headers=envelope.encode(message), body=bytes(message.body), sent_at=sent_at)


def delivery_of(record: Record, queue: str, now: float) -> Delivery:
    """One receive of ``record``, which has just been leased."""
    message, defect = envelope.decode(record.headers, record.body)
    return Delivery(
        message=message,
        queue=queue,
        handle=(record, record.ticket),
        receives=record.receives,
        lease_left=record.at - now,
        defect=defect,
    )


def mark(record: Record, mark: Mark) -> None:
    """Make ``record`` one that carries ``mark`` and has not been received yet."""
    message, _ = envelope.decode(record.headers, record.body)
    record.headers = envelope.encode(mark.on(message))
    record.receives = 0


def bury(record: Record, note: DeadLetterNote) -> None:
    """Make ``record`` a dead letter that starts afresh should somebody move it back."""
    message, _ = envelope.decode(record.headers, record.body)
    record.headers = envelope.encode(replace(message, attempts=0, dead=note))
    record.receives = 0

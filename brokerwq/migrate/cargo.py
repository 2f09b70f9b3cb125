"""One message on its way: what the copy at the target shall say, and when it is due."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b

from brokerwq.driver.protocol import Delivery, Mark
from brokerwq.errors import MessageRefusedError, MessageTooLargeError, UnsupportedError
from brokerwq.message import Message, new_message_id

REFUSALS = (MessageTooLargeError, MessageRefusedError, UnsupportedError)
"""What says that a message does not fit; everything else is the broker's trouble."""


@dataclass(frozen=True, slots=True)
class Cargo:
    """A copy for the target.

    Attributes:
        message: The copy.
        delay: Seconds until it may be run.
    """

    message: Message
    delay: float

    @property
    def id(self) -> str:
        """Its id, the same on both sides."""
        return self.message.id


def cargo_of(
    delivery: Delivery, *, now: datetime, is_dead: bool, forgiven: int, keeps_raw: bool
) -> Cargo:
    """What shall be stored at the target for ``delivery``.

    Attempts add up: those the message says and the receives of this copy but this one. What is
    in a dead-letter queue has spent none: a look at it is no attempt.

    Args:
        delivery: As claimed at the source.
        now: For what is left of its delay.
        is_dead: It comes from a dead-letter queue.
        forgiven: Receives that may have been those of movers which died.
        keeps_raw: The target repeats native properties, being of the source's kind.
    """
    message = copy = delivery.message
    if not is_dead and delivery.receives - 1 > forgiven:
        copy = unmoved(delivery, forgiven=forgiven, is_dead=is_dead).on(message)
    if not message.id:
        copy = replace(copy, id=new_message_id())
    if message.raw and not keeps_raw:
        copy = replace(copy, raw={})
    delay = 0.0
    if message.not_before is not None:
        delay = max(0.0, (message.not_before - now).total_seconds())
        if not delay:
            copy = replace(copy, not_before=None)
    return Cargo(copy, delay)


def unmoved(delivery: Delivery, *, forgiven: int, is_dead: bool) -> Mark:
    """The mark of ``delivery`` as one that no mover has held."""
    message = delivery.message
    mark = Mark.of(message)
    if is_dead:
        return mark
    spent = max(0, delivery.receives - 1 - forgiven)
    return replace(
        mark,
        attempts=message.attempts + spent,
        suspect=message.suspect or spent > 0,
    )


def name_of(message: Message, digest: bytes) -> str:
    """What a message is remembered by: its id, and where it has none its content."""
    return message.id or f"digest:{digest.hex()}"


def digest_of(message: Message) -> bytes:
    """A digest of what must be the same on both sides; 16 bytes."""
    created = message.created_at
    texts = [
        message.type,
        message.content_type,
        # Every broker keeps whole milliseconds, so that both sides read the same.
        "" if created is None else str(created.timestamp()),
        message.key or "",
        message.cause or "",
    ]
    for pair in sorted(message.headers.items()):
        texts += pair
    lengths = ",".join([str(len(text)) for text in texts])
    head = f"{lengths};{''.join(texts)}".encode("utf-8", "surrogatepass")
    digest = blake2b(head, digest_size=16)
    digest.update(message.body)
    return digest.digest()

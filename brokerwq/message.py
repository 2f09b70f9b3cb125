"""The message: what is stored at a broker, the same at every one."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import TypeAlias

_NO_HEADERS: dict[str, str] = {}
_NO_RAW: dict[str, object] = {}


def _no_raw() -> Mapping[str, object]:
    return _NO_RAW


def _no_headers() -> Mapping[str, str]:
    return _NO_HEADERS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterNote:
    """Why a message was given up on; travels in headers beside the untouched body.

    Attributes:
        reason: One word: ``failed``, ``timeout``, ``lost``, ``decode``, ``unknown-type``,
            ``snoozed-too-long``, ``expired``, ``payload-offloaded``, or the handler's own
            (``DeadLetter("…")``).
        error_type: Name of the last exception's class; empty where there was none.
        error: Its text, cut to fit.
        digest: Digest of the traceback: equal for equal faults, so that they can be grouped.
        attempts: Attempts spent.
        queue: The queue it was taken from.
        first_at: When the message was first sent; None where it does not say.
        dead_at: When it was given up on.
        version: The brokerwq that wrote the note.
        id: The id by which the log names it; empty if that is the message's own.
        type: The type that a codec read in another program's message; empty if that is the
            message's own. Not on the message, which stays another program's when it is sent back.
    """

    reason: str
    error_type: str = ""
    error: str = ""
    digest: str = ""
    attempts: int = 0
    queue: str = ""
    first_at: datetime | None = None
    dead_at: datetime | None = None
    version: str = ""
    id: str = ""
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is sent, stored and claimed.

    Attributes:
        id: Given once by the first sender and kept across retries, redrives and brokers.
            Not unique in a broker's storage. Empty for a foreign message that has none.
        body: Opaque bytes; see ``content_type``.
        type: The worker that is meant to run it. Empty for a foreign message.
        content_type: Media type of ``body``; empty where unknown.
        headers: Users' own headers and the trace context, text to text.
        created_at: When the first sender made it, in UTC; None for a foreign message
            that does not say.
        not_before: Earliest time to run it, in UTC; set only where the delay is longer than
            the broker can keep by itself. None means now.
        attempts: Attempts spent on earlier copies.
        redrives: How often it was sent back from a dead-letter queue.
        key: Idempotency key; None falls back to ``id``.
        group: Ordering group; honoured only where ``Capabilities.ordered_groups``.
        cause: ``id`` of the message whose handler sent this one.
        suspect: It was held by a process that died, and could be what killed it.
        unknown_since: When a runner first met it without knowing its type.
        snoozed: Seconds it has been snoozed in all.
        dead: Why it is, or was, in a dead-letter queue.
        raw: Every native property and header of a foreign message, with its own type. Not
            part of the envelope: the adapter that read it keeps it on a copy.
    """

    id: str
    body: bytes
    type: str = ""
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=_no_headers)
    created_at: datetime | None = None
    not_before: datetime | None = None
    attempts: int = 0
    redrives: int = 0
    key: str | None = None
    group: str | None = None
    cause: str | None = None
    suspect: bool = False
    unknown_since: datetime | None = None
    snoozed: float = 0.0
    dead: DeadLetterNote | None = None
    raw: Mapping[str, object] = field(default_factory=_no_raw)


Outgoing: TypeAlias = tuple[Message, float]
"""A message to be sent, and the seconds it is delayed."""


class _Pool(threading.local):
    """Random bytes in stock; each thread has its own, or two would hand out the same ones."""

    stock = b""
    at = 0
    pid = 0


_pool = _Pool()


def _random_bytes() -> bytes:
    # One system call for many ids: os.urandom costs more than all the rest of an enqueue's
    # bookkeeping. A forked child must not continue its parent's pool.
    pool, pid = _pool, os.getpid()
    at = pool.at
    if at >= len(pool.stock) or pool.pid != pid:
        pool.stock, pool.pid, at = os.urandom(4000), pid, 0
    pool.at = at + 10
    return pool.stock[at : at + 10]


def new_message_id() -> str:
    """A new UUIDv7 (RFC 9562, section 5.7): sorts by time of making, to the millisecond."""
    noise = int.from_bytes(_random_bytes())
    milliseconds = time.time_ns() // 1_000_000
    value = (
        (milliseconds & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | (noise >> 68 & 0xFFF) << 64
        | 0b10 << 62
        | (noise & 0x3FFF_FFFF_FFFF_FFFF)
    )
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def child_message_id(parent_id: str, nth: int) -> str:
    """The id of the ``nth`` message that a job sends on success: a UUIDv8 of its parent's id.

    The same job run twice sends the same ids, so that a repeated child can be recognised.
    """
    digest = bytearray(blake2b(f"{parent_id}\0{nth}".encode(), digest_size=16).digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))

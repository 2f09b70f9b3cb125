"""A message as Amazon SQS takes it. Pure functions.

SQS takes ten attributes and text in the range of XML 1.0 (API reference, SendMessage). Id,
type, content type, key and trace context stay attributes of their own; everything else is one
JSON object in ``bwq-headers``. A body that is no such text is base64, and marked so in
``bwq-body``; both vanish in decoding. A message without a type keeps its headers as plain
attributes where they fit, since it may be for somebody else's program.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from brokerwq import envelope
from brokerwq.driver.rules.sqs import MAX_ATTRIBUTES
from brokerwq.message import Message

NativeAttributes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""``MessageAttributes`` as the service has them: name to ``DataType`` and value."""

PACKED: Final = "bwq-headers"
MARK: Final = "bwq"
"""What brokerwq has to remember about a message of somebody else; beside its attributes."""
BODY: Final = "bwq-body"
BASE64: Final = "base64"
EMPTY: Final = "empty"

PLAIN: Final = frozenset(
    {
        envelope.ID,
        envelope.TYPE,
        envelope.CONTENT_TYPE,
        envelope.KEY,
        "traceparent",
        "tracestate",
        "baggage",
    }
)

_EMPTY_BODY: Final = "-"
_STRING: Final = "String"
_MAX_NAME: Final = 256
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_to_ascii_json = json.JSONEncoder(separators=(",", ":")).encode
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_ID = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Encoded:
    """The body and attributes of a message on the wire, and their size in bytes."""

    body: str
    attributes: Mapping[str, Mapping[str, Any]]
    size: int


def is_legal(text: str) -> bool:
    """Whether SQS takes ``text`` as the value of an attribute or as a body."""
    return bool(text) and _is_clean(text)


def _is_clean(text: str) -> bool:
    # Whatever is printable to Python is legal there, and asking that is much quicker.
    return text.isprintable() or _ILLEGAL.search(text) is None


def is_legal_name(name: str) -> bool:
    """Whether SQS takes ``name`` for an attribute."""
    return (
        len(name) <= _MAX_NAME
        and _NAME.fullmatch(name) is not None
        and not name.lower().startswith(("aws.", "amazon."))
    )


def encode(message: Message) -> Encoded:
    """``message`` on its way to a queue."""
    body, marker = _encode_body(message.body)
    plain = _encode_open(message) if not message.type else None
    if plain is None:
        plain = _encode_packed(message)
    if marker:
        plain[BODY] = marker
    attributes = {name: string_attribute(text) for name, text in plain.items()}
    size = size_of_text("".join((body, *plain, *plain.values()))) + len(_STRING) * len(plain)
    return Encoded(body, attributes, size)


def _encode_packed(message: Message) -> dict[str, str]:
    plain: dict[str, str] = {}
    packed: dict[str, str] = {}
    for name, text in envelope.encode(message).items():
        (plain if name in PLAIN and is_legal(text) else packed)[name] = text
    plain[PACKED] = pack(packed)
    return plain


def _encode_open(message: Message) -> dict[str, str] | None:
    """Headers as attributes of their own; None if they do not fit."""
    plain = dict(message.headers)
    if message.content_type:
        plain[envelope.CONTENT_TYPE] = message.content_type
    # The mark and the body's marker need an attribute each.
    if len(plain) > MAX_ATTRIBUTES - 2 or MARK in plain:
        return None
    if not all(is_legal_name(name) and is_legal(text) for name, text in plain.items()):
        return None
    plain[MARK] = pack(reserved_headers(message))
    return plain


def pack(headers: Mapping[str, Any]) -> str:
    """``headers`` as one attribute's value."""
    text = _to_json(headers)
    return text if _is_clean(text) else _to_ascii_json(headers)


def group_id(group: str) -> str:
    """``group`` as SQS takes it: 1 to 128 letters, digits and punctuation, else a digest."""
    return group if _ID.fullmatch(group) else _digest(group)


def send_id(message: Message) -> str:
    """The deduplication id of a message on its way to a FIFO queue.

    The message's own id, so that a send repeated within five minutes is stored once. One that
    was sent back from a dead-letter queue, or is a later copy, is another message to SQS.
    """
    again = (
        f":{message.redrives}:{message.attempts}" if message.redrives or message.attempts else ""
    )
    return group_id(f"{message.id}{again}")


def size_of(names: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
    """What attributes count towards the limit: names, data types and values."""
    total = 0
    for name, value in names:
        text = value.get("StringValue")
        size = len(value.get("BinaryValue", b"")) if text is None else size_of_text(text)
        total += size_of_text(name) + len(value["DataType"]) + size
    return total


def size_of_text(text: str) -> int:
    """Bytes of ``text`` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _encode_body(body: bytes) -> tuple[str, str]:
    if not body:
        return _EMPTY_BODY, EMPTY
    try:
        text = body.decode()
    except UnicodeDecodeError:
        pass
    else:
        if _is_clean(text):
            return text, ""
    return base64.b64encode(body).decode(), BASE64


def reserved_headers(message: Message) -> dict[str, str]:
    """The headers of the envelope, without the sender's own."""
    return {
        name: text
        for name, text in envelope.encode(message).items()
        if name.startswith(envelope.RESERVED_PREFIX)
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def string_attribute(text: str) -> dict[str, Any]:
    """``text`` as the value of an attribute."""
    return {"DataType": _STRING, "StringValue": text}


def dead_id(message: Message, receive: str) -> str:
    """The deduplication id of a dead letter; ``receive`` tells the stored copies apart."""
    return group_id(f"{message.id}:dead:{message.redrives}:{_digest(receive)[:16]}")

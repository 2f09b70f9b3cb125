"""What SQS carries, read back as a ``Message``, and copies of somebody else's. Pure functions.

How a message of ours is written is in ``brokerwq.driver.rules.sqs_wire``, which others ask, too.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from brokerwq import envelope
from brokerwq.driver.rules.sqs import MAX_ATTRIBUTES, MAX_BYTES
from brokerwq.driver.rules.sqs_wire import (
    BASE64,
    BODY,
    EMPTY,
    MARK,
    PACKED,
    PLAIN,
    Encoded,
    NativeAttributes,
    dead_id,
    encode,
    group_id,
    is_legal,
    is_legal_name,
    pack,
    reserved_headers,
    send_id,
    size_of,
    size_of_text,
    string_attribute,
)
from brokerwq.message import Message

__all__ = [
    "BODY",
    "MARK",
    "MAX_ATTRIBUTES",
    "MAX_BYTES",
    "MOVED",
    "OURS",
    "PACKED",
    "PLAIN",
    "Encoded",
    "NativeAttributes",
    "dead_id",
    "decode_body",
    "encode",
    "encode_as_is",
    "encode_copy",
    "group_id",
    "is_legal",
    "is_legal_name",
    "pack",
    "restored",
    "send_id",
    "size_of",
    "unpack",
]

OURS: Final = PLAIN | {PACKED, BODY}

MOVED: Final = "attributes"
"""In the mark of a dead letter: attributes that had to make room for it."""


def encode_copy(
    body: str, attributes: NativeAttributes, message: Message, *, make_room: bool
) -> Encoded | None:
    """A copy of somebody else's message: as it is, with what ``message`` has to remember.

    Args:
        body: Its native body.
        attributes: Its native attributes.
        message: Its decoded self, changed as the copy shall be.
        make_room: Where all ten attributes are taken, move one of them into the mark.

    Returns:
        None where there is no room.
    """
    kept = {name: _native(value) for name, value in attributes.items() if name != MARK}
    mark: dict[str, Any] = dict(reserved_headers(message))
    del mark[envelope.V]  # that would say that all of it is ours
    if len(kept) >= MAX_ATTRIBUTES:
        if not make_room:
            return None
        name, value = kept.popitem()
        mark[MOVED] = {name: _portable(value)}
    kept[MARK] = string_attribute(pack(mark))
    return Encoded(body, kept, _size(body, kept))


def encode_as_is(body: str, attributes: NativeAttributes) -> Encoded:
    """A copy that says nothing new."""
    kept = {name: _native(value) for name, value in attributes.items()}
    return Encoded(body, kept, _size(body, kept))


def unpack(text: str) -> dict[str, Any] | None:
    """The inverse of ``pack``; None if ``text`` is no JSON object."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def decode_body(text: str, marker: str | None) -> tuple[bytes, str]:
    """A body and what of it was unreadable."""
    if marker is None:
        return text.encode("utf-8", "surrogatepass"), ""
    if marker == EMPTY:
        return b"", ""
    if marker == BASE64:
        try:
            return base64.b64decode(text, validate=True), ""
        except (binascii.Error, ValueError):
            pass
    return text.encode("utf-8", "surrogatepass"), f"{BODY}={marker!r:.50}"


def _size(body: str, attributes: NativeAttributes) -> int:
    return size_of_text(body) + size_of(attributes.items())


def _native(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value[key] for key in ("DataType", "StringValue", "BinaryValue") if key in value}


def _portable(value: Mapping[str, Any]) -> dict[str, str]:
    if "BinaryValue" in value:
        return {"t": value["DataType"], "b": base64.b64encode(value["BinaryValue"]).decode()}
    return {"t": value["DataType"], "s": value["StringValue"]}


def restored(moved: object) -> dict[str, dict[str, Any]]:
    """The attributes that had made room for a mark; anything unreadable is left out."""
    found: dict[str, dict[str, Any]] = {}
    if not isinstance(moved, dict):
        return found
    for name, value in cast("dict[str, object]", moved).items():
        match value:
            case {"t": str(kind), "s": str(text)}:
                found[name] = {"DataType": kind, "StringValue": text}
            case {"t": str(kind), "b": str(text)}:
                with contextlib.suppress(ValueError):
                    found[name] = {"DataType": kind, "BinaryValue": base64.b64decode(text)}
            case _:
                pass
    return found

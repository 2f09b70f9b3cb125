"""A message as one line of JSON, and back: what ``dlq export`` writes.

The line holds the headers of the wire format (``brokerwq.envelope``), so nothing is lost, and
the body as text where it is text: ``{"headers": {…}, "body": "…"}``, else ``"body_base64"``.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final, cast

from brokerwq import envelope
from brokerwq.driver.moving import NativeRaw
from brokerwq.errors import EnvelopeError
from brokerwq.message import Message

# RabbitMQ's property, and the header of that meaning (``brokerwq.codecs.coding``).
_PACKING: Final = "content_encoding"
_PACKING_HEADER: Final = "content-encoding"


def line_of(message: Message) -> str:
    """``message`` as JSON on one line, without the line end."""
    return json.dumps(record_of(message), ensure_ascii=False)


def record_of(message: Message) -> dict[str, object]:
    """``message`` as the object that its line holds."""
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    headers = envelope.encode(message)
    packing = message.raw.get(_PACKING)
    if isinstance(packing, str) and packing:
        headers.setdefault(_PACKING_HEADER, packing)  # without it nobody could read the body
    return {"headers": headers, **body}


def left_out(message: Message) -> list[str]:
    """What of another program's message its line does not hold: no text, or no header."""
    raw = message.raw
    names = raw.untranslatable() if isinstance(raw, NativeRaw) else ()
    return [name for name in names if name != _PACKING]


def message_of(line: str) -> Message:
    """The message that ``line_of`` wrote.

    Raises:
        EnvelopeError: it is no such line; the text says what is wrong with it.
    """
    try:
        record: object = json.loads(line)
    except (ValueError, RecursionError) as exc:
        msg = f"this is no JSON: {line!r:.200}"
        raise EnvelopeError(msg) from exc
    if not isinstance(record, dict):
        msg = f"this is no JSON object: {line!r:.200}"
        raise EnvelopeError(msg)
    fields = cast("dict[str, Any]", record)
    headers = _headers_of(fields.get("headers"))
    message, defect = envelope.decode(headers, _body_of(fields))
    if defect:
        msg = f"unreadable headers: {defect}"
        raise EnvelopeError(msg)
    return message


def _headers_of(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        msg = '"headers" must be an object of text'
        raise EnvelopeError(msg)
    headers = cast("dict[str, object]", found)
    for name, text in headers.items():
        if not isinstance(text, str):
            msg = f"header {name!r:.200} must be text, not {text!r:.200}"
            raise EnvelopeError(msg)
    return cast("dict[str, str]", headers)


def _body_of(fields: dict[str, Any]) -> bytes:
    match fields:
        case {"body": str(text)}:
            try:
                return text.encode()
            except UnicodeEncodeError as exc:
                msg = '"body" holds a lone surrogate, which no encoding carries'
                raise EnvelopeError(msg) from exc
        case {"body_base64": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except (ValueError, binascii.Error) as exc:
                msg = f'"body_base64" is no base64: {text!r:.200}'
                raise EnvelopeError(msg) from exc
        case _:
            msg = 'a line needs "body" (text) or "body_base64"'
            raise EnvelopeError(msg)

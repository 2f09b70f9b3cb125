"""A ``Message`` as AMQP properties and body, and back.

Ours: id, type and content type are the properties of those names, everything else of the
envelope is a text header beside the sender's own. Somebody else's (no ``bwq-v``): handed out
with every property and header in ``Delivery.raw``; a copy of it keeps them byte for byte and
adds one header, ``bwq``, a JSON object of what we must remember.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, cast

from brokerwq import envelope
from brokerwq.driver import Mark
from brokerwq.driver.rules.rabbitmq import (
    AS_PROPERTY,
    DUE,
    MAX_SHORT_BYTES,
    PACKED,
    check_header,
    is_brokers,
    size_refusal,
    utf8,
)
from brokerwq.errors import DriverError
from brokerwq.message import DeadLetterNote, Message, new_message_id
from brokerwq_rabbitmq.frames import Arrival
from brokerwq_rabbitmq.table import (
    OCTET,
    PROPERTIES,
    SHORT,
    TIME,
    Properties,
    decode_properties,
    encode_text,
    is_utf8,
    moment_of,
    text_of,
    value_of,
)

FOREIGN: Final = "bwq"

_COUNT: Final = "x-delivery-count"
_KEPT_ASIDE: Final = {"CC": "cc", "expiration": "expiration", "user_id": "user-id"}
# What the reader of a message may need, and what has no place in an envelope. Of priority and
# expiration the broker was the reader.
_NATIVE_ALONE: Final = ("content_encoding", "correlation_id", "reply_to", "type")
_PERSISTENT: Final = {"delivery_mode": b"\x02"}


@dataclass(slots=True)
class Read:
    """What a delivery turned out to be.

    Attributes:
        message: The message.
        defect: What of it could not be read.
        count: The broker's count of earlier deliveries of this copy.
        due: Wall clock in milliseconds; 0 if it may be handed out.
    """

    message: Message
    defect: str
    count: int
    due: int


class NativeRaw(dict[str, object]):
    """``Message.raw`` of a foreign message, with the bytes that a copy of it repeats."""

    __slots__ = ("native",)

    def __init__(self, native: Properties) -> None:
        super().__init__()
        self.native = native

    def untranslatable(self) -> Sequence[str]:
        """See ``brokerwq.driver.moving.NativeRaw``: what is no text header, id, type or time."""
        headers = [
            name
            for name, value in self.native.headers.items()
            if text_of(value) is None and not is_brokers(name)
        ]
        return [*headers, *(name for name in _NATIVE_ALONE if name in self)]


def read(arrival: Arrival) -> Read:
    """Decode a delivery; never raises."""
    try:
        native = decode_properties(arrival.properties)
        defect = ""
    except (ValueError, IndexError) as exc:
        native = Properties()
        defect = f"AMQP properties: {exc}"
    count = _delivery_count(native) if arrival.redelivered else 0
    is_foreign = envelope.V not in native.headers
    headers = _text_headers(native)
    kept: Mapping[str, object] = {}
    if is_foreign:
        kept = _foreign_state(native, headers)
        headers.update(
            {
                name: text
                for name, text in kept.items()
                if isinstance(text, str) and name.startswith(envelope.RESERVED_PREFIX)
            }
        )
    else:
        _unpack(headers)
    for name, place in AS_PROPERTY.items():
        if (
            name not in headers
            and place in native.values
            and (name != envelope.TYPE or not is_foreign)
        ):
            headers[name] = native.values[place].decode("utf-8", "backslashreplace")
    message, unread = envelope.decode(headers, arrival.body)
    if is_foreign:
        message = replace(message, raw=_raw(native, arrival, kept))
    due, late = _due(headers.get(DUE))
    return Read(message, ", ".join(filter(None, (defect, unread, late))), count, due)


def _delivery_count(native: Properties) -> int:
    value = native.headers.get(_COUNT)
    count = None if value is None else value_of(value)
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 0


def _text_headers(native: Properties) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in native.headers.items():
        text = text_of(value)
        if text is not None and is_utf8(name) and not is_brokers(name):
            headers[name] = text
    return headers


def _unpack(headers: dict[str, str]) -> None:
    packed = _text_object(headers.pop(PACKED, ""))
    headers.update({name: text for name, text in packed.items() if isinstance(text, str)})


def _foreign_state(native: Properties, headers: dict[str, str]) -> Mapping[str, object]:
    state = _text_object(headers.get(FOREIGN, ""))
    if envelope.V in state:
        del headers[FOREIGN]  # ours, not the sender's
        return {name: value for name, value in state.items() if name != envelope.V}
    stamp = native.values.get("timestamp")
    moment = moment_of(stamp) if stamp is not None else None
    if isinstance(moment, datetime) and envelope.CREATED not in headers:
        return {envelope.CREATED: envelope.milliseconds(moment)}
    return {}


def _text_object(text: str) -> dict[str, object]:
    try:
        found: object = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _due(text: str | None) -> tuple[int, str]:
    if text is None:
        return 0, ""
    if text.isascii() and text.isdigit() and len(text) < 16:  # noqa: PLR2004  -- the year 9999
        return int(text), ""
    return 0, f"{DUE}={text!r:.50}"


def _raw(native: Properties, arrival: Arrival, kept: Mapping[str, object]) -> NativeRaw:
    headers = {
        name: _value_or_bytes(value)
        for name, value in native.headers.items()
        if not (name == FOREIGN and kept)
    }
    found = NativeRaw(native)
    found["exchange"] = arrival.exchange
    found["routing_key"] = arrival.routing_key
    found["redelivered"] = arrival.redelivered
    found["headers"] = headers
    for name, kind in PROPERTIES:
        data = native.values.get(name)
        if data is None:
            continue
        if kind == SHORT:
            text = native.text(name)
            found[name] = text if is_utf8(text) else data
        elif kind == OCTET:
            found[name] = data[0]
        elif kind == TIME:
            found[name] = moment_of(data)
    for name, place in _KEPT_ASIDE.items():
        if place in kept:
            (headers if name == "CC" else found)[name] = kept[place]
    return found


def _value_or_bytes(value: bytes) -> object:
    try:
        return value_of(value)
    except (ValueError, IndexError, ArithmeticError):
        return value


def encode(message: Message, *, due: int = 0) -> Properties:
    """The properties of ``message``.

    Args:
        message: Ours, or a foreign one that came from RabbitMQ.
        due: Not to be handed out before; wall clock in milliseconds, 0 for at once.

    Raises:
        MessageRefusedError: a header cannot be carried.
    """
    if isinstance(message.raw, NativeRaw):
        return _encode_foreign(message, message.raw, due)
    return _encode_ours(message, due)


def _encode_ours(message: Message, due: int) -> Properties:
    headers = envelope.encode(message)
    native = Properties(values=dict(_PERSISTENT))
    if due:
        headers[DUE] = str(due)
    for name, place in AS_PROPERTY.items():
        text = headers.get(name)
        if text is not None:
            data = utf8(text)
            if len(data) <= MAX_SHORT_BYTES:
                native.values[place] = data
                del headers[name]
    if "message_id" not in native.values:
        # The client finds a returned message by this property, so there must be one; the
        # header says what the id really is.
        native.values["message_id"] = new_message_id().encode()
        headers.setdefault(envelope.ID, message.id)
    packed = {name: headers.pop(name) for name in list(headers) if is_brokers(name)}
    if packed:
        headers[PACKED] = json.dumps(packed)
    for name, text in headers.items():
        check_header(name, text)
        native.headers[name] = encode_text(text)
    return native


def _encode_foreign(message: Message, raw: NativeRaw, due: int) -> Properties:
    # Never with an expiration: a copy that waits, or lies in a dead-letter queue, must not
    # vanish there.
    native = Properties(values=dict(raw.native.values), headers=dict(raw.native.headers))
    state: dict[str, object] = {envelope.V: envelope.VERSION}
    for name, place in _KEPT_ASIDE.items():
        holder = raw.get("headers") if name == "CC" else raw
        if isinstance(holder, Mapping) and name in holder:
            state[place] = cast("Mapping[str, object]", holder)[name]
    for name in list(native.headers):
        if is_brokers(name) or name == FOREIGN:
            del native.headers[name]
    # The broker refuses a user id that is not the connection's own.
    for name in ("expiration", "user_id", "cluster_id"):
        native.values.pop(name, None)
    if "message_id" not in native.values:
        native.values["message_id"] = utf8(message.id or new_message_id())[:MAX_SHORT_BYTES]
    state[envelope.ID] = message.id or native.text("message_id")
    if message.created_at is not None:
        state[envelope.CREATED] = envelope.milliseconds(message.created_at)
    state.update(envelope.encode_state(message))
    if due:
        state[DUE] = str(due)
    native.headers[FOREIGN] = encode_text(json.dumps(state, default=str))
    return native


def carries(message: Message, mark: Mark) -> bool:
    """Whether ``message`` says already what ``mark`` says."""
    return message == mark.on(message)


def buried(message: Message, note: DeadLetterNote) -> Message:
    """``message`` as a dead letter that starts afresh should somebody move it back."""
    return replace(message, attempts=0, dead=note)


def size_error(
    properties: bytes, body: bytes, *, max_body: float, max_frame: int
) -> DriverError | None:
    """Why the broker would not take it; None if it would."""
    return size_refusal(len(properties), len(body), max_body=max_body, max_frame=max_frame)

"""AMQP 0-9-1 properties and field tables, read and written without loss.

The client library decodes them for us no longer: it gives up the whole connection at a value
that it cannot read, cuts names at 128 bytes and narrows floats, so that a copy of somebody
else's message would not be the same message. Here what need not be understood stays bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

SHORT, OCTET, TABLE, TIME = "short", "octet", "table", "time"

# In the order of their flags, from bit 15 down (AMQP 0-9-1, basic class).
PROPERTIES: Final = (
    ("content_type", SHORT),
    ("content_encoding", SHORT),
    ("headers", TABLE),
    ("delivery_mode", OCTET),
    ("priority", OCTET),
    ("correlation_id", SHORT),
    ("reply_to", SHORT),
    ("expiration", SHORT),
    ("message_id", SHORT),
    ("timestamp", TIME),
    ("type", SHORT),
    ("user_id", SHORT),
    ("app_id", SHORT),
    ("cluster_id", SHORT),
)
_FLAGS: Final = tuple(
    (1 << (15 - place), name, kind) for place, (name, kind) in enumerate(PROPERTIES)
)
MAX_SHORT_BYTES: Final = 255

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND = 0xFFFF_FFFF
_TEXT = 0x53  # b"S"

# Type octet to struct format, as RabbitMQ reads them (its errata to AMQP 0-9-1).
_NUMBERS: Final[Mapping[int, struct.Struct]] = {
    ord(octet): struct.Struct(">" + form)
    for octet, form in {
        "b": "b",
        "B": "B",
        "s": "h",
        "u": "H",
        "I": "i",
        "i": "I",
        "l": "q",
        "L": "q",
        "f": "f",
        "d": "d",
    }.items()
}
_FIXED: Final[Mapping[int, int]] = {
    **{octet: form.size for octet, form in _NUMBERS.items()},
    ord("t"): 1,
    ord("T"): 8,
    ord("D"): 5,
    ord("V"): 0,
    0: 0,
}
_SIZED: Final = frozenset(b"SxAF")


@dataclass(slots=True)
class Properties:
    """The properties of one message, their values as the bytes that stood on the wire.

    Attributes:
        values: Property name to bytes, without the length of a short string; without headers.
        headers: Header name to value, the type octet in front.
    """

    values: dict[str, bytes] = field(default_factory=dict[str, bytes])
    headers: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def text(self, name: str) -> str:
        """A short string; empty if it is not there."""
        return to_text(self.values.get(name, b""))

    def encode(self) -> bytes:
        """As they stand in a content header frame, flags first."""
        flags = 0
        parts: list[bytes] = []
        for flag, name, kind in _FLAGS:
            if kind == TABLE:
                if self.headers:
                    flags |= flag
                    parts.append(encode_table(self.headers))
                continue
            value = self.values.get(name)
            if value is not None:
                flags |= flag
                parts.append(bytes((len(value),)) + value if kind == SHORT else value)
        return flags.to_bytes(2) + b"".join(parts)


def decode_properties(raw: bytes) -> Properties:
    """The inverse of ``Properties.encode``.

    Raises:
        ValueError: ``raw`` is cut off or holds an unknown type.
    """
    flags = int.from_bytes(raw[:2])
    at = 2
    found = Properties()
    for flag, name, kind in _FLAGS:
        if not flags & flag:
            continue
        if kind == SHORT:
            end = at + 1 + raw[at] if at < len(raw) else at + 1
            at += 1
        elif kind == TABLE:
            end = at + 4 + int.from_bytes(raw[at : at + 4])
        else:
            end = at + (1 if kind == OCTET else 8)
        if end > len(raw):
            msg = f"property {name} is cut off"
            raise ValueError(msg)
        if kind == TABLE:
            found.headers = dict(scan_table(raw, at + 4, end))
        else:
            found.values[name] = raw[at:end]
        at = end
    return found


def scan_table(raw: bytes, at: int, end: int) -> Iterator[tuple[str, bytes]]:
    """The entries of a table that stands in ``raw`` from ``at`` to ``end``, values unread.

    Raises:
        ValueError: it is cut off or holds an unknown type.
    """
    while at < end:
        name_end = at + 1 + raw[at]
        value_end = _value_end(raw, name_end)
        if value_end > end:
            msg = "a header table is cut off"
            raise ValueError(msg)
        yield to_text(raw[at + 1 : name_end]), raw[name_end:value_end]
        at = value_end


def _value_end(raw: bytes, at: int) -> int:
    octet = raw[at] if at < len(raw) else -1
    if octet in _SIZED:
        return at + 5 + int.from_bytes(raw[at + 1 : at + 5])
    size = _FIXED.get(octet)
    if size is None:
        msg = f"a header value has the unknown type {octet}"
        raise ValueError(msg)
    return at + 1 + size


def text_of(value: bytes) -> str | None:
    """The text of a header value; None if it is of another type or no UTF-8."""
    if value[0] != _TEXT:
        return None
    try:
        return value[5:].decode()
    except UnicodeDecodeError:
        return None


def value_of(value: bytes) -> object:  # noqa: PLR0911  -- a table of types
    """A header value as Python has it; never raises for one that ``scan_table`` gave.

    A text that is no UTF-8 is bytes, a time beyond the calendar the number that was sent.
    """
    octet, data = value[0], value[1:]
    number = _NUMBERS.get(octet)
    if number is not None:
        return number.unpack(data)[0]
    match chr(octet):
        case "S":
            text = text_of(value)
            return value[5:] if text is None else text
        case "x":
            return data[4:]
        case "t":
            return data != b"\0"
        case "T":
            return moment_of(data)
        case "D":
            return Decimal(int.from_bytes(data[1:], signed=True)).scaleb(-data[0])
        case "F":
            return {name: value_of(part) for name, part in scan_table(value, 5, len(value))}
        case "A":
            return list(_scan_array(value))
        case _:
            return None


def _scan_array(value: bytes) -> Iterator[object]:
    at = 5
    while at < len(value):
        end = _value_end(value, at)
        yield value_of(value[at:end])
        at = end


def moment_of(data: bytes) -> datetime | int:
    """A timestamp; senders that write milliseconds are understood."""
    number = int.from_bytes(data)
    try:
        if number > _LAST_SECOND:
            return _EPOCH + timedelta(milliseconds=number)
        return _EPOCH + timedelta(seconds=number)
    except OverflowError:
        return number


def encode_table(headers: Mapping[str, bytes]) -> bytes:
    """A table of values that are encoded already, its length in front."""
    parts: list[bytes] = []
    for name, value in headers.items():
        key = to_bytes(name)
        parts += (bytes((len(key),)), key, value)
    table = b"".join(parts)
    return len(table).to_bytes(4) + table


def encode_text(text: str) -> bytes:
    """A header value that holds text."""
    data = to_bytes(text)
    return b"S" + len(data).to_bytes(4) + data


def to_text(data: bytes) -> str:
    """Bytes that should be UTF-8, in a form that ``to_bytes`` turns back whatever they are."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """The inverse of ``to_text``."""
    return text.encode("utf-8", "surrogateescape")


def is_utf8(text: str) -> bool:
    """Whether what ``to_text`` made ``text`` of was UTF-8."""
    return text.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in text)

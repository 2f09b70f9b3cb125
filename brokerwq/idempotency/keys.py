"""From a key to 128 bits: the same for equal values, for ever, and for nothing else.

Values are written with a tag for their type and their length, so that no two different ones
have the same encoding: ``10``, ``"10"`` and ``True`` are three keys. A list and a tuple are
the same; so are a moment in two time zones, ``Decimal("1.0")`` and ``Decimal("1.00")``, and a
composed and a decomposed é. Floats are refused, because ``0.1 + 0.2`` is not ``0.3``; so is
what is missing: None, and empty text.
"""

from __future__ import annotations

import enum
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final, cast
from uuid import UUID

from brokerwq.errors import PayloadError

DIGEST_BYTES: Final = 16
_PERSON: Final = b"brokerwq-key-1"
_PAYLOAD_PERSON: Final = b"brokerwq-body-1"
_MOST_BYTES: Final = 64 * 1024


class NoKeyError(PayloadError):
    """A value has no key, or a part of it is missing."""


def digest_of(scope: Sequence[object], value: object) -> bytes:
    """16 bytes for ``value`` among the keys of ``scope``.

    Raises:
        NoKeyError: the value, or a part of it, is missing or of no type that has a key.
    """
    encoded = encoded_key([*scope, value])
    return blake2b(encoded, digest_size=DIGEST_BYTES, person=_PERSON).digest()


def payload_digest(body: bytes) -> bytes:
    """16 bytes for a message's body.

    Of the bytes alone: what is around them may be lost on the way from broker to broker.
    """
    return blake2b(body, digest_size=DIGEST_BYTES, person=_PAYLOAD_PERSON).digest()


def encoded_key(value: object) -> bytes:
    """``value`` in the canonical form.

    Raises:
        NoKeyError: as ``digest_of``.
    """
    parts: list[bytes] = []
    _write(value, parts, depth=0)
    encoded = b"".join(parts)
    if len(encoded) > _MOST_BYTES:
        msg = f"the key takes {len(encoded)} bytes; the limit is {_MOST_BYTES}"
        raise NoKeyError(msg)
    return encoded


_DEEPEST: Final = 20


def _write(value: object, parts: list[bytes], *, depth: int) -> None:
    if depth > _DEEPEST:
        msg = f"the key is nested more than {_DEEPEST} deep"
        raise NoKeyError(msg)
    if isinstance(value, enum.Enum):
        _write(value.value, parts, depth=depth)
    elif isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        if not items:
            msg = "the key, or a part of it, is an empty list"
            raise NoKeyError(msg)
        parts.append(b"l%d:" % len(items))
        for item in items:
            _write(item, parts, depth=depth + 1)
    elif isinstance(value, Mapping):
        _write_mapping(cast("Mapping[object, object]", value), parts, depth)
    else:
        tag, data = _scalar(value)
        parts.append(b"%c%d:" % (tag, len(data)))
        parts.append(data)


def _write_mapping(value: Mapping[object, object], parts: list[bytes], depth: int) -> None:
    names = [name for name in value if isinstance(name, str)]
    if len(names) != len(value) or not names:
        msg = "a mapping in a key must have names that are text, and at least one"
        raise NoKeyError(msg)
    parts.append(b"m%d:" % len(names))
    for name in sorted(names):
        _write(name, parts, depth=depth + 1)
        _write(value[name], parts, depth=depth + 1)


def _scalar(value: object) -> tuple[int, bytes]:  # noqa: C901, PLR0911, PLR0912 -- one line a type
    match value:
        case None | "":
            msg = f"the key, or a part of it, is {value!r}: it would join unrelated work"
            raise NoKeyError(msg)
        case bool():
            return ord("?"), b"1" if value else b"0"
        case int():
            return ord("i"), b"%d" % value
        case str():
            return ord("s"), _utf8(value)
        case Decimal() if value.is_finite():
            return ord("d"), _plain_decimal(value)
        case datetime() if value.tzinfo is not None:
            return ord("t"), value.astimezone(UTC).isoformat().encode()
        case datetime():
            return ord("n"), value.isoformat().encode()
        case UUID():
            return ord("u"), value.bytes
        case date():
            return ord("D"), value.isoformat().encode()
        case time():
            return ord("T"), value.isoformat().encode()
        case bytes() if value:
            return ord("b"), value
        case float():
            msg = "the key holds a float, and equal ones need not look equal: round it to text"
            raise NoKeyError(msg)
        case _:
            msg = (
                f"the key holds a {type(value).__name__}; it may hold text, whole numbers, "
                "Decimal, bool, UUID, bytes, moments, and lists and mappings of such"
            )
            raise NoKeyError(msg)


def _plain_decimal(value: Decimal) -> bytes:
    if not value:
        return b"0"
    sign, digits, exponent = value.normalize().as_tuple()
    return b"%s%se%d" % (b"-" * sign, "".join(map(str, digits)).encode(), cast("Any", exponent))


def _utf8(text: str) -> bytes:
    try:
        return unicodedata.normalize("NFC", text).encode()
    except UnicodeEncodeError:
        msg = "the key holds a lone surrogate, which no encoding carries"
        raise NoKeyError(msg) from None

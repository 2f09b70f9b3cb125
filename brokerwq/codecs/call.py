"""Messages that are calls: their arguments as the payload of a worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar, cast, get_origin
from uuid import UUID

from brokerwq.codecs.base import BoundCodec
from brokerwq.codecs.plain import JsonBound
from brokerwq.errors import ConfigError, EnvelopeError
from brokerwq.foreign import Arguments, Reading

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a worker takes.

    Attributes:
        kind: The type of its payload; None in the keyword form.
        names: Its fields in order; the one payload's name where that is its form.
        codec: Reads the payload, or the object of the fields.
    """

    kind: Any
    names: Sequence[str]
    codec: BoundCodec


def payload_of(arguments: Arguments, shape: Shape) -> object:
    """What a worker of ``shape`` is given when it is called with ``arguments``.

    Raises:
        EnvelopeError: they are not what it takes.
    """
    if shape.kind is Arguments:
        return arguments
    fields = _by_name(arguments, shape.names)
    if shape.kind is None:
        return _validated(fields, shape.codec)
    if not fields:
        msg = f"the call has no argument; the worker takes {shape.names[0]}"
        raise EnvelopeError(msg)
    for name in fields.keys() - set(shape.names):
        msg = f"the call has an argument {name!r:.100}; the worker takes {shape.names[0]} alone"
        raise EnvelopeError(msg)
    (payload,) = fields.values()
    return payload if type(payload) is shape.kind is bytes else _validated(payload, shape.codec)


def _by_name(arguments: Arguments, names: Sequence[str]) -> Mapping[str, object]:
    count = len(arguments.args)
    if count > len(names):
        msg = f"the call has {count} arguments by position; the worker takes {len(names)}"
        raise EnvelopeError(msg)
    fields = dict(zip(names, arguments.args, strict=False))
    for name in fields.keys() & arguments.kwargs.keys():
        msg = f"the call has two arguments {name!r:.100}"
        raise EnvelopeError(msg)
    return {**fields, **arguments.kwargs}


def _validated(value: object, codec: BoundCodec) -> object:
    try:
        body = compact(value)
    except _BinaryError:
        # JSON has no place for it, so the value itself is looked at.
        if isinstance(codec, JsonBound):
            return codec.validate(value)
        raise EnvelopeError(_ODD) from None
    except (TypeError, ValueError, RecursionError):
        raise EnvelopeError(_ODD) from None
    return codec.decode(body, "")


_ODD: Final = "the call has an argument that JSON cannot carry"


class _BinaryError(Exception):
    """Bytes that are no text."""


def compact(value: object) -> bytes:
    """``value`` as JSON that a payload is read from."""
    return json.dumps(value, separators=(",", ":"), default=_written).encode()


def _written(value: object) -> str:
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise _BinaryError from None
        case _:
            raise TypeError


_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC, microsecond=0)


def in_utc(moment: datetime) -> datetime:
    """``moment`` in UTC.

    Where it is beyond the calendar there, the calendar's first or last second stands for it: as
    long past, or as far ahead, as what was meant.
    """
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        is_past = (moment.utcoffset() or timedelta()) > timedelta()
        return _FIRST if is_past else _LAST


def completed(known: Reading, complete: Callable[[Reading], Reading]) -> Reading:
    """``complete(known)``; what it refuses is called by the type and id that ``known`` has."""
    try:
        return complete(known)
    except EnvelopeError as error:
        return replace(known, defect=str(error))


def part(holder: Mapping[str, object], name: str, kind: type[T], what: str) -> T:
    """What ``holder`` has by ``name``, a ``kind``.

    Args:
        holder: Read from JSON.
        name: One of its fields.
        kind: What it must be; the types of what is in it are not looked at.
        what: What it is a part of, for the error.

    Raises:
        EnvelopeError: it is missing, or another type.
    """
    found = holder.get(name)
    if not isinstance(found, get_origin(kind) or kind):
        msg = f"it has no {name}, as {what} has"
        raise EnvelopeError(msg)
    return cast("T", found)


def refuse_workflow(what: str, found: list[str]) -> None:
    """Refuse a message that others shall follow.

    Raises:
        EnvelopeError: ``found`` names something.
    """
    if found:
        msg = (
            f"the {what} has {', '.join(found)}, with which nobody here would go on; "
            "workflows='ignore' runs it all the same"
        )
        raise EnvelopeError(msg)


def check_choice(value: object, name: str, *choices: str) -> None:
    """Refuse a ``value`` that is none of ``choices``.

    Raises:
        ConfigError: it is none.
    """
    if value not in choices:
        known = " or ".join(map(repr, choices))
        msg = f"{name} must be {known}, not {value!r:.100}"
        raise ConfigError(msg)

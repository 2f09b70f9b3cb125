"""``key=…``: what makes two messages the same work, as the text that a message carries."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

from brokerwq.codecs import kind_name
from brokerwq.errors import ConfigError, PayloadError
from brokerwq.workers.options import Key
from brokerwq.workers.signature import Signature

MAX_KEY_CHARS: Final = 1000

KeyReader: TypeAlias = Callable[[Any], str]
"""The key of a payload (of a mapping of the fields, in the keyword form)."""


def key_reader(key: Key | None, signature: Signature) -> KeyReader | None:
    """What reads the key that ``worker(key=key)`` asks for.

    Raises:
        ConfigError: it names a field that the payload does not have, or is of another type.
    """
    value = value_reader(key, signature)
    return None if value is None else lambda payload: key_text(value(payload))


def value_reader(key: Key | None, signature: Signature) -> Callable[[Any], object] | None:
    """What reads the value, before it becomes text, that ``worker(key=key)`` asks for.

    Raises:
        ConfigError: as ``key_reader``.
    """
    if key is None:
        return None
    if callable(key):
        return _value_by_function(key, signature)
    return _value_by_fields(_names(key), signature, alone=isinstance(key, str))


def _names(key: object) -> tuple[str, ...]:
    if isinstance(key, str):
        return (key,)
    given = tuple(cast("Sequence[object]", key)) if isinstance(key, Sequence) else ()
    names = tuple(name for name in given if isinstance(name, str))
    if not names or len(names) != len(given):
        msg = f"key must be a function, a field's name or names, not {key!r:.200}"
        raise ConfigError(msg)
    return names


def _value_by_function(
    key: Callable[[Any], object], signature: Signature
) -> Callable[[Any], object]:
    fields = signature.fields
    if fields is None:
        return lambda payload: _call(key, payload)
    defaults = {name: field.default for name, field in fields.items() if not field.required}
    return lambda given: _call(key, types.SimpleNamespace(**{**defaults, **given}))


def _call(key: Callable[[Any], object], payload: object) -> object:
    try:
        return key(payload)
    except Exception as exc:
        msg = f"the key function failed: {type(exc).__name__}"
        raise PayloadError(msg) from exc


def _value_by_fields(
    names: tuple[str, ...], signature: Signature, *, alone: bool
) -> Callable[[Any], object]:
    if signature.fields is not None:
        _check_fields(names, set(signature.fields), "the worker's fields")
        defaults = {name: field.default for name, field in signature.fields.items()}

        def read(payload: Any, name: str) -> object:
            return payload[name] if name in payload else defaults[name]
    else:
        kind = signature.kind
        known, is_mapping = _fields_of(kind)
        _check_fields(names, known, kind_name(kind))

        def read(payload: Any, name: str) -> object:
            return payload.get(name) if is_mapping else getattr(payload, name)

    if alone:
        name = names[0]
        return lambda payload: read(payload, name)
    return lambda payload: [read(payload, name) for name in names]


def _check_fields(names: tuple[str, ...], known: set[str], owner: str) -> None:
    for name in names:
        if name not in known:
            msg = (
                f"key names the field {name!r:.100}, which is not one of {owner}: "
                f"{', '.join(sorted(known)) or 'it has none'}"
            )
            raise ConfigError(msg)


def _fields_of(kind: Any) -> tuple[set[str], bool]:
    """The names of the fields of ``kind``, and whether they are a mapping's entries."""
    if typing.get_origin(kind) is typing.Annotated:
        return _fields_of(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        found = [_fields_of(part) for part in typing.get_args(kind)]
        if len({is_mapping for _, is_mapping in found}) == 1:
            return set[str].intersection(*(names for names, _ in found)), found[0][1]
    elif isinstance(kind, type):
        return _fields_of_class(kind)
    raise _no_fields(kind)


def _fields_of_class(kind: type[Any]) -> tuple[set[str], bool]:
    model_fields = getattr(kind, "model_fields", None)
    if isinstance(model_fields, Mapping):
        return {str(name) for name in cast("Mapping[object, object]", model_fields)}, False
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}, False
    # typing's own test does not know the TypedDict of typing_extensions.
    if hasattr(kind, "__required_keys__"):
        return {*kind.__required_keys__, *kind.__optional_keys__}, True
    raise _no_fields(kind)


def _no_fields(kind: Any) -> ConfigError:
    return ConfigError(f"{kind_name(kind)} has no named fields: give key a function of the payload")


def key_text(value: object) -> str:
    """``value`` as the text of a key: the same for equal values, in every process.

    Simple values become their usual text, a moment is given in UTC, and a list or tuple
    becomes JSON of its parts.

    Raises:
        PayloadError: it is None, empty, too long, or of a type that has no such text.
    """
    plain = _plain(value)
    if plain is None:
        msg = "the key is None, which would make one piece of work of all such messages"
        raise PayloadError(msg)
    if isinstance(plain, str):
        text = plain
    else:
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    if not 0 < len(text) <= MAX_KEY_CHARS:
        msg = f"the key must have 1 to {MAX_KEY_CHARS} characters, not {len(text)}"
        raise PayloadError(msg)
    try:
        text.encode()
    except UnicodeEncodeError:
        msg = "the key holds a lone surrogate, which no encoding carries"
        raise PayloadError(msg) from None
    return text


def _plain(value: object) -> object:
    """``value`` by the types that JSON has."""
    plain: object
    match value:
        case enum.Enum():
            plain = _plain(value.value)
        case None | str() | bool() | int():
            plain = value
        case float() | Decimal() if math.isfinite(value):
            plain = value if isinstance(value, float) else str(value)
        case datetime():
            plain = (value.astimezone(UTC) if value.tzinfo else value).isoformat()
        case UUID():
            plain = str(value)
        case date() | time():
            plain = value.isoformat()
        case bytes():
            plain = value.hex()
        case list() | tuple():
            plain = [_plain(part) for part in cast("Sequence[object]", value)]
        case _:
            msg = (
                f"the key is a {type(value).__name__}; it must be text, a finite number, a UUID, "
                "a moment, or a list of such"
            )
            raise PayloadError(msg)
    return plain

"""Payload to body and back.

Two codecs come with brokerwq. ``json`` carries whatever pydantic can: models, dataclasses,
builtins, unions, ``None``. ``bytes`` carries a payload annotated ``bytes`` as it is. pydantic
is imported when a codec is first bound to a type, never with ``import brokerwq``.

What JSON means here, stricter than most parsers, because nothing is ever guessed:

- A body is UTF-8 without a byte order mark (RFC 8259, section 8.1, forbids senders to add one).
- ``NaN`` and ``Infinity`` are no JSON: refused in both directions, however deeply nested. So
  are, in sending, a lone surrogate and a ``SecretStr``, of which pydantic would write a mask.
- An object that names a key twice is refused: two parsers could read two different messages.
- A number that is too large for a binary float is refused, and where the payload's type has a
  ``Decimal`` one with more digits than a float keeps, for pydantic reads either as one.
- Types are read by pydantic's JSON mode. It is lax where JSON lacks a type (a date is a
  string) and also reads ``"5"`` as the integer 5; a model that wants none of that says
  ``ConfigDict(strict=True)``. A model's fields are written by their names, unless its
  ``serialize_by_alias`` says otherwise, and read by name or alias.
- What a payload's declared type does not have is not sent: a field of a subclass, a computed
  field.
- What is sent was read back before: what the worker would refuse, the sender is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from brokerwq.codecs import strict
from brokerwq.codecs.base import (
    BYTES_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    MAX_ERROR_CHARS,
    BoundCodec,
    kind_name,
)
from brokerwq.codecs.unfit import unfit
from brokerwq.errors import ConfigError, EnvelopeError, PayloadError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


class BytesCodec:
    """The payload is the body. Reads every content type."""

    content_type: str = BYTES_CONTENT_TYPE

    def bind(self, kind: Any, /) -> BoundCodec:
        """See ``Codec.bind``: only ``bytes`` will do."""
        if kind is not bytes:
            msg = f"codec 'bytes' carries a payload annotated bytes, not {kind_name(kind)}"
            raise ConfigError(msg)
        return _BytesBound()


class _BytesBound:
    __slots__ = ()

    def encode(self, payload: Any, /) -> bytes:
        if type(payload) is not bytes:
            msg = f"the payload must be bytes, not {type(payload).__name__}"
            raise PayloadError(msg)
        return payload

    def decode(self, body: bytes, content_type: str, /) -> object:
        return body


class JsonCodec:
    """JSON by pydantic; the module's docstring says how strict."""

    content_type: str = JSON_CONTENT_TYPE

    def bind(self, kind: Any, /) -> BoundCodec:
        """See ``Codec.bind``: whatever pydantic has a schema for."""
        return JsonBound(kind, _adapter(kind))


def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # noqa: PLC0415  -- 100 ms that an import must not cost
    from pydantic.errors import PydanticUserError  # noqa: PLC0415

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
    except (PydanticUserError, NameError, TypeError) as exc:
        msg = (
            f"{kind_name(kind)} cannot be carried as JSON: take a pydantic model, a dataclass or "
            f"builtins ({str(exc).partition(chr(10))[0]:.200})"
        )
        raise ConfigError(msg) from exc
    if not adapter.pydantic_complete:
        msg = (
            f"{kind_name(kind)} is not fully defined: some type that its fields name is missing. "
            "Define it above the worker, and not under `if TYPE_CHECKING:`"
        )
        raise ConfigError(msg)
    return adapter


# What pydantic writes for a value that it cannot: null, or a word if a config asks for one, for
# NaN; a mask for a secret; U+FFFD for a lone surrogate in a key. Where one of these stands, the
# payload is looked through for such a value.
_is_suspicious = re.compile(rb"null|NaN|Infinity|\*{10}|\xef\xbf\xbd").search


class JsonBound:
    """JSON for one type of payload."""

    __slots__ = (
        "_class",
        "_is_exact",
        "_kind",
        "_read",
        "_to_json",
        "_to_python",
        "_validate",
        "_validation_error",
    )

    def __init__(self, kind: Any, adapter: TypeAdapter[Any]) -> None:
        from pydantic import ValidationError  # noqa: PLC0415

        self._validation_error = ValidationError
        self._kind = kind
        self._class: type | None = kind if _has_instances(kind) else None
        self._is_exact = _has_decimals(adapter.core_schema)
        self._to_json = adapter.serializer.to_json
        self._to_python = adapter.serializer.to_python
        self._read = adapter.validator.validate_json
        self._validate = adapter.validator.validate_python

    def encode(self, payload: Any, /) -> bytes:
        """See ``BoundCodec.encode``."""
        if self._class is None:
            self._check(payload)
        elif not isinstance(payload, self._class):
            msg = f"the payload must be {kind_name(self._kind)}, not {type(payload).__name__}"
            raise PayloadError(msg)
        try:
            # The round trip leaves out computed fields, which no decoder could take back.
            body = self._to_json(payload, warnings="error", round_trip=True)
        except Exception as exc:  # noqa: BLE001  -- from pydantic or from a user's serializer
            raise PayloadError(self._complaint(payload, exc)) from None
        if _is_suspicious(body):
            self._refuse_unfit(payload)
        try:
            # Nobody but the decoder knows all that it refuses; a worker would make a dead letter.
            self.decode(body, JSON_CONTENT_TYPE)
        except EnvelopeError as exc:
            msg = f"no worker could read the payload: {exc}"
            raise PayloadError(msg[:MAX_ERROR_CHARS]) from None
        return body

    def _check(self, payload: Any) -> None:
        try:
            # The answer is dropped: only the encoder below says what is sent.
            self._validate(payload, strict=True)
        except self._validation_error as exc:
            msg = f"the payload does not fit {kind_name(self._kind)}: {_faults(exc)}"
            raise PayloadError(msg[:MAX_ERROR_CHARS]) from None
        except Exception as exc:
            msg = f"the payload cannot be checked: {type(exc).__name__}"
            raise PayloadError(msg) from exc

    def _refuse_unfit(self, payload: Any) -> None:
        for complaint in unfit(self._to_python(payload, round_trip=True), "payload"):
            raise PayloadError(complaint[:MAX_ERROR_CHARS])

    def _complaint(self, payload: Any, error: Exception) -> str:
        """Why ``payload`` cannot be written, without its values."""
        text = str(error)
        mismatch = re.search(r"Expected `(.+?)` .*?input_type=(\w+)\]", text, re.DOTALL)
        if mismatch:
            field = re.search(r"field_name='(\w+)'", text)
            where = f"field {field[1]!r}" if field else "a part of the payload"
            return f"{where} must be {mismatch[1]}, not {mismatch[2]}"[:MAX_ERROR_CHARS]
        if "UnicodeEncodeError" in text or "surrogate" in text:
            try:
                plain = self._to_python(payload, round_trip=True)
            except Exception:  # noqa: BLE001  -- only the field's name is lost
                plain = None
            for complaint in unfit(plain, "payload"):
                return complaint[:MAX_ERROR_CHARS]
        reason = text.removeprefix("Error serializing to JSON: ").partition("\n")[0]
        return f"the payload cannot be written as JSON: {reason}"[:MAX_ERROR_CHARS]

    def decode(self, body: bytes, content_type: str, /) -> object:
        """See ``BoundCodec.decode``."""
        if content_type and content_type != JSON_CONTENT_TYPE and not is_json(content_type):
            msg = f"content type is {content_type!r:.100}; the worker takes {JSON_CONTENT_TYPE}"
            raise EnvelopeError(msg)
        try:
            text = body.decode()
            payload = self._read(text, by_alias=True, by_name=True)
            strict.check(text, exactly=self._is_exact)
        except UnicodeDecodeError as exc:
            msg = f"the body is not UTF-8 (byte {exc.start} of {len(body)})"
        except self._validation_error as exc:
            msg = "the body starts with a byte order mark" if _has_bom(body) else _faults(exc)
        except RecursionError:
            msg = "the body is nested too deeply"
        except strict.NotStrictError as exc:
            msg = str(exc)
        except Exception as exc:  # noqa: BLE001  -- a validator of the user's own
            msg = f"the body could not be validated: {type(exc).__name__}"
        else:
            return payload
        raise EnvelopeError(msg[:MAX_ERROR_CHARS])

    def validate(self, value: object) -> object:
        """The payload that ``value`` is, where it holds what JSON cannot carry.

        Raises:
            EnvelopeError: it is none.
        """
        try:
            payload: object = self._validate(value)
        except self._validation_error as exc:
            msg = _faults(exc)
        except RecursionError:
            msg = "the payload is nested too deeply"
        except Exception as exc:  # noqa: BLE001  -- a validator of the user's own
            msg = f"the payload could not be validated: {type(exc).__name__}"
        else:
            return payload
        raise EnvelopeError(msg[:MAX_ERROR_CHARS])


def _has_decimals(schema: object) -> bool:
    """Whether a payload of pydantic's ``schema`` may hold a ``Decimal``."""
    match schema:
        case {"type": "decimal"}:
            return True
        case dict():
            entries = cast("dict[str, object]", schema)
            return any(_has_decimals(part) for name, part in entries.items() if name != "metadata")
        case list() | tuple():
            return any(map(_has_decimals, cast("Sequence[object]", schema)))
        case _:
            return False


def _has_instances(kind: Any) -> bool:
    """Whether ``isinstance`` says all that there is to say about a payload's type."""
    from pydantic import BaseModel  # noqa: PLC0415

    return isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, BaseModel))


def is_json(content_type: str) -> bool:
    """Whether a media type, with or without parameters, is one of JSON."""
    media = content_type.partition(";")[0].strip().lower()
    return media in (JSON_CONTENT_TYPE, "text/json") or media.endswith("+json")


def _has_bom(body: bytes) -> bool:
    return body.startswith(b"\xef\xbb\xbf")


_WORDS: Final[Mapping[str, str]] = {
    "missing": "missing",
    "extra_forbidden": "no such field",
    "none_required": "must be null",
    **dict.fromkeys(("string_type", "string_sub_type"), "must be text"),
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "must be a whole number"
    ),
    "finite_number": "must be a finite number",
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("decimal_type", "decimal_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "dataclass_type"), "must be an object"),
    **dict.fromkeys(("uuid_type", "uuid_parsing"), "must be a UUID"),
    **dict.fromkeys(("date_type", "date_from_datetime_parsing"), "must be a date"),
    **dict.fromkeys(("datetime_type", "datetime_from_date_parsing"), "must be a date with a time"),
}
"""The commonest types of pydantic's faults, said to people; the others are shown as they are."""


_TOLD: Final = 3
"""How many faults of one payload are told."""


def _faults(error: ValidationError) -> str:
    """Where and of which type the first faults are; pydantic's texts may quote the body."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    first = faults[0]
    if first["type"] == "json_invalid":
        return first["msg"]
    # More than one, since of a misspelt field the missing one comes first, and hides the other.
    told = [
        f"{'.'.join(str(part) for part in fault['loc']) or 'the whole':.120}: "
        f"{_WORDS.get(fault['type'], fault['type'])}"
        for fault in faults[:_TOLD]
    ]
    more = f" ({len(faults)} faults)" if len(faults) > _TOLD else ""
    return "; ".join(told) + more


JSON: Final = JsonCodec()
BYTES: Final = BytesCodec()

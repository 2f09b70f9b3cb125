"""JSON that means one thing alone: no key twice, no ``NaN``, no byte order mark."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, Final, cast

from brokerwq.errors import EnvelopeError

_WHITE: Final = " \t\r\n"


class NotStrictError(ValueError):
    """What many parsers let pass and this one does not."""


def _check_pairs(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        msg = "an object names the same key twice"
        raise NotStrictError(msg)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "an object names the same key twice"
        raise NotStrictError(msg)
    return found


def _no_constants(name: str) -> None:
    msg = f"{name} is not JSON"
    raise NotStrictError(msg)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        msg = "a number is too large"
        raise NotStrictError(msg)
    return number


def _exact(text: str) -> None:
    if Decimal(repr(_finite(text))) != Decimal(text):
        msg = "a number has more digits than are read of it; have it sent as text"
        raise NotStrictError(msg)


_checker = json.JSONDecoder(
    object_pairs_hook=_check_pairs, parse_constant=_no_constants, parse_float=_finite
)
_exact_checker = json.JSONDecoder(
    object_pairs_hook=_check_pairs, parse_constant=_no_constants, parse_float=_exact
)
_reader = json.JSONDecoder(
    object_pairs_hook=_distinct, parse_constant=_no_constants, parse_float=_finite
)


def check(text: str, *, exactly: bool = False) -> None:
    """Refuse what a reader of JSON could take for two different things.

    Args:
        text: JSON.
        exactly: Refuse also numbers that a binary float does not hold, and would round.

    Raises:
        NotStrictError: it is such, or no JSON at all.
    """
    (_exact_checker if exactly else _checker).raw_decode(text.lstrip(_WHITE))


def parse(body: bytes, what: str) -> Any:
    """The value that ``body`` holds.

    Args:
        body: JSON in UTF-8.
        what: What it is, for the error.

    Raises:
        EnvelopeError: it is no such text. Shows nothing of it.
    """
    try:
        text = body.decode()
        if text.startswith("\ufeff"):
            msg = f"{what} starts with a byte order mark"
            raise EnvelopeError(msg)
        return _reader.decode(text)
    except UnicodeDecodeError as exc:
        msg = f"{what} is not UTF-8 (byte {exc.start} of {len(body)})"
    except json.JSONDecodeError as exc:
        msg = f"{what} is not JSON: {exc.msg} (character {exc.pos})"
    except NotStrictError as exc:
        msg = f"{what}: {exc}"
    except RecursionError:
        msg = f"{what} is nested too deeply"
    except ValueError:
        msg = f"{what} holds a number with too many digits"
    raise EnvelopeError(msg)


def parse_object(body: bytes, what: str) -> dict[str, object]:
    """The object that ``body`` holds.

    Raises:
        EnvelopeError: it holds none.
    """
    found = parse(body, what)
    if not isinstance(found, dict):
        msg = f"{what} is not a JSON object"
        raise EnvelopeError(msg)
    return cast("dict[str, object]", found)


def member_of(body: bytes, name: str) -> bytes:
    """The JSON of the member ``name`` as it stands in the object ``body``.

    Args:
        body: What ``parse_object`` has read.
        name: One of its members.
    """
    text = body.decode()
    at = text.index("{") + 1
    while True:
        found, at = _reader.raw_decode(text, _past_white(text, at))
        begin = _past_white(text, _past_white(text, at) + 1)
        _, end = _reader.raw_decode(text, begin)
        if found == name:
            return text[begin:end].encode()
        at = _past_white(text, end) + 1


def _past_white(text: str, at: int) -> int:
    while text[at] in _WHITE:
        at += 1
    return at

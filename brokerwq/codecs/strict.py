"""JSON that means one thing alone: no key twice, no ``NaN``, no byte order mark."""

from __future__ import annotations

import json
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


_checker = json.JSONDecoder(object_pairs_hook=_check_pairs, parse_constant=_no_constants)
_reader = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_constants)


def check(text: str) -> None:
    """Refuse what a reader of JSON could take for two different things.

    Raises:
        NotStrictError: it is such, or no JSON at all.
    """
    _checker.raw_decode(text.lstrip(_WHITE))


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

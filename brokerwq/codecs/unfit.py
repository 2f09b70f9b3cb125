"""What JSON cannot carry, found in a payload."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import cast

from brokerwq.foreign import is_unicode


def unfit(value: object, path: str) -> Iterator[str]:
    """What in ``value`` JSON cannot carry, and where."""
    match value:
        case str() | bytes() | bytearray():
            yield from _alone(value, path)
        case Mapping():
            entries = cast("Mapping[object, object]", value)  # whatever they are, they are objects
            for key, entry in entries.items():
                yield from unfit(key, f"a key of {path}")
                yield from unfit(entry, f"{path}.{_printable(key)}")
        case Sequence() | AbstractSet():
            parts = cast("Iterable[object]", value)  # as above
            for nth, part in enumerate(parts):
                yield from unfit(part, f"{path}.{nth}")
        case _:
            yield from _alone(value, path)


def _alone(value: object, path: str) -> Iterator[str]:
    if isinstance(value, float | Decimal):
        if not math.isfinite(value):
            yield f"{path} is {value}, which JSON cannot carry"
    elif isinstance(value, str):
        if not value.isascii() and not is_unicode(value):
            yield f"{path} holds a lone surrogate, which no encoding carries"
    elif hasattr(value, "get_secret_value"):
        yield f"{path} is a secret, which would be sent as stars; give it a serializer"


def _printable(key: object) -> str:
    return f"{key!s:.50}".encode("ascii", "backslashreplace").decode()

"""What an error of PostgreSQL means, by its SQLSTATE: the same from every client library."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from brokerwq.errors import StoreError, StoreUnavailableError
from brokerwq.idempotency.stores._lasting import LastingError

Kind: TypeAlias = Literal["conflict", "locked", "tables", "spoilt", "passing", "refused", "other"]
"""The transaction was given up for another one; a lock was not to be had in time; our tables are
missing; an earlier error has spoilt the transaction; trying again later may help; the server said
no; it is no error of the database."""

CONFLICTS: Final = frozenset({"40001", "40P01"})
_KINDS: Final[dict[str, Kind]] = {
    "40001": "conflict",
    "40P01": "conflict",
    "55P03": "locked",
    "42P01": "tables",
    "3F000": "tables",
    "25P02": "spoilt",
    "25P03": "passing",
    "25P04": "passing",
}
# Connection, resources, operator, system, and a login that a server in trouble refuses; a
# transaction that the server ended because its client was silent.
_PASSING_CLASSES: Final = frozenset({"08", "28", "40", "53", "57", "58", "XX"})
_FORBIDDEN: Final = "42501"
_CANCELLED: Final = "57014"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        # SQLAlchemy keeps the driver's own error as ``orig``.
        todo += [getattr(each, "orig", None), each.__cause__]


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE that ``error`` carries, or what it was raised from; None without one."""
    for each in _chain(error):
        found = getattr(each, "sqlstate", None)
        if isinstance(found, str):
            return found
    return None


def kind_of(error: BaseException, lost: tuple[type[BaseException], ...] = ()) -> Kind:
    """What ``error`` means; ``lost`` are the library's own errors of a lost connection."""
    state = sqlstate_of(error)
    if state is None:
        is_lost = any(isinstance(each, (OSError, *lost)) for each in _chain(error))
        is_late = isinstance(error, asyncio.TimeoutError)
        return "passing" if is_lost or is_late else "other"
    if state in _KINDS:
        return _KINDS[state]
    return "passing" if state[:2] in _PASSING_CLASSES else "refused"


def is_decided(error: BaseException) -> bool:
    """Whether the server answered a COMMIT with ``error``: nothing was committed then."""
    state = sqlstate_of(error)
    if state is None or state == "40003":
        return False
    return state == _CANCELLED or state[:2] not in {"08", "57", "58", "XX"}


class Translated(contextlib.AbstractContextManager[None]):
    """A block whose native errors become ours, raised from them.

    Args:
        name: The store's, for people.
        lost: See ``kind_of``.
    """

    def __init__(self, name: str, lost: tuple[type[BaseException], ...]) -> None:
        self._name = name
        self._lost = lost

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, StoreError) or not isinstance(error, Exception):
            return
        kind = kind_of(error, self._lost)
        if kind == "other":
            return
        text = f"store {self._name}: {type(error).__name__}: {error}"
        if kind in ("passing", "conflict"):
            raise StoreUnavailableError(text) from error
        if kind == "tables" or sqlstate_of(error) == _FORBIDDEN:
            raise LastingError(text) from error
        raise StoreError(text) from error

"""What stands on a line of somebody's program."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from typing import Final

_CUT: Final = 100
_WITH: Final = ("with ", "async with ")


def line(file: str, number: int) -> str:
    """The text of a line, as far as it can be read."""
    return linecache.getline(file, number).strip()[:_CUT]


def is_with(file: str, number: int) -> bool:
    """Whether a ``with`` statement begins there."""
    return line(file, number).startswith(_WITH)


@lru_cache(maxsize=256)
def unguarded(file: str) -> frozenset[int]:
    """Lines at which an exception leaves behind what only the end of a process would free.

    The ``try:`` after an ``acquire()``, and what is in a ``finally``.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return frozenset()
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try | ast.TryStar):
            found.add(node.lineno)
            for each in node.finalbody:
                found.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    return frozenset(found)

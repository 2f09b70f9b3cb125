"""A piece of work for the engine's thread, and how its answer comes back to an event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from brokerwq.errors import BrokerwqError
from brokerwq_sqlite import statements
from brokerwq_sqlite.statements import Leased, Moment, Outlook

T = TypeVar("T")

Work: TypeAlias = Callable[[sqlite3.Connection, Moment], T]


@dataclass(slots=True, eq=False, kw_only=True)
class Operation(Generic[T]):
    """Work that waits for its turn.

    A ``DriverError`` out of ``work`` means that it changed nothing, and is its answer.

    Attributes:
        work: What to do, within a transaction.
        writes: Whether that transaction must be able to write.
        feeds: Whether it may make messages claimable.
        weight: How many rows it touches, about.
        loop: Where the one who asked for it runs.
        future: Its answer; None where nobody wants to know.
    """

    work: Work[T]
    writes: bool
    feeds: bool = False
    weight: int = 1
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T] | None

    def undo(self, result: object) -> Operation[None] | None:
        """What takes ``result`` back if nobody waits for it any more; None where nothing need."""
        return None

    def must_wait(self, result: object) -> bool:
        """Whether ``result`` is no answer yet."""
        return False


@dataclass(slots=True, eq=False, kw_only=True)
class Claim(Operation[Leased]):
    """A claim: it may wait, and what it took must not get lost.

    Attributes:
        queue: Id of the queue.
        waits: Whether it waits for a message to come.
        is_over: Nobody wants a message any more; set from any thread.
        is_late: Its time is up: one last look, then the answer; set from any thread.
        outlook: What its last look has found; None asks for another look.
    """

    queue: int
    waits: bool
    is_over: bool = False
    is_late: bool = False
    outlook: Outlook | None = None

    def undo(self, result: object) -> Operation[None] | None:
        """See ``Operation.undo``: the claim, as if it had never been."""
        if not isinstance(result, Leased) or not result.rows:
            return None
        return Operation(
            work=lambda db, _: statements.unclaim(db, result),
            writes=True,
            feeds=True,
            weight=len(result.rows),
            loop=self.loop,
            future=None,
        )

    def must_wait(self, result: object) -> bool:
        """See ``Operation.must_wait``: others were quicker, and there is time left."""
        is_empty = isinstance(result, Leased) and not result.rows
        return is_empty and self.waits and not (self.is_over or self.is_late)


class Answer(NamedTuple):
    """What became of an operation."""

    operation: Operation[Any]
    result: Any = None
    error: BrokerwqError | None = None


def deliver(answers: Sequence[Answer], undo: Callable[[Answer], None]) -> None:
    """Hand ``answers`` to those who wait, on their loops, in one call for each loop.

    Args:
        answers: All that one transaction answered.
        undo: Called, on any thread, with each answer that nobody waits for any more.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        if answer.operation.future is not None:
            by_loop.setdefault(answer.operation.loop, []).append(answer)
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, group, undo)
        except RuntimeError:  # the loop was closed
            for answer in group:
                undo(answer)


def _settle(answers: Sequence[Answer], undo: Callable[[Answer], None]) -> None:
    for answer in answers:
        operation, result, error = answer
        future = operation.future
        if future is None:
            continue
        if future.done():
            undo(answer)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


NOTHING = Leased(0, inf, [])
"""A claim that found nothing."""

"""How a handler asks for something other than "done".

Raise one of these from a handler, return it in the list of a batch handler, or name it in
``RetryPolicy.on``. They steer; they are not errors, and none is logged as one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from brokerwq.durations import Seconds, seconds_of
from brokerwq.limits import MAX_DELAY


def _text(reason: object) -> str:
    # ``raise DeadLetter(error)`` is what many will write, and no reason to fail.
    return "" if reason is None else str(reason)


class Outcome(Exception):  # noqa: N818  -- control flow, not an error
    """Base of the outcomes; as an entry of a batch handler's answer, see ``Done``."""


class Done(Outcome):
    """The message is finished. Only needed in the answer of a batch handler."""


class Retry(Outcome):
    """A failed attempt: the message comes back, and the attempt counts.

    Args:
        after: Seconds or ``timedelta`` until the next attempt, at most 10 years; None asks
            the retry policy.
        reason: Why, for logs and for the dead letter it may become.
    """

    def __init__(self, after: Seconds | None = None, *, reason: str = "") -> None:
        super().__init__(reason)
        self.after = (
            None if after is None else seconds_of(after, "after", floor=0.0, limit=MAX_DELAY)
        )
        self.reason = _text(reason)


class Snooze(Outcome):
    """The message comes back later, and no attempt is spent; 14 days in all at most."""

    def __init__(self, after: Seconds, *, reason: str = "") -> None:
        super().__init__(reason)
        self.after: float = seconds_of(after, "after", floor=0.0)
        self.reason = _text(reason)


class Discard(Outcome):
    """The message is not wanted: acked, and counted apart from what was done."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = _text(reason)


class DeadLetter(Outcome):
    """No attempt can help: to the dead-letter queue at once, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = _text(reason) or "unspecified"


SNOOZE_LIMIT = timedelta(days=14).total_seconds()
"""Seconds one message may be snoozed in all, so that it cannot come back for ever."""


def without_lone_groups(error: BaseException) -> BaseException:
    """What a handler meant: the exception inside groups that hold only one.

    A task group wraps even a lone exception that passes through it.
    """
    inner = error
    while isinstance(inner, BaseExceptionGroup):
        inside = cast("tuple[BaseException, ...]", inner.exceptions)  # of no other type
        if len(inside) != 1:
            return error
        inner = inside[0]
    return inner

"""What a handler answered or raised, in the terms of outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from brokerwq.outcomes import Done, Outcome, Retry


def batch_answer(answer: object, count: int) -> list[Outcome]:
    """The outcome of each of ``count`` messages; a wrong answer fails them all."""
    entries: list[object] | None = None
    if isinstance(answer, Sequence):
        entries = list(cast("Sequence[object]", answer))
    if entries is None or len(entries) != count:
        found = f"{len(entries)} outcomes" if entries is not None else f"{answer!r:.100}"
        return [Retry(reason=f"the batch handler answered {found} for {count} messages")] * count
    return [_batch_entry(entry) for entry in entries]


def _batch_entry(entry: object) -> Outcome:
    if entry is None or entry is Done:
        return Done()
    if isinstance(entry, Outcome):
        return entry
    if entry is Retry:
        return Retry()
    return Retry(reason=f"the batch handler answered {entry!r:.100} for this message")


def without_lone_groups(error: BaseException) -> BaseException:
    """What is inside of exception groups that hold one exception each."""
    # A task group wraps even a lone exception; what the handler meant is inside.
    inner = error
    while isinstance(inner, BaseExceptionGroup):
        inside = cast("tuple[BaseException, ...]", inner.exceptions)
        if len(inside) != 1:
            return error
        inner = inside[0]
    return inner

"""What a handler answered or raised, in the terms of outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from brokerwq.outcomes import Done, Outcome, Retry


def batch_answer(answer: object, count: int) -> list[Outcome]:
    """The outcome of each of ``count`` messages; a wrong answer fails them all."""
    entries = _entries(answer)
    if entries is None or len(entries) != count:
        found = f"{len(entries)} outcomes" if entries is not None else _shown(answer)
        return [Retry(reason=f"the batch handler answered {found} for {count} messages")] * count
    return [_batch_entry(entry) for entry in entries]


def _entries(answer: object) -> list[object] | None:
    with suppress(Exception):  # a sequence of the user's own may raise anything
        if isinstance(answer, Sequence):
            return list(cast("Sequence[object]", answer))
    return None


def _batch_entry(entry: object) -> Outcome:
    if entry is None or entry is Done:
        return Done()
    if isinstance(entry, Outcome):
        return entry
    if entry is Retry:
        return Retry()
    return Retry(reason=f"the batch handler answered {_shown(entry)} for this message")


def _shown(answer: object) -> str:
    try:
        return f"{answer!r:.100}"
    except Exception:  # noqa: BLE001 -- a user's __repr__ may raise anything
        return f"a {type(answer).__qualname__}"

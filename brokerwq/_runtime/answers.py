"""What a handler's answer, or its exception, asks for: one outcome for each message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

from brokerwq.backoff import RetryPolicy
from brokerwq.outcomes import Done, Outcome, Retry, without_lone_groups


def outcome_of_error(
    policy: RetryPolicy, error: BaseException, request_exit: Callable[[int], object]
) -> Outcome:
    """What a handler that raised ``error`` asks for; ``SystemExit`` also asks for a stop."""
    inner = without_lone_groups(error)
    if isinstance(inner, Outcome):
        return inner
    if isinstance(inner, SystemExit):
        request_exit(inner.code if isinstance(inner.code, int) else int(bool(inner.code)))
    elif isinstance(inner, KeyboardInterrupt):
        request_exit(130)
    try:
        outcome = cast("object", policy.outcome_of(inner))
    except BaseException:  # noqa: BLE001 -- a user's rule that fails decides nothing
        return Retry()
    return outcome if isinstance(outcome, Outcome) else Retry()


def error_behind(outcome: Outcome, error: BaseException | None) -> BaseException | None:
    """The exception to report: what was raised, or what an outcome was raised from."""
    if error is None or isinstance(error, Outcome):
        cause = outcome.__cause__
        return cause if isinstance(cause, BaseException) else None
    return error


def outcomes_of_batch(answer: object, count: int) -> list[Outcome]:
    """What a batch handler's answer asks for each of its ``count`` messages."""
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

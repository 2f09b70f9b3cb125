from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerwq.backoff import RetryPolicy
from brokerwq.errors import ConfigError
from brokerwq.outcomes import DeadLetter, Discard, Outcome, Retry, Snooze

policies = st.builds(
    RetryPolicy,
    base=st.floats(0, 1000),
    factor=st.floats(1, 1000),
    cap=st.floats(0.001, 86_400),
    jitter=st.sampled_from(["full", "equal", "none"]),
)


def test_waits_double_up_to_the_cap() -> None:
    policy = RetryPolicy(jitter="none", base=1, factor=2, cap=10)

    assert [policy.wait_after(attempt) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


@pytest.mark.slow
@given(policies, st.integers(1, 1_000_000), st.floats(0, 1, exclude_max=True))
def test_no_wait_is_negative_or_above_the_cap(
    policy: RetryPolicy, attempt: int, draw: float
) -> None:
    wait = policy.wait_after(attempt, lambda: draw)

    assert math.isfinite(wait)
    assert 0 <= wait <= policy.longest_wait


@pytest.mark.slow
@given(policies, st.integers(1, 100))
def test_without_jitter_waits_never_shrink(policy: RetryPolicy, attempt: int) -> None:
    steady = RetryPolicy(base=policy.base, factor=policy.factor, cap=policy.cap, jitter="none")

    assert steady.wait_after(attempt) <= steady.wait_after(attempt + 1)


@pytest.mark.parametrize(
    ("jitter", "least", "most"), [("full", 0.0, 8.0), ("equal", 4.0, 8.0), ("none", 8.0, 8.0)]
)
def test_jitter_draws_from_its_range(jitter: Any, least: float, most: float) -> None:
    policy = RetryPolicy(jitter=jitter, base=1, factor=2)

    assert policy.wait_after(4, lambda: 0.0) == least
    assert policy.wait_after(4, lambda: 1.0) == most


def test_durations_may_be_timedeltas() -> None:
    policy = RetryPolicy(base=timedelta(minutes=1), cap=timedelta(hours=1), jitter="none")

    assert policy.wait_after(1) == 60.0
    assert policy.longest_wait == 3600.0


@pytest.mark.parametrize(
    "fields",
    [
        {"max_attempts": 0},
        {"max_attempts": True},
        {"max_attempts": 3.0},
        {"max_attempts": 1_000_001},
        {"base": -1},
        {"base": math.nan},
        {"base": timedelta(days=31)},
        {"cap": 0},
        {"cap": math.inf},
        {"factor": 0.5},
        {"factor": math.nan},
        {"factor": True},
        {"factor": 1001},
        {"jitter": "some"},
        {"on": [ValueError]},
        {"on": {"ValueError": Retry}},
        {"on": {ValueError: "retry"}},
        {"on": {ValueError: Snooze}},
        {"on": {ValueError: RuntimeError}},
    ],
)
def test_what_is_out_of_range_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(fields))):
        RetryPolicy(**fields)


def test_a_rule_that_would_have_to_be_awaited_is_refused() -> None:
    async def rule(error: BaseException) -> Outcome:
        raise error

    with pytest.raises(ConfigError, match="plain function"):
        RetryPolicy(on={ValueError: rule})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]


def test_an_exception_without_rule_is_a_failed_attempt() -> None:
    outcome = RetryPolicy().outcome_of(ValueError())

    assert type(outcome) is Retry
    assert outcome.after is None


def test_the_closest_class_decides() -> None:
    policy = RetryPolicy(
        on={Exception: Discard("any"), OSError: DeadLetter("os"), TimeoutError: Retry(after=5)}
    )

    assert isinstance(policy.outcome_of(KeyError()), Discard)
    assert isinstance(policy.outcome_of(ConnectionResetError()), DeadLetter)
    timeout = policy.outcome_of(TimeoutError())
    assert isinstance(timeout, Retry)
    assert timeout.after == 5.0


def test_a_class_of_outcome_names_the_exception_as_the_reason() -> None:
    policy = RetryPolicy(on={KeyError: DeadLetter, OSError: Discard, ValueError: Retry})

    dead, discarded = policy.outcome_of(KeyError("x")), policy.outcome_of(TimeoutError())

    assert isinstance(dead, DeadLetter)
    assert dead.reason == "KeyError"
    assert isinstance(discarded, Discard)
    assert discarded.reason == "TimeoutError"
    assert isinstance(policy.outcome_of(UnicodeError()), Retry)


def test_a_function_looks_at_the_exception() -> None:
    policy = RetryPolicy(on={OSError: lambda error: Retry(after=float(str(error)))})

    outcome = policy.outcome_of(OSError("7"))

    assert isinstance(outcome, Retry)
    assert outcome.after == 7.0

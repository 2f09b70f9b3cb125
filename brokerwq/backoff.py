"""When a failed message is tried again, and how often: pure arithmetic and a table."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from brokerwq.durations import Seconds, positive_seconds, seconds_of
from brokerwq.errors import ConfigError
from brokerwq.limits import MAX_BACKOFF
from brokerwq.outcomes import DeadLetter, Discard, Done, Outcome, Retry

Rule: TypeAlias = Outcome | type[Outcome] | Callable[[BaseException], Outcome]
"""What an exception means: an outcome, or a function that looks at it and answers one.

Of the classes, ``DeadLetter`` and ``Discard`` take the exception's class name as the reason.
"""

MAX_ATTEMPTS_LIMIT = 1_000_000
MAX_FACTOR = 1000.0
_MAX_EXPONENT = 64  # 2**64 seconds is beyond any cap, and 1000.0**64 still a finite float


def _no_rules() -> Mapping[type[BaseException], Rule]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a message is tried, how long between, and what each exception means.

    The wait before attempt n+1 is ``base * factor ** (n - 1)``, at most ``cap``, then jittered.
    ``full`` jitter draws from 0 to the wait, so that messages which failed together do not
    come back together; ``equal`` from half of it; ``none`` waits exactly that long.

    Attributes:
        max_attempts: Attempts in all, 1 to 1,000,000. With 1 a message that was lost before
            it could start is dead-lettered unrun; 3 or more is advised.
        base: Seconds before the second attempt, at most 30 days.
        factor: Growth from one wait to the next, 1 to 1,000.
        cap: Longest wait in seconds, at most 30 days.
        jitter: ``full``, ``equal`` or ``none``.
        on: Exception class to outcome; the closest class in the exception's MRO decides.

    Raises:
        ConfigError: a value is out of its range.
    """

    max_attempts: int = 5
    base: Seconds = 1.0
    factor: float = 2.0
    cap: Seconds = 600.0
    jitter: Literal["full", "equal", "none"] = "full"
    on: Mapping[type[BaseException], Rule] = field(default_factory=_no_rules)

    def __post_init__(self) -> None:
        _check_attempts(self.max_attempts)
        object.__setattr__(self, "base", seconds_of(self.base, "base", limit=MAX_BACKOFF))
        if float(self.base) < 0:  # type: ignore[arg-type]
            msg = f"base must be 0 seconds or more, not {self.base!r}"
            raise ConfigError(msg)
        object.__setattr__(self, "cap", positive_seconds(self.cap, "cap", limit=MAX_BACKOFF))
        _check_factor(self.factor)
        if self.jitter not in ("full", "equal", "none"):
            msg = f"jitter must be 'full', 'equal' or 'none', not {self.jitter!r:.200}"
            raise ConfigError(msg)
        _check_rules(self.on)

    def wait_after(self, attempt: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after failed attempt number ``attempt`` (from 1).

        Args:
            attempt: The attempt that failed.
            draw: A random number from 0 to 1; tests give their own.
        """
        exponent = min(attempt - 1, _MAX_EXPONENT)
        wait = min(float(self.base) * self.factor**exponent, self.longest_wait)  # type: ignore[arg-type]
        if self.jitter == "none":
            return wait
        floor = wait / 2 if self.jitter == "equal" else 0.0
        return floor + (wait - floor) * draw()

    @property
    def longest_wait(self) -> float:
        """The cap in seconds."""
        return float(self.cap)  # type: ignore[arg-type]

    def outcome_of(self, error: BaseException) -> Outcome:
        """What ``error`` means by ``on``; a plain ``Retry`` where nothing is said."""
        for cls in type(error).__mro__:
            rule = self.on.get(cls)
            if rule is not None:
                return _apply(rule, error)
        return Retry()


def _apply(rule: Rule, error: BaseException) -> Outcome:
    if isinstance(rule, Outcome):
        return rule
    if not isinstance(rule, type):
        return rule(error)
    if issubclass(rule, DeadLetter | Discard):
        return rule(type(error).__qualname__)
    return cast("type[Outcome]", rule)()  # as _check_rules has seen


def _check_rules(rules: object) -> None:
    if not isinstance(rules, Mapping):
        msg = f"on must be a mapping of exception classes to outcomes, not {rules!r:.200}"
        raise ConfigError(msg)
    for cls, rule in cast("Mapping[object, object]", rules).items():  # whatever it holds
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            msg = f"on: {cls!r:.200} is no exception class"
            raise ConfigError(msg)
        if isinstance(rule, type) and not issubclass(rule, DeadLetter | Discard | Done | Retry):
            msg = f"on: {cls.__name__}: {rule.__name__} cannot stand alone; give an instance"
            raise ConfigError(msg)
        if not (isinstance(rule, Outcome) or callable(rule)) or inspect.iscoroutinefunction(rule):
            msg = f"on: {cls.__name__}: {rule!r:.200} is neither an outcome nor a plain function"
            raise ConfigError(msg)


def _check_factor(factor: object) -> None:
    if (
        not isinstance(factor, int | float)
        or isinstance(factor, bool)
        or not 1 <= factor <= MAX_FACTOR  # which no NaN is
    ):
        msg = f"factor must be 1 to {MAX_FACTOR:g}, not {factor!r:.200}"
        raise ConfigError(msg)


def _check_attempts(attempts: object) -> None:
    if (
        not isinstance(attempts, int)
        or isinstance(attempts, bool)
        or not 1 <= attempts <= MAX_ATTEMPTS_LIMIT
    ):
        msg = f"max_attempts must be 1 to {MAX_ATTEMPTS_LIMIT}, not {attempts!r:.200}"
        raise ConfigError(msg)


def check_policy(retry: object) -> RetryPolicy:
    """Return ``retry`` if it is a policy.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(retry, RetryPolicy):
        msg = f"retry must be a RetryPolicy, not {retry!r:.200}"
        raise ConfigError(msg)
    return retry

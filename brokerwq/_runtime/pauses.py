"""Pauses between tries to reach a broker: growing, jittered, capped."""

from __future__ import annotations

import random

_FIRST = 0.1
_MOST_DOUBLINGS = 20


class Pauses:
    """The pauses of one series of failures.

    Args:
        cap: Longest pause in seconds.
    """

    def __init__(self, cap: float) -> None:
        self._cap = cap
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        pause = min(_FIRST * 2.0 ** min(self._failures, _MOST_DOUBLINGS), self._cap)
        self._failures += 1
        # At least half, so that a dead broker is not asked in a fast loop.
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 -- spreading, not secrecy

    def reset(self) -> None:
        """It worked."""
        self._failures = 0

"""How fast messages may be moved."""

from __future__ import annotations

from brokerwq.clock import Clock
from brokerwq.durations import positive_seconds


class Pace:
    """Keeps an average rate, whoever shares it.

    Args:
        rate: Messages a second; None for as fast as it goes.
        clock: Time.

    Raises:
        ConfigError: the rate is no positive number.
    """

    def __init__(self, rate: float | None, clock: Clock) -> None:
        self._rate = None if rate is None else positive_seconds(rate, "rate")
        self._clock = clock
        self._free_at = clock.now()

    async def room(self, most: int) -> int:
        """How many may be taken next, ``most`` at most; waits until that is one or more."""
        if self._rate is None:
            return most
        while (ahead := self._free_at - self._clock.now()) > 0:
            await self._clock.sleep(ahead)
        return max(1, min(most, int(self._rate)))

    async def spend(self, count: int) -> None:
        """``count`` have been taken."""
        if self._rate is not None:
            self._free_at = max(self._free_at, self._clock.now()) + count / self._rate

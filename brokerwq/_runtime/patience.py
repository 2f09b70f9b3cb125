"""How long a stop waits: as long as each step of it may take, and hardly after a second one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable

from brokerwq.clock import Clock, move_on_after

_FORCED_SECONDS = 0.8
"""All steps together, from the second stop on: it means now."""
_FORCED_STEP_SECONDS = 0.5
_LEAST_SECONDS = 0.05
"""Even then each step has a moment: a broker that answers at once is left in good order."""


class Patience:
    """Bounds what a runner waits for while it stops.

    Args:
        clock: For the bounds.
        force: Set by the second stop.
    """

    def __init__(self, clock: Clock, force: asyncio.Event) -> None:
        self._clock = clock
        self._force = force
        self._until = math.inf

    def within(self, seconds: float) -> float:
        """``seconds``, or what a second stop leaves of them."""
        if not self._force.is_set():
            return seconds
        now = self._clock.now()
        self._until = min(self._until, now + _FORCED_SECONDS)
        return min(seconds, _FORCED_STEP_SECONDS, max(self._until - now, _LEAST_SECONDS))

    async def wait(
        self, awaitable: Awaitable[object], seconds: float, *, is_moot: bool = False
    ) -> None:
        """Wait for ``awaitable``, so long at most, and end it then.

        Args:
            awaitable: Whatever it raises is dropped.
            seconds: How long, unless a second stop comes or has come.
            is_moot: Nothing is gained by it once there is a second stop.
        """
        task = asyncio.ensure_future(awaitable)
        force = asyncio.ensure_future(self._force.wait())
        with move_on_after(self._clock, seconds):
            await asyncio.wait({task, force}, return_when=asyncio.FIRST_COMPLETED)
            if not (task.done() or is_moot):
                with move_on_after(self._clock, self.within(seconds)):
                    await asyncio.wait({task})
        for each in (task, force):
            each.cancel()
        await asyncio.gather(task, force, return_exceptions=True)

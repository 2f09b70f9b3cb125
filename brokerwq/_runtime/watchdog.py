"""Notices that a handler keeps the loop from running, and says for how long.

The leases do not depend on it: they live on the I/O side. But the handlers beside the one
that blocks stand still, which nobody would see otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerwq._runtime.slots import Slots
from brokerwq.clock import Clock, Timer
from brokerwq.events import Event, LoopBlocked

_INTERVAL = 1.0
_TOLERANCE = 1.0
_MOST_NAMED = 10


class Watchdog:
    """A timer on the handlers' loop: if it comes late, the loop was blocked so long.

    It runs while handlers do, and sleeps with an idle runner.
    """

    def __init__(self, clock: Clock, slots: Slots, emit: Callable[[Event], object] | None) -> None:
        self._clock = clock
        self._slots = slots
        self._emit = emit
        self._timer: Timer | None = None
        self._due = 0.0

    def wake(self) -> None:
        """A handler is about to be called; on the handlers' loop."""
        if self._emit is not None and self._timer is None:
            self._due = self._clock.now() + _INTERVAL
            self._timer = self._clock.call_at(self._due, self._look)

    def stop(self) -> None:
        """End."""
        self._emit = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        late = self._clock.now() - self._due
        if late > _TOLERANCE and self._emit is not None:
            # Whoever blocked and never waited has ended by now.
            names = sorted(self._slots.recent | {work.route.name for work in self._slots.running})
            self._emit(LoopBlocked(seconds=late, running=tuple(names[:_MOST_NAMED])))
        self._slots.recent.clear()
        if self._slots.running:
            self.wake()

"""Time, injected: nothing else in brokerwq reads a clock or sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

import anyio


class Timer(Protocol):
    """A callback that has been arranged and can still be taken back."""

    def cancel(self) -> None:
        """Take the callback back; harmless once it has run."""
        ...


class Clock(Protocol):
    """What time it is, and when it will be later."""

    def now(self) -> float:
        """Seconds on a clock that never jumps; comparable within one boot of the machine."""
        ...

    def utcnow(self) -> datetime:
        """The wall clock, aware, in UTC. For what is stored and shown, never for durations."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Wait ``seconds``; at least one turn of the loop."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Call ``callback`` on the running loop once ``now()`` has reached ``when``."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now(self) -> float:
        """See ``Clock.now``: CLOCK_MONOTONIC, one reading for all processes of a machine."""
        return time.monotonic()

    def utcnow(self) -> datetime:
        """See ``Clock.utcnow``."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float, /) -> None:
        """See ``Clock.sleep``."""
        await asyncio.sleep(seconds)

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """See ``Clock.call_at``."""
        loop = asyncio.get_running_loop()
        return loop.call_at(loop.time() + when - self.now(), callback)


SYSTEM_CLOCK = SystemClock()


@contextmanager
def move_on_after(clock: Clock, seconds: float | None) -> Generator[anyio.CancelScope]:
    """Cancel the block after ``seconds`` on ``clock``; None never does.

    ``scope.cancelled_caught`` tells whether it happened, as with ``anyio.move_on_after``.
    """
    with anyio.CancelScope() as scope:
        if seconds is None:
            yield scope
            return
        timer = clock.call_at(clock.now() + seconds, scope.cancel)
        try:
            yield scope
        finally:
            timer.cancel()

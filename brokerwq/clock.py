"""Time, injected: nothing else in brokerwq reads a clock or sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol

import anyio

# Held here, because what freezes time for its own sake (a handler, a library under test) puts
# something else in its place, and leases must not end by it.
_monotonic = time.monotonic


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
        return _monotonic()

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


class _Bound:
    """A cancel scope whose deadline is kept by an injected clock."""

    __slots__ = ("_clock", "_scope", "_seconds", "_timer")

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._scope = anyio.CancelScope()
        self._timer: Timer | None = None

    def __enter__(self) -> anyio.CancelScope:
        if self._seconds is not None:
            at = self._clock.now() + self._seconds
            self._timer = self._clock.call_at(at, self._scope.cancel)
        return self._scope.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        return bool(self._scope.__exit__(kind, error, trace))


def move_on_after(clock: Clock, seconds: float | None) -> _Bound:
    """A block that is cancelled after ``seconds`` on ``clock``; None never is.

    Entering it yields the scope, whose ``cancelled_caught`` tells whether that happened, as
    with ``anyio.move_on_after``.
    """
    return _Bound(clock, seconds)

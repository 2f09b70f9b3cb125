"""A clock that stands still until it is told to move."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Coroutine, Sized
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import anyio

from brokerwq.clock import SYSTEM_CLOCK, Timer
from brokerwq.durations import Seconds, seconds_of

T = TypeVar("T")

_QUIET_TURNS = 3
_BLIND_TURNS = 50
_MAX_TURNS = 200_000
_FOREIGN_LOOP_PATIENCE = 5.0
_FOREIGN_LOOP_LOOK = 0.02
_SHORTEST_WAIT = 0.001
_DYING_TIME = 1.0
_DYING_STEP = 0.005
_LONGEST_LEAP = 86_400.0

# Those who wait for a loop to come to rest must not wait for each other.
_resting: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int] = weakref.WeakKeyDictionary()
_MANY_CANCELLED = 64


class FakeTimer:
    """A callback that waits for its time; see ``brokerwq.clock.Timer``."""

    __slots__ = ("_on_cancel", "callback", "context", "loop")

    def __init__(
        self,
        callback: Callable[[], object],
        loop: asyncio.AbstractEventLoop | None,
        on_cancel: Callable[[], None],
    ) -> None:
        self.callback: Callable[[], object] | None = callback
        self.loop: asyncio.AbstractEventLoop | None = loop
        self.context: contextvars.Context = contextvars.copy_context()
        self._on_cancel = on_cancel

    def cancel(self) -> None:
        """Take the callback back; harmless once it has run."""
        if self.callback is not None:
            self.callback = None
            self._on_cancel()

    def run(self) -> None:
        """Call the callback unless it was taken back."""
        callback, self.callback = self.callback, None
        if callback is not None:
            self.context.run(callback)


class FakeClock:
    """Time that passes only when a test says so; implements ``brokerwq.clock.Clock``.

    ``advance`` moves time at once and fires what has become due, in order of time. A task that
    wakes up runs only when the loop does, so a task that sleeps again and again needs
    ``advance_and_settle``, which lets the loop come to rest at every stop on the way.
    ``drive`` runs a coroutine to its end and moves time by itself whenever everything waits.

    May be shared by several loops in several threads: each callback runs on the loop that
    arranged it. Work that a thread does outside any loop is invisible here.

    Args:
        now: First reading of ``now()``, in seconds.
        utcnow: First reading of ``utcnow()``, aware.
    """

    def __init__(
        self, *, now: float = 1000.0, utcnow: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    ) -> None:
        self._start = self._now = now
        self._wall_start = utcnow.astimezone(UTC)
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = itertools.count()
        self._cancelled = 0
        self._lock = threading.RLock()
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    def now(self) -> float:
        """See ``Clock.now``."""
        return self._now

    def utcnow(self) -> datetime:
        """See ``Clock.utcnow``: moves with ``now``, and with ``jump_wall``."""
        return self._wall_start + timedelta(seconds=self._now - self._start)

    async def sleep(self, seconds: float, /) -> None:
        """See ``Clock.sleep``: wait until the clock has been advanced that far."""
        if seconds <= 0:
            await SYSTEM_CLOCK.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.call_at(self._now + seconds, wake)
        try:
            await woken
        finally:
            timer.cancel()

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """See ``Clock.call_at``. Without a running loop ``advance`` calls it where it stands."""
        loop = _running_loop()
        timer = FakeTimer(callback, loop, self._note_cancelled)
        with self._lock:
            if loop is not None:
                self._loops.add(loop)
                if when <= self._now:
                    loop.call_soon(timer.run)
                    return timer
            heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    @property
    def pending(self) -> int:
        """How many callbacks and sleepers still wait."""
        with self._lock:
            return sum(timer.callback is not None for _, _, timer in self._timers)

    @property
    def next_at(self) -> float | None:
        """The reading of ``now()`` at which the next of them is due; None where none waits."""
        with self._lock:
            while self._timers and self._timers[0][2].callback is None:
                heapq.heappop(self._timers)
                self._cancelled = max(0, self._cancelled - 1)
            return self._timers[0][0] if self._timers else None

    def has_timer(self, within: contextvars.ContextVar[Any], /) -> bool:
        """Whether one of them was arranged where ``within`` was true."""
        with self._lock:
            return any(
                timer.callback is not None and timer.context.get(within)
                for _, _, timer in self._timers
            )

    def advance(self, seconds: Seconds = 0.0, /) -> None:
        """Let ``seconds`` pass at once, firing what becomes due on the way in order of time.

        Raises:
            ConfigError: it is not a finite number of seconds.
            ValueError: it is negative: this clock never runs backwards.
        """
        self._advance_to(self._now + _forward(seconds))

    async def advance_and_settle(self, seconds: Seconds = 0.0, /) -> None:
        """``advance``, and let the loop come to rest before, after and at every stop between.

        Raises:
            ConfigError, ValueError: as ``advance``.
        """
        end = self._now + _forward(seconds)
        await self.settle()
        while (when := self.next_at) is not None and when <= end:
            self._advance_to(when)
            await self.settle()
        self._advance_to(end)
        await self.settle()

    def jump_wall(self, seconds: Seconds, /) -> None:
        """Move ``utcnow()`` alone, as an administrator or a time server does; may be negative."""
        self._wall_start += timedelta(seconds=seconds_of(seconds, "seconds"))

    async def settle(self) -> None:
        """Let every loop that uses this clock run until nothing on it is ready to run.

        Raises:
            RuntimeError: one does not come to rest, because a task on it spins.
        """
        await self._settle()

    async def stirs(
        self, seconds: float, task: asyncio.Future[Any], sign: Callable[[], object] = int
    ) -> bool:
        """Whether anything happens, ``task`` ends included, within real ``seconds``; 1 ms at least.

        Asked when all loops have come to rest: a thread may be at work, or a socket. What comes
        and goes in less than 1 ms is seen only if it changes ``sign()``.
        """
        when, before = self.next_at, sign()
        until = SYSTEM_CLOCK.now() + seconds
        while True:
            await asyncio.wait({task}, timeout=_SHORTEST_WAIT)
            if task.done() or await self._settle() or (self.next_at, sign()) != (when, before):
                return True
            if SYSTEM_CLOCK.now() >= until:
                return False

    async def drive(
        self,
        work: Coroutine[Any, Any, T],
        /,
        *,
        threshold: float | Callable[[], float] = 0.0,
    ) -> T:
        """Run ``work`` to its end and move time on whenever everything waits.

        Hours on this clock take milliseconds. One ``drive`` at a time: two would move time twice.

        Args:
            work: What to run.
            threshold: Seconds of the machine's time for which everything must have waited before
                time moves; above 0 where threads are at work that the loop cannot see. A
                function is asked whenever everything waits.

        Returns:
            What ``work`` returns; what it raises is raised.
        """
        asked = threshold if callable(threshold) else lambda: threshold
        task = asyncio.ensure_future(work)
        try:
            while True:
                await self._settle()
                when = self.next_at
                quiet = asked()
                is_to_wait = not task.done() and (quiet > 0 or when is None or when == math.inf)
                if is_to_wait and await self.stirs(quiet, task, asked):
                    continue
                if task.done():
                    return task.result()
                if when is not None and when < math.inf:
                    self._advance_to(when)
        finally:
            if not task.done():
                task.cancel()
                await self.hurry(task, task.cancel)

    async def hurry(self, task: asyncio.Future[Any], insist: Callable[[], object]) -> None:
        """Let time fly until ``task``, which was told to end, has ended.

        It flies faster and faster, so that a day of grace ends soon, too. What takes more than a
        second of the machine's time is told again, by ``insist``, and after another one left
        behind. The cancellation of whoever calls this does not cut it short.
        """
        with anyio.CancelScope(shield=True):
            leap = 1.0
            for is_last in (False, True):
                until = SYSTEM_CLOCK.now() + _DYING_TIME
                while not task.done() and SYSTEM_CLOCK.now() < until:
                    await asyncio.wait({task}, timeout=_DYING_STEP)
                    when = self.next_at
                    if when is not None and when < math.inf and not task.done():
                        self._advance_to(max(when, self._now + leap))
                        leap = min(leap * 2, _LONGEST_LEAP)
                if task.done() or is_last:
                    break
                insist()
        if task.done() and not task.cancelled():
            task.exception()  # it was told to end: what it says of that is nobody's business

    async def _settle(self) -> bool:
        here = asyncio.get_running_loop()
        was_busy = await _rest(here)
        while await self._rest_others(here):
            was_busy = True
            await _rest(here)
        return was_busy

    async def _rest_others(self, here: asyncio.AbstractEventLoop) -> bool:
        was_busy = False
        for loop in list(self._loops):
            if loop is not here and loop.is_running():
                was_busy |= await _rest_elsewhere(loop)
        return was_busy

    def _advance_to(self, end: float) -> None:
        while True:
            with self._lock:
                when = self.next_at
                if when is None or when > end:
                    self._now = max(self._now, end)
                    return
                timer = heapq.heappop(self._timers)[2]
                self._now = max(self._now, when)
            _fire(timer)

    def _note_cancelled(self) -> None:
        with self._lock:
            self._cancelled += 1
            if self._cancelled > _MANY_CANCELLED and self._cancelled * 2 > len(self._timers):
                self._timers = [entry for entry in self._timers if entry[2].callback is not None]
                heapq.heapify(self._timers)
                self._cancelled = 0


def _forward(seconds: Seconds) -> float:
    span = seconds_of(seconds, "seconds")
    if span < 0:
        msg = f"time cannot run backwards by {-span:g} seconds; jump_wall moves the wall clock"
        raise ValueError(msg)
    return span


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _fire(timer: FakeTimer) -> None:
    if timer.loop is None or timer.loop is _running_loop():
        timer.run()
    elif not timer.loop.is_closed():
        timer.loop.call_soon_threadsafe(timer.run)


async def _rest(loop: asyncio.AbstractEventLoop) -> bool:
    """Let ``loop``, which is the running one, come to rest; whether anything else ran."""
    # asyncio tells nobody whether a loop is idle: look into its queue, and give a loop that
    # hides it many turns.
    ready: Sized = getattr(loop, "_ready", ())
    turns = _QUIET_TURNS if hasattr(loop, "_ready") else _BLIND_TURNS
    was_busy = False
    quiet = 0
    _resting[loop] = _resting.get(loop, 0) + 1
    try:
        for _ in range(_MAX_TURNS):
            await SYSTEM_CLOCK.sleep(0)
            if len(ready) >= _resting[loop]:
                was_busy, quiet = True, 0
            else:
                quiet += 1
            if quiet == turns:
                return was_busy
    finally:
        # Gone with its loop, where that ended under this task.
        if (count := _resting.get(loop)) is not None:
            _resting[loop] = count - 1
    msg = f"the loop was still busy after {_MAX_TURNS} turns: a task on it spins"
    raise RuntimeError(msg)


async def _rest_elsewhere(loop: asyncio.AbstractEventLoop) -> bool:
    """``_rest`` on the loop of another thread; False where that loop is about to end."""
    resting = _rest(loop)
    try:
        rested = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(resting, loop))
    except RuntimeError:
        resting.close()
        return False
    until = SYSTEM_CLOCK.now() + _FOREIGN_LOOP_PATIENCE
    # A loop that stops at this moment never answers.
    while loop.is_running() and SYSTEM_CLOCK.now() < until:
        done, _ = await asyncio.wait({rested}, timeout=_FOREIGN_LOOP_LOOK)
        if done:
            break
    return rested.done() and not rested.cancelled() and rested.result()

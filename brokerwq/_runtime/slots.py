"""Slots: how much runs at once, what waits for its turn, and how much may still be claimed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

from brokerwq._runtime.execution import Work
from brokerwq._runtime.route import Route
from brokerwq.clock import Clock, Timer

_AHEAD_SECONDS = 0.05
"""Read-ahead: what the slots will have begun within this time, judged by the last jobs."""
_AHEAD_PER_SLOT = 10
_MOST_AHEAD = 200
_STALE_SECONDS = 1.0
_CROWDED_SECONDS = 2.0
"""How long a message stays away whose worker is at its own limit; what is behind it may pass."""
_SMOOTHING = 0.2


@dataclass(slots=True)
class _Seat:
    """What a slot is to begin next; None once it has begun."""

    work: Work | None


class Slots:
    """A fixed number of places, each a long-lived task that runs one ``Work`` after another.

    Args:
        total: How many.
        run: Runs one ``Work`` to its end; must not raise.
        clock: For durations.
        read_ahead: Claim a little more than there are free slots while jobs are short. Only
            where an unstarted message can be put back without spending an attempt.
        stale: Given the messages that waited too long to be "soon".
        crashed: Told if a slot itself fails, which only a bug of ours can cause.
    """

    def __init__(
        self,
        total: int,
        run: Callable[[Work], Awaitable[None]],
        *,
        clock: Clock,
        read_ahead: bool,
        stale: Callable[[list[Work]], object],
        crashed: Callable[[BaseException], object],
    ) -> None:
        self.total = total
        self._run = run
        self._clock = clock
        self._read_ahead = read_ahead
        self._stale = stale
        self._crashed = crashed
        self._ready: deque[Work] = deque()
        self._capped: dict[Route, deque[Work]] = {}
        self._running_of: dict[Route, int] = {}
        self._idle: deque[tuple[asyncio.Future[None], _Seat]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._job_seconds: float | None = None
        self._sweep: Timer | None = None
        self._waiters: deque[tuple[asyncio.Future[None], Sequence[Route]]] = deque()
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._closing = False
        self._aborting = False
        self._context = copy_context()
        self.running: set[Work] = set()
        self.recent: set[str] = set()
        self.reserved = 0
        self.finished = 0

    # -- demand ---------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many more may be claimed; below 1 for none."""
        taken = len(self.running) + len(self._ready) + self._capped_count() + self.reserved
        return self.total + self.ahead - taken

    @property
    def ahead(self) -> int:
        """How many of those that are free are no slots: their messages would have to wait."""
        if not self._read_ahead or self._job_seconds is None:
            return 0
        soon = self.total * _AHEAD_SECONDS / max(self._job_seconds, 1e-6)
        return int(min(soon, self.total * _AHEAD_PER_SLOT, _MOST_AHEAD))

    def _capped_count(self) -> int:
        return sum(map(len, self._capped.values()))

    def room(self, limited: Sequence[Route] = ()) -> int:
        """How many more may be claimed of workers that all have limits of their own."""
        if not limited:
            return self.free
        held = sum(self._running_of.get(r, 0) + len(self._capped.get(r, ())) for r in limited)
        return min(self.free, sum(r.slots or 0 for r in limited) + self.ahead - held)

    async def wait_until_free(self, limited: Sequence[Route] = ()) -> None:
        """Wait for room for ``limited``; those who wait are served in turn."""
        while not self._closing and (self._waiters or self.room(limited) < 1):
            waiter = asyncio.get_running_loop().create_future(), limited
            self._waiters.append(waiter)
            self.freed()
            try:
                await waiter[0]
            finally:
                self._waiters.remove(waiter)
            if self.room(limited) >= 1:
                return

    def freed(self) -> None:
        """Room may have come: wake those who wait for it, as far as it goes."""
        if not self._waiters:
            return
        free = self.free
        for waiter, limited in self._waiters:
            if free < 1:
                return
            if self.room(limited) >= 1:
                free -= 1
                if not waiter.done():
                    waiter.set_result(None)

    def wake_all(self) -> None:
        """Wake everybody who waits for room: there will be none."""
        self._closing = True
        for waiter, _ in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- work -----------------------------------------------------------------------------

    def put(self, work: Work) -> None:
        """Run ``work`` as soon as a slot is free and its worker is below its own limit."""
        work.put_at = self._clock.now()
        self._at_rest.clear()
        route = work.route
        limit = route.slots
        if limit is not None and self._running_of.get(route, 0) >= limit:
            self._capped.setdefault(route, deque()).append(work)
            self._arm_sweep(work.put_at)
            return
        self._begin_or_queue(work)

    def _begin_or_queue(self, work: Work) -> None:
        route = work.route
        if route.slots is not None:
            self._running_of[route] = self._running_of.get(route, 0) + 1
        while self._idle:
            idle, seat = self._idle.popleft()
            if not idle.done():
                self.running.add(work)
                seat.work = work
                idle.set_result(None)
                return
        if len(self._tasks) < self.total:
            self.running.add(work)
            self._open_slot(work)
            return
        self._ready.append(work)
        self._arm_sweep(work.put_at)

    def _arm_sweep(self, put_at: float) -> None:
        if self._read_ahead and self._sweep is None:
            self._sweep = self._clock.call_at(put_at + _STALE_SECONDS, self._swept)

    def _open_slot(self, work: Work) -> None:
        context = self._context.copy()
        seat = _Seat(work)
        task = asyncio.get_running_loop().create_task(self._slot(seat), context=context)
        self._tasks.add(task)
        task.add_done_callback(partial(self._slot_ended, seat))

    def _slot_ended(self, seat: _Seat, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(error)
        elif seat.work is not None and not self._aborting:
            # Somebody cancelled a slot that had not begun: what it was given still has to run.
            self._open_slot(seat.work)

    async def _slot(self, seat: _Seat) -> None:
        loop = asyncio.get_running_loop()
        while (work := seat.work) is not None:
            seat.work = None
            started = self._clock.now()
            await self._run(work)
            if self._has_leaked():
                self._replace_slot(work, self._clock.now() - started)
                return
            self._ended(work, self._clock.now() - started)
            if self._ready:
                seat.work = self._ready.popleft()
                self.running.add(seat.work)
            else:
                idle: asyncio.Future[None] = loop.create_future()
                self._idle.append((idle, seat))
                await idle

    def _has_leaked(self) -> bool:
        try:
            return copy_context() != self._context
        except Exception:  # noqa: BLE001 -- values of the user's own may refuse a comparison
            return True

    def _replace_slot(self, work: Work, seconds: float) -> None:
        # A handler has set context variables: a login, say, that the next job must not see.
        task = asyncio.current_task()
        if task is not None:
            self._tasks.discard(task)
        self._ended(work, seconds)
        if self._ready and len(self._tasks) < self.total:
            following = self._ready.popleft()
            self.running.add(following)
            self._open_slot(following)

    def _ended(self, work: Work, seconds: float) -> None:
        self.finished += 1
        self.running.discard(work)
        self.recent.add(work.route.name)
        mean = self._job_seconds
        self._job_seconds = seconds if mean is None else mean + _SMOOTHING * (seconds - mean)
        self._release_cap(work.route)
        if not self.running and not self._ready and not self._capped_count():
            self._at_rest.set()
        self.freed()

    def _release_cap(self, route: Route) -> None:
        if route.slots is None:
            return
        self._running_of[route] -= 1
        waiting = self._capped.get(route)
        if waiting:
            promoted = waiting.popleft()
            promoted.put_at = self._clock.now()
            self._begin_or_queue(promoted)

    def _swept(self) -> None:
        self._sweep = None
        stale = self._overdue(self._ready)
        if stale:
            self._job_seconds = max(self._job_seconds or 0.0, _STALE_SECONDS)
        for work in stale:
            self._release_cap(work.route)
        crowded = [work for waiting in self._capped.values() for work in self._overdue(waiting)]
        for work in crowded:
            work.pause = _CROWDED_SECONDS
        waiting = [*self._ready, *(work for each in self._capped.values() for work in each)]
        if waiting:
            self._arm_sweep(min(work.put_at for work in waiting))
        if stale or crowded:
            self._stale(stale + crowded)
            self.freed()

    def _overdue(self, waiting: deque[Work]) -> list[Work]:
        """Remove and return what has waited too long."""
        now = self._clock.now()
        overdue = [work for work in waiting if work.put_at + _STALE_SECONDS <= now]
        for work in overdue:
            waiting.remove(work)
        return overdue

    # -- stopping -------------------------------------------------------------------------

    def take_unstarted(self) -> list[Work]:
        """Remove and return what has not begun."""
        taken = list(self._ready)
        for work in taken:
            if work.route.slots is not None:
                self._running_of[work.route] -= 1
        self._ready.clear()
        for waiting in self._capped.values():
            taken += waiting
            waiting.clear()
        if not self.running:
            self._at_rest.set()
        self.freed()
        return taken

    async def rest(self) -> None:
        """Wait until nothing runs and nothing waits."""
        await self._at_rest.wait()

    @property
    def is_at_rest(self) -> bool:
        """Nothing runs and nothing waits."""
        return self._at_rest.is_set()

    def cancel_running(self) -> None:
        """End every handler because the runner stops."""
        for work in list(self.running):
            work.cancel("stop")

    async def aclose(self, patience: float) -> int:
        """End the slots; how many handlers did not end within ``patience`` seconds."""
        if self._sweep is not None:
            self._sweep.cancel()
        # A thread cannot be cancelled: its task ends, and it lives on.
        in_threads = sum(not work.route.is_async for work in self.running)
        self._aborting = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return 0
        _, stuck = await asyncio.wait(tasks, timeout=patience)
        return len(stuck) + in_threads

"""How time passes for an app under test: in leaps, from one thing that is due to the next."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from brokerwq._runtime.route import Route
from brokerwq.app import App
from brokerwq.broker import Broker
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.reports import RunReport
from brokerwq.runner import Runner
from brokerwq.testing.clock import FakeClock
from brokerwq.testing.endless import Silence
from brokerwq.testing.recorder import Recorder, Seen
from brokerwq.testing.watch import LONG_PATIENCE, Watch

_STEP = 0.001
_LAST_MOMENT = 0.2
_HOPELESS_QUIET = 0.001
_FORGOTTEN_SECONDS = 86_400.0
"""Of the fake clock: what is ready for so long, and is not run, has been removed by the broker,
or is for somebody else."""


@dataclass(slots=True, kw_only=True)
class Passage:
    """One stretch of time with a runner at work.

    That nothing is ready or leased is how it is known that time may leap: a broker that counts
    exactly is asked for it, another one is known by what went in and out.

    Attributes:
        app: Whose workers run.
        queues: Which of its queues.
        runner: Not started yet.
        clock: The fake one.
        watch: Knows which handlers run.
        recorder: Knows what was sent.
        patience: Seconds of the machine's time for which a running coroutine holds the clock.
        silence: Tells of a job that never ends.
        until: Reading of the clock at which it ends; infinite for when nothing is left to do.
        include_delayed: Whether also what is delayed beyond the longest backoff is left to do.
    """

    app: App
    queues: Sequence[str]
    runner: Runner
    clock: FakeClock
    watch: Watch
    recorder: Recorder
    patience: float
    silence: Silence
    until: float = math.inf
    include_delayed: bool = True

    async def run(self) -> RunReport:
        """Let it pass; nobody else may drive the clock meanwhile.

        Cancelled, it ends the runner and its jobs at once.

        Raises:
            HangError: a job never ends.
        """
        running = asyncio.create_task(self.runner.run(handle_signals=False))
        try:
            while self.runner.state == "starting" and not running.done():
                await SYSTEM_CLOCK.sleep(_STEP)
            left = await self._leap(running)
            if not running.done():
                self.runner.stop()
                await self._end(running)
            report = running.result()
        finally:
            if not running.done():
                # Twice: at once, and not after the day that a job gets to end by itself.
                self.runner.stop()
                self.runner.stop()
                await self.clock.hurry(running, running.cancel)
        is_drained = self.until == math.inf
        return replace(report, drained=is_drained, left_delayed=left if is_drained else 0)

    async def _leap(self, running: asyncio.Future[RunReport]) -> int:
        """Go from one thing that is due to the next; how many messages are left delayed."""
        while not running.done():
            stats = await self._rest(running)
            left = self.until - self.clock.now()
            due = self._due(stats)
            if left <= 0 or (due == math.inf and left == math.inf):
                return sum(each.delayed for each in stats)
            self.clock.advance(max(0.0, min(due, left)))
        return 0

    def _due(self, stats: Sequence[Seen]) -> float:
        """Seconds until the next message is due; infinite where none is to be waited for."""
        soonest = math.inf
        for queue, each in zip(self.queues, stats, strict=True):
            routes = self.app.registry.routes(queue)
            patience = max(map(_longest_wait, routes), default=0.0)
            waits_for_all = self.include_delayed or self.until < math.inf
            if each.next_due is not None and (waits_for_all or each.next_due <= patience):
                soonest = min(soonest, each.next_due)
        return soonest

    async def _rest(self, running: asyncio.Future[RunReport]) -> Sequence[Seen]:
        """Wait until nothing runs and nothing is ready.

        What waits for the clock is helped by a step of it, as long as the stretch lasts.
        """
        before: _Look | None = None
        since = self.clock.now()
        while True:
            await self.clock.settle()
            stats, look = await self._look()
            if running.done() or (look == before and not look.is_busy):
                return stats
            # Twice, since a job may have sent to one queue while another was looked at.
            is_new, before = look != before, look
            if is_new:
                since = self.clock.now()
            if is_new and not look.is_busy:
                continue
            quiet = self._watched(stats, self._quiet(look))
            if quiet > 0 and await self.clock.stirs(quiet, running, self._sign):
                continue
            is_forgotten = not look.running and self.clock.now() - since > _FORGOTTEN_SECONDS
            if is_forgotten or not self._step():
                return stats

    def _watched(self, stats: Sequence[Seen], quiet: float) -> float:
        """``quiet``, and less when nothing is left that a handler could wait for."""
        self.silence.listen(self._sign())
        is_due = any(each.next_due is not None for each in stats)
        if is_due or not self.silence.is_suspicious:
            return min(quiet, self.silence.patience) if self.watch.is_endless else quiet
        self.silence.check()
        return min(quiet, _HOPELESS_QUIET)

    def _sign(self) -> object:
        return self.watch.changes, len(self.recorder.sent)

    async def _look(self) -> tuple[Sequence[Seen], _Look]:
        await self.app.relay_outbox()
        broker = self.app.broker()
        stats = [await self._seen(broker, queue) for queue in self.queues]
        return stats, _Look(
            running=self.watch.running,
            waiting=tuple(each.busy for each in stats),
            sent=len(self.recorder.sent),
        )

    async def _seen(self, broker: Broker, queue: str) -> Seen:
        if not broker.capabilities.exact_stats:
            return self.recorder.seen(queue)
        stats = await broker.inspect(queue)
        return Seen(
            busy=stats.ready.value + stats.leased.value,
            delayed=stats.delayed.value,
            next_due=stats.next_due,
        )

    def _quiet(self, look: _Look) -> float:
        """Seconds of the machine's time for which nothing must stir before the clock moves."""
        is_last = self.until <= self.clock.now()
        if self.watch.threads or (is_last and look.running):
            return LONG_PATIENCE
        # A store works in threads, or behind a socket, before and after the handler.
        has_doubt = look.running or self.app.store is not None
        return max(self.patience if has_doubt else 0.0, _LAST_MOMENT if is_last else 0.0)

    def _step(self) -> bool:
        """Move the clock to its next timer; False where the stretch does not last so long."""
        when = self.clock.next_at
        if self.until <= self.clock.now():
            return False
        if when is not None and when < math.inf:
            self.clock.advance(min(when, self.until) - self.clock.now())
        return True

    async def _end(self, running: asyncio.Future[RunReport]) -> None:
        """Wait for the runner to stop; only one that does not by itself is helped by the clock."""
        while not running.done():
            await self.clock.settle()
            when = self.clock.next_at
            # What is left without a job is the runner's own, such as an ack to be repeated.
            is_busy = self.watch.running or self.app.store is not None
            quiet = self._watched((), LONG_PATIENCE if is_busy else _LAST_MOMENT)
            if not await self.clock.stirs(quiet, running, self._sign) and when is not None:
                self.clock.advance(max(0.0, when - self.clock.now()))


class _Look(NamedTuple):
    """What is going on."""

    running: int
    waiting: tuple[int, ...]
    sent: int

    @property
    def is_busy(self) -> bool:
        return self.running > 0 or any(self.waiting)


def _longest_wait(route: Route) -> float:
    guarded = 0.0 if route.guard is None else route.guard.longest_wait
    return max(route.retry.longest_wait, guarded)

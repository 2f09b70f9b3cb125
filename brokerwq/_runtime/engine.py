"""The engine: starts the lanes, runs until told to stop or until drained, and stops in order.

Stopping is quiesce → jobs end, heartbeats go on → cancel and put back the rest → flush
settles → close. Asked a second time, it skips to cancelling, and waits for nobody in earnest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel

from brokerwq._runtime.bridge import Bridge, InlineBridge, ThreadBridge
from brokerwq._runtime.connection import Connection
from brokerwq._runtime.dispatcher import Dispatcher
from brokerwq._runtime.drain import Drain, Drained, DrainGoal
from brokerwq._runtime.execution import Shared
from brokerwq._runtime.fleet import Fleet
from brokerwq._runtime.guard_watch import GuardWatch
from brokerwq._runtime.intake import Intake
from brokerwq._runtime.isolation import Isolation
from brokerwq._runtime.lane import Lane
from brokerwq._runtime.leases import LeaseKeeper
from brokerwq._runtime.lifecycle import Lifecycle
from brokerwq._runtime.opener import Opener
from brokerwq._runtime.patience import Patience
from brokerwq._runtime.plan import Plan
from brokerwq._runtime.slots import Slots
from brokerwq._runtime.tally import Tally
from brokerwq._runtime.watchdog import Watchdog
from brokerwq.clock import SystemClock
from brokerwq.errors import BrokerwqError

_CANCEL_PATIENCE = 5.0
_FLUSH_PATIENCE = 15.0
_CLOSE_PATIENCE = 3.0
_JOIN_PATIENCE = 5.0


class Engine:
    """Runs a plan once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._emit = None if plan.instrumentation is None else plan.instrumentation.emit
        self.lifecycle = Lifecycle(self._emit)
        self.patience = Patience(plan.clock, self.lifecycle.force_asked)
        self.tally = Tally()
        self.stuck = 0
        self._lanes: dict[LeaseKeeper, Lane] = {}

    async def run(self, *, state: Any = None, goal: DrainGoal | None = None) -> Drained | None:
        """Run until stopped, or until ``goal`` is reached.

        Raises:
            DriverError: a broker refused for good, at start or later.
        """
        plan = self._plan
        # Before there is a thread to end, should one fail.
        drivers = [site.build() for site in plan.sites]
        bridge: Bridge = ThreadBridge() if isinstance(plan.clock, SystemClock) else InlineBridge()
        fleet = Fleet(
            [
                Connection(
                    driver,
                    site,
                    bridge,
                    clock=plan.clock,
                    lifecycle=self.lifecycle,
                    reconnect_cap=plan.reconnect_cap,
                    emit=self._emit,
                )
                for driver, site in zip(drivers, plan.sites, strict=True)
            ],
            [spec for spec, _ in plan.queues],
        )
        try:
            if await fleet.start():
                return await self._run_lanes(fleet, bridge, state, goal)
        finally:
            with anyio.CancelScope(shield=True):
                await self.patience.wait(fleet.aclose(_CLOSE_PATIENCE), _FLUSH_PATIENCE)
                await bridge.aclose(self.patience.within(_JOIN_PATIENCE))
                self.lifecycle.enter("stopped")
        self._raise_failure()
        return None

    async def _run_lanes(
        self, fleet: Fleet, bridge: Bridge, state: Any, goal: DrainGoal | None
    ) -> Drained | None:
        plan = self._plan
        guards = GuardWatch(
            [route.guard for _, routes in plan.queues for route in routes if route.guard],
            clock=plan.clock,
            lifecycle=self.lifecycle,
            reconnect_cap=plan.reconnect_cap,
            emit=self._emit,
        )
        shared = Shared(
            clock=plan.clock,
            bridge=bridge,
            threads=anyio.CapacityLimiter(plan.slots),
            send_children=plan.send_children,
            request_exit=self.lifecycle.ask_stop,
            store_failed=guards.failed,
            detailed=plan.detailed,
            state=state,
        )
        dispatcher = Dispatcher(shared, self.tally, self._lanes)
        slots = Slots(
            plan.slots,
            dispatcher.run,
            clock=plan.clock,
            read_ahead=fleet.returns_uncounted,
            stale=dispatcher.put_back_stale,
            crashed=self.lifecycle.fail,
        )
        intake = Intake(
            slots,
            dispatcher,
            bridge,
            clock=plan.clock,
            lifecycle=self.lifecycle,
            reconnect_cap=plan.reconnect_cap,
            lane_count=len(plan.queues) * len(plan.sites),
            emit=self._emit,
        )
        intakes = _Supervised(self.lifecycle.fail)
        opener = Opener(
            plan,
            bridge,
            dispatcher,
            lifecycle=self.lifecycle,
            store_up=guards.up,
            lanes=self._lanes,
            start_intake=lambda lane: intakes.start(intake.run(lane)),
        )
        isolation = Isolation(
            self._lanes.values,
            dispatcher,
            slots,
            opener,
            claim_one=intake.claim_one,
            start=intakes.start,
        )
        watchdog = Watchdog(plan.clock, slots, self._emit)
        dispatcher.join(
            slots, suspect=isolation.begin, beside=isolation.set_aside, watch=watchdog.wake
        )
        parts = _Parts(shared, slots, dispatcher, isolation, opener, intakes, guards)
        drain: Drain | None = None
        if goal is not None:
            drain = Drain(
                goal,
                self._lanes.values,
                len(plan.queues) * len(plan.sites),
                slots=slots,
                on_hold=dispatcher.on_hold,
                opener=opener,
                clock=plan.clock,
                emit=self._emit,
            )
        drained: Drained | None = None
        try:
            guards.start()
            await fleet.open(opener.open_all, intakes.start)
            self.lifecycle.enter("ready")
            drained = await self._until_stopped(drain)
        finally:
            with anyio.CancelScope(shield=True):
                await self._stop(parts)
                watchdog.stop()
        self._raise_failure()
        return drained

    async def _until_stopped(self, drain: Drain | None) -> Drained | None:
        stop = asyncio.ensure_future(self.lifecycle.stop_asked.wait())
        tasks: set[asyncio.Future[Any]] = {stop}
        draining = None
        if drain is not None:
            draining = asyncio.ensure_future(drain.run())
            tasks.add(draining)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if draining is not None and not draining.cancelled():
            return draining.result()
        return None

    # -- stopping -------------------------------------------------------------------------

    async def _stop(self, parts: _Parts) -> None:
        slots, dispatcher, opener = parts.slots, parts.dispatcher, parts.opener
        self.lifecycle.enter("draining")
        parts.shared.stopping = True
        await parts.guards.aclose()
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.quiesced.set()
            lane.gate.set()
        slots.wake_all()
        quiescing = asyncio.gather(*map(opener.quiesce, lanes), return_exceptions=True)
        # The broker hears of it first: a claim under way would take again what is put back.
        await anyio.lowlevel.checkpoint()
        dispatcher.put_back_unstarted(slots.take_unstarted())
        wait = self.patience.wait
        await wait(slots.rest(), self._plan.grace, is_moot=True)
        if not slots.is_at_rest:
            slots.cancel_running()
            await wait(slots.rest(), _CANCEL_PATIENCE)
        parts.shared.aborting = True
        await wait(quiescing, _FLUSH_PATIENCE)
        await parts.intakes.aclose()
        parts.isolation.put_back()
        self._return_the_stuck(slots, dispatcher)
        await wait(_all([lane.settler.flush() for lane in lanes]), _FLUSH_PATIENCE)
        patience = 0.1 if slots.running else _CLOSE_PATIENCE
        self.stuck = await slots.aclose(self.patience.within(patience))
        closing = [opener.close(lane) for lane in list(self._lanes.values())]
        await wait(_all(closing), _FLUSH_PATIENCE)
        await wait(parts.guards.free(parts.shared.bridge), _CLOSE_PATIENCE)

    def _return_the_stuck(self, slots: Slots, dispatcher: Dispatcher) -> None:
        """Give back what a handler that does not end still holds: the process ends instead."""
        for work in list(slots.running):
            for held in work.helds:
                dispatcher.put_back(self._lanes[held.keeper], held)

    def _raise_failure(self) -> None:
        if self.lifecycle.failure is not None:
            raise self.lifecycle.failure


@dataclass(frozen=True, slots=True)
class _Parts:
    shared: Shared
    slots: Slots
    dispatcher: Dispatcher
    isolation: Isolation
    opener: Opener
    intakes: _Supervised
    guards: GuardWatch


class _Supervised:
    """Tasks that must not end with an error; one that does ends the runner."""

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        self._failed = failed
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if not self._closing:
                msg = "a worker cancelled tasks of the event loop that are not its own"
                self._failed(BrokerwqError(msg))
        elif (error := task.exception()) is not None:
            self._failed(error)

    async def aclose(self) -> None:
        self._closing = True
        ending = list(self._tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


async def _all(awaitables: Sequence[Awaitable[object]]) -> None:
    await asyncio.gather(*awaitables, return_exceptions=True)

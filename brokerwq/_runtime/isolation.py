"""Crash suspects: a message that may have killed its runner gets its last attempt alone.

A dead process takes an attempt from everything it held. If all of it were run side by side
once more, the one message that kills processes would take the innocent with it into the
dead-letter queue. So a message at its last attempt that was lost before is run alone: then
only the culprit can die.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from brokerwq._runtime.dispatcher import Dispatcher
from brokerwq._runtime.lane import Lane
from brokerwq._runtime.leases import Held
from brokerwq._runtime.opener import Opener
from brokerwq._runtime.route import Route
from brokerwq._runtime.slots import Slots
from brokerwq._runtime.verdict import is_crash_suspect
from brokerwq.driver.capabilities import UncountedReturn
from brokerwq.errors import DriverError
from brokerwq.events import CrashSuspectIsolated

_LATER = 1.0
_MOST_DEFERRALS = 10
_MOST_REMEMBERED = 1000


class Isolation:
    """Runs one suspect at a time with nothing beside it, then lets the lanes go on.

    A broker that pushes has sent more ahead of what was claimed. It lies in the consumer,
    would die with the culprit and count: so such a consumer is quiesced before the suspect
    starts, and a new one that is sent one message at a time takes its place.

    What was claimed beside a suspect is put back; where the broker would count that as an
    attempt it is kept instead, its leases extended, until the suspect has run.

    Args:
        lanes: All lanes of the runner; their gates are closed meanwhile.
        dispatcher: Settles what is in the way, and begins the suspect.
        slots: Must be at rest before it begins.
        opener: Quiesces the lanes of a broker that pushes, and opens them again.
        claim_one: Claims at most one message from a lane.
        start: Runs a task that ends the runner if it fails.
    """

    def __init__(
        self,
        lanes: Callable[[], Iterable[Lane]],
        dispatcher: Dispatcher,
        slots: Slots,
        opener: Opener,
        *,
        claim_one: Callable[[Lane], Awaitable[list[Held]]],
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._lanes = lanes
        self._dispatcher = dispatcher
        self._slots = slots
        self._opener = opener
        self._claim_one = claim_one
        self._start = start
        self._suspect: tuple[Lane, Held, Route] | None = None
        self._kept: list[tuple[Lane, Held]] = []
        self._deferrals: Counter[str] = Counter()

    def begin(self, lane: Lane, held: Held, route: Route) -> None:
        """Isolate ``held``: the first of a claim; those after it are set aside."""
        if self._is_in_danger(lane, held):
            self._dispatcher.put_back(lane, held, _LATER)
            return
        self._dispatcher.is_isolating = True
        for other in self._lanes():
            other.gate.clear()
        self._dispatcher.set_aside(self._slots.take_unstarted())
        self._suspect = lane, held, route
        self._start(self._run(lane))

    def set_aside(self, lane: Lane, held: Held) -> None:
        """Take ``held``, which has not begun, away from a suspect."""
        if _counts_returns(lane):
            self._kept.append((lane, held))
        else:
            self._dispatcher.put_back(lane, held)

    def _is_in_danger(self, lane: Lane, held: Held) -> bool:
        """Whether ``held`` had better not be in our hands until what runs now has ended.

        Something among it could be the culprit, at an attempt that is not its last one; if it
        strikes, whatever is held here has lost its own last attempt. But a runner that is never
        at rest must not keep a suspect waiting for ever.
        """
        id_ = held.view.message.id
        if (
            not self._slots.running
            or _counts_returns(lane)
            or self._deferrals[id_] >= _MOST_DEFERRALS
        ):
            self._deferrals.pop(id_, None)
            return False
        if len(self._deferrals) > _MOST_REMEMBERED:
            self._deferrals.clear()
        self._deferrals[id_] += 1
        return True

    def put_back(self) -> None:
        """Put back what has not begun: a stop must not cost a suspect its last attempt."""
        if self._suspect is not None:
            lane, held, _ = self._suspect
            self._suspect = None
            self._dispatcher.put_back(lane, held)
        self._accept_kept()

    def _accept_kept(self) -> None:
        kept, self._kept = self._kept, []
        for lane, held in kept:
            self._dispatcher.accept(lane, held)

    async def _run(self, lane: Lane) -> None:
        innocent: Held | None = None
        try:
            while self._suspect is not None:
                await self._make_way()
                if self._dispatcher.is_stopping:
                    return
                lane, held, route = self._suspect
                self._suspect = None
                await self._run_alone(lane, held, route)
                lane = await self._anew(lane, prefetch=1)
                if not self._has_kept_another():
                    innocent = await self._claim_next(lane)
            await self._go_on(lane, innocent)
        finally:
            self._dispatcher.is_isolating = False
            for other in self._lanes():
                other.gate.set()
            self._accept_kept()

    async def _make_way(self) -> None:
        # Settles too: were the process killed now, a finished message whose ack is still on
        # its way would be taken for lost.
        await self._slots.rest()
        for other in list(self._lanes()):
            if other.is_pushed:
                await self._opener.quiesce(other)
            else:
                await other.settler.flush()

    async def _run_alone(self, lane: Lane, held: Held, route: Route) -> None:
        told = lane.keeper.instrumentation
        if told is not None:
            message = held.view.message
            told.emit(CrashSuspectIsolated(queue=lane.queue, type=message.type, id=message.id))
        self._dispatcher.start_alone(route, held)
        await self._slots.rest()
        await lane.settler.flush()

    def _has_kept_another(self) -> bool:
        """Whether a suspect was claimed beside the last one; it is the next one then."""
        for lane, held in self._kept:
            route = _suspected_route(lane, held)
            if route is not None:
                self._kept.remove((lane, held))
                self._suspect = lane, held, route
                return True
        return False

    async def _claim_next(self, lane: Lane) -> Held | None:
        """What comes next, unless that is another suspect, or nothing."""
        if self._dispatcher.is_stopping:
            return None
        try:
            claimed = await self._claim_one(lane)
        except DriverError:
            return None  # the lane's own claim meets the same trouble, and reports it
        for held in claimed:
            route = _suspected_route(lane, held)
            if route is None:
                return held
            self._suspect = lane, held, route
        return None

    async def _anew(self, lane: Lane, *, prefetch: int | None = None) -> Lane:
        if not lane.is_pushed or self._dispatcher.is_stopping:
            return lane
        return await self._opener.reopen(lane, prefetch=prefetch, claims=prefetch is None)

    async def _go_on(self, lane: Lane, innocent: Held | None) -> None:
        if innocent is not None and not lane.is_pushed:
            self._dispatcher.is_isolating = False
            self._dispatcher.accept(lane, innocent)
        elif innocent is not None:
            # Its consumer is about to be replaced by one that is sent more at a time.
            self._dispatcher.put_back(lane, innocent)
            await lane.settler.flush()
        for other in list(self._lanes()):
            await self._anew(other)


def _counts_returns(lane: Lane) -> bool:
    return lane.keeper.capabilities.uncounted_return is UncountedReturn.COUNTED


def _suspected_route(lane: Lane, held: Held) -> Route | None:
    """The worker of ``held``, if that is a crash suspect."""
    route = lane.route_of(held)
    if route is None or not is_crash_suspect(held.delivery, route.retry.max_attempts):
        return None
    return route

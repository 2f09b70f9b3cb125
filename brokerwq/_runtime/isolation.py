"""Crash suspects: a message that may have killed its runner gets its last attempt alone.

A dead process takes an attempt from everything it held. If all of it were run side by side
once more, the one message that kills processes would take the innocent with it into the
dead-letter queue. So a message at its last attempt that was lost before is run alone: then
only the culprit can die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from brokerwq._runtime.dispatcher import Dispatcher
from brokerwq._runtime.lane import Lane
from brokerwq._runtime.leases import Held
from brokerwq._runtime.route import Route
from brokerwq._runtime.slots import Slots
from brokerwq._runtime.verdict import is_crash_suspect
from brokerwq.driver.protocol import Delivery
from brokerwq.errors import DriverError
from brokerwq.events import CrashSuspectIsolated, Instrumentation


class Isolation:
    """Runs one suspect at a time with nothing beside it, then lets the lanes go on.

    ``claim_one`` claims at most one message from a lane, without waiting.

    Args:
        lanes: All lanes of the runner; their gates are closed meanwhile.
        instrumentation: Told of each suspect.
    """

    def __init__(
        self,
        lanes: Callable[[], Iterable[Lane]],
        instrumentation: Instrumentation | None,
    ) -> None:
        self.dispatcher: Dispatcher
        self.slots: Slots
        self.claim_one: Callable[[Lane], Awaitable[list[Held]]]
        self._lanes = lanes
        self._instrumentation = instrumentation
        self._task: asyncio.Task[None] | None = None

    def begin(self, lane: Lane, held: Held, route: Route) -> None:
        """Isolate ``held``: the first of a claim; those after it are put back."""
        self.dispatcher.is_isolating = True
        for other in self._lanes():
            other.gate.clear()
        self.dispatcher.put_back_unstarted(self.slots.take_unstarted())
        self._task = asyncio.get_running_loop().create_task(self._run(lane, held, route))

    async def aclose(self) -> None:
        """Stop isolating."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, lane: Lane, suspect: Held, route: Route) -> None:
        held: Held | None = suspect
        innocent: Held | None = None
        try:
            while held is not None:
                await self._run_alone(lane, held, route)
                innocent = held = None
                if self.dispatcher.is_stopping:
                    return
                for claimed in await self._next(lane):
                    innocent = claimed
                    next_route = lane.route_of(claimed.delivery.message.type)
                    if next_route is not None and _may_kill(claimed.delivery, next_route):
                        held, route, innocent = claimed, next_route, None
        finally:
            self.dispatcher.is_isolating = False
            self._task = None
            if innocent is not None:
                self.dispatcher.accept(lane, innocent)
            for other in self._lanes():
                other.gate.set()

    async def _run_alone(self, lane: Lane, held: Held, route: Route) -> None:
        # Settles too: were the process killed now, a finished message whose ack is still on
        # its way would be taken for lost.
        await self.slots.rest()
        for other in self._lanes():
            await other.settler.flush()
        if self.dispatcher.is_stopping:
            self.dispatcher.put_back(lane, held)
            return
        if self._instrumentation is not None:
            message = held.delivery.message
            self._instrumentation.emit(
                CrashSuspectIsolated(queue=lane.queue, type=message.type, id=message.id)
            )
        self.dispatcher.start_alone(route, held)
        await self.slots.rest()
        await lane.settler.flush()

    async def _next(self, lane: Lane) -> list[Held]:
        try:
            return await self.claim_one(lane)
        except DriverError:
            return []  # the lane's own claim meets the same trouble, and reports it


def _may_kill(delivery: Delivery, route: Route) -> bool:
    return is_crash_suspect(delivery, route.retry.max_attempts)

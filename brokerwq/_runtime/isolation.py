"""Crash suspects: a message that may have killed its runner gets its last attempt alone.

A dead process takes an attempt from everything it held. If all of it were run side by side
once more, the one message that kills processes would take the innocent with it into the
dead-letter queue. So a message at its last attempt that was lost before is run alone: then
only the culprit can die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from brokerwq._runtime.dispatcher import Dispatcher
from brokerwq._runtime.lane import Lane
from brokerwq._runtime.leases import Held
from brokerwq._runtime.opener import Opener
from brokerwq._runtime.route import Route
from brokerwq._runtime.slots import Slots
from brokerwq._runtime.verdict import is_crash_suspect
from brokerwq.driver.protocol import Delivery
from brokerwq.errors import DriverError
from brokerwq.events import CrashSuspectIsolated, Instrumentation


class Isolation:
    """Runs one suspect at a time with nothing beside it, then lets the lanes go on.

    A broker that pushes has sent more ahead of what was claimed. It lies in the consumer,
    would die with the culprit and count: so such a consumer is quiesced before the suspect
    starts, and a new one that is sent one message at a time takes its place.

    ``claim_one`` claims at most one message from a lane; ``start`` runs a task that ends the
    runner if it fails.

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
        self.opener: Opener
        self.claim_one: Callable[[Lane], Awaitable[list[Held]]]
        self.start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
        self._lanes = lanes
        self._instrumentation = instrumentation
        self._task: asyncio.Task[None] | None = None

    def begin(self, lane: Lane, held: Held, route: Route) -> None:
        """Isolate ``held``: the first of a claim; those after it are put back."""
        self.dispatcher.is_isolating = True
        for other in self._lanes():
            other.gate.clear()
        self.dispatcher.put_back_unstarted(self.slots.take_unstarted())
        self._task = self.start(self._run(lane, held, route))

    async def aclose(self) -> None:
        """Stop isolating."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, lane: Lane, suspect: Held, route: Route) -> None:
        held: Held | None = suspect
        innocent: Held | None = None
        try:
            while held is not None and not self.dispatcher.is_stopping:
                await self._run_alone(lane, held, route)
                innocent = held = None
                lane = await self._anew(lane, prefetch=1)
                for claimed in await self._next(lane):
                    innocent = claimed
                    next_route = lane.route_of(claimed.delivery.message.type)
                    if next_route is not None and _may_kill(claimed.delivery, next_route):
                        held, route, innocent = claimed, next_route, None
            if held is not None:
                self.dispatcher.put_back(lane, held)
            await self._go_on(lane, innocent)
        finally:
            self.dispatcher.is_isolating = False
            self._task = None
            for other in self._lanes():
                other.gate.set()

    async def _run_alone(self, lane: Lane, held: Held, route: Route) -> None:
        # Settles too: were the process killed now, a finished message whose ack is still on
        # its way would be taken for lost.
        await self.slots.rest()
        for other in self._lanes():
            if other.is_pushed:
                await self.opener.quiesce(other)
            else:
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
        if self.dispatcher.is_stopping:
            return []
        try:
            return await self.claim_one(lane)
        except DriverError:
            return []  # the lane's own claim meets the same trouble, and reports it

    async def _anew(self, lane: Lane, *, prefetch: int | None = None) -> Lane:
        if not lane.is_pushed or self.dispatcher.is_stopping:
            return lane
        return await self.opener.reopen(lane, prefetch=prefetch, claims=prefetch is None)

    async def _go_on(self, lane: Lane, innocent: Held | None) -> None:
        if innocent is not None and not lane.is_pushed:
            self.dispatcher.is_isolating = False
            self.dispatcher.accept(lane, innocent)
        elif innocent is not None:
            # Its consumer is about to be replaced by one that is sent more at a time.
            self.dispatcher.put_back(lane, innocent)
            await lane.settler.flush()
        for other in list(self._lanes()):
            await self._anew(other)


def _may_kill(delivery: Delivery, route: Route) -> bool:
    return is_crash_suspect(delivery, route.retry.max_attempts)

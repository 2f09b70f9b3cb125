"""Opening lanes: a consumer and all that belongs to it, and anew after a close look."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from brokerwq._runtime.bridge import Bridge
from brokerwq._runtime.connection import Connection
from brokerwq._runtime.dispatcher import Dispatcher
from brokerwq._runtime.lane import BatchBuffer, Lane
from brokerwq._runtime.leases import LeaseKeeper
from brokerwq._runtime.lifecycle import Lifecycle
from brokerwq._runtime.plan import Plan
from brokerwq._runtime.route import Route
from brokerwq._runtime.settler import Settler
from brokerwq._runtime.strangers import Strangers
from brokerwq._runtime.verdict import Judge
from brokerwq.clock import move_on_after
from brokerwq.driver.capabilities import Capabilities, Lease
from brokerwq.driver.protocol import QueueSpec, capabilities_of
from brokerwq.errors import DriverError

_CLOSE_PATIENCE = 3.0
_PARKING = 5.0
_QUIESCE_PATIENCE = 30.0
"""Seconds; polls that are under way are waited for."""


class Opener:
    """Opens and closes the lanes of one engine.

    Args:
        plan: What is run.
        bridge: To the I/O side.
        dispatcher: Where full batches go.
        lifecycle: Told when dead letters cannot be moved.
        store_up: Set while the store of processed keys answers.
        lanes: The open lanes, kept up to date here.
        start_intake: Begins to claim for a lane.
    """

    def __init__(
        self,
        plan: Plan,
        bridge: Bridge,
        dispatcher: Dispatcher,
        *,
        lifecycle: Lifecycle,
        store_up: asyncio.Event,
        lanes: dict[LeaseKeeper, Lane],
        start_intake: Callable[[Lane], object],
    ) -> None:
        self._plan = plan
        self._bridge = bridge
        self._dispatcher = dispatcher
        self._lifecycle = lifecycle
        self._store_up = store_up
        self._lanes = lanes
        self._start_intake = start_intake

    async def open_all(self, connection: Connection) -> None:
        """Open every lane of the plan at one broker, then begin to claim for all of them."""
        opened = [await self._open(connection, spec, routes) for spec, routes in self._plan.queues]
        for lane in opened:
            if lane is not None:
                self._start_intake(lane)

    async def quiesce(self, lane: Lane) -> None:
        """Stop receiving on ``lane`` and settle what it holds.

        What a broker in trouble could not be given back comes back when its lease ends.
        """
        lane.quiesced.set()
        with suppress(DriverError), move_on_after(self._plan.clock, _QUIESCE_PATIENCE):
            await self._bridge.call(lane.keeper.consumer.quiesce)
        await lane.settler.flush()

    async def reopen(self, lane: Lane, *, prefetch: int | None = None, claims: bool = True) -> Lane:
        """A new consumer for ``lane``, which was quiesced; none if told to stop meanwhile.

        Args:
            lane: The lane; it is replaced by the answer.
            prefetch: How far ahead the broker may push; None for as far as usual.
            claims: Whether the intake begins to claim for it.
        """
        await self.close(lane)
        fresh = await self._open(lane.connection, lane.spec, lane.workers, prefetch)
        if fresh is None:
            return lane
        if claims:
            self._start_intake(fresh)
        return fresh

    async def close(self, lane: Lane) -> None:
        """Free the lane's consumer; what it still holds comes back when its lease ends."""
        lane.quiesced.set()
        lane.gate.set()
        await lane.settler.aclose()
        with suppress(DriverError), move_on_after(self._plan.clock, _CLOSE_PATIENCE):
            await self._bridge.call(lane.keeper.aclose)
            await self._bridge.call(lane.keeper.consumer.aclose)
        self._lanes.pop(lane.keeper, None)

    async def _open(
        self,
        connection: Connection,
        spec: QueueSpec,
        routes: Sequence[Route],
        prefetch: int | None = None,
    ) -> Lane | None:
        plan = self._plan
        batch = next((route for route in routes if route.batch), None)
        usual = plan.slots * (batch.batch if batch else 1)
        consumer = await connection.consume(spec, prefetch or usual)
        if consumer is None:
            return None
        capabilities = capabilities_of(consumer, connection.driver)
        told = connection.site.instrumentation or plan.instrumentation
        troubles = connection.of(f"dead letters {spec.name}")
        keeper = LeaseKeeper(
            consumer,
            capabilities,
            clock=plan.clock,
            bridge=self._bridge,
            heartbeat=plan.heartbeat,
            emit=None if told is None else told.emit,
        )
        keeper.instrumentation = told
        settler = Settler(
            keeper,
            self._bridge,
            clock=plan.clock,
            instrumentation=told,
            troubled=lambda why: self._lifecycle.trouble(troubles, why),
            recovered=lambda: self._lifecycle.clear(troubles),
        )
        lane = Lane(
            connection=connection,
            spec=spec,
            routes=_by_type(routes),
            strangers=Strangers(routes),
            keeper=keeper,
            settler=settler,
            judge=Judge(capabilities, plan.unknown_after, _longest_parking(spec, capabilities)),
            store_up=self._store_up if any(route.guard for route in routes) else None,
        )
        if batch is not None:
            lane.buffer = BatchBuffer(batch, plan.clock, self._dispatcher.start_batch)
        if not self._dispatcher.is_isolating:
            lane.gate.set()
        self._lanes[keeper] = lane
        return lane


def _longest_parking(spec: QueueSpec, capabilities: Capabilities) -> float:
    # A queue of somebody else's has no delay queues beside it: what is put back there is held.
    holds = capabilities.lease is Lease.CONNECTION and spec.declare == "never"
    return _PARKING if holds else math.inf


def _by_type(routes: Sequence[Route]) -> Mapping[str, Route]:
    return {name: route for route in routes for name in (route.name, *route.aliases)}

"""Claiming by demand: no more than the slots will run soon, and patiently through outages."""

from __future__ import annotations

from collections.abc import Callable

from brokerwq._runtime.bridge import Bridge
from brokerwq._runtime.dispatcher import Dispatcher
from brokerwq._runtime.lane import Lane
from brokerwq._runtime.leases import Held
from brokerwq._runtime.lifecycle import Lifecycle
from brokerwq._runtime.pauses import Pauses
from brokerwq._runtime.slots import Slots
from brokerwq.clock import Clock, move_on_after
from brokerwq.driver.capabilities import UncountedReturn
from brokerwq.errors import (
    ClosedError,
    DriverError,
    QueueMismatchError,
    TransientError,
    UnsupportedError,
)
from brokerwq.events import BrokerReached, BrokerUnreachable, Event, MessagesClaimed

POLL_SECONDS = 10.0
"""Longest wait of one claim; whoever waits is woken earlier by a message."""

_FATAL = (QueueMismatchError, UnsupportedError)


class Intake:
    """Claims for the lanes of one runner.

    Args:
        slots: Where the demand comes from.
        dispatcher: Where the messages go.
        bridge: To the I/O side.
        clock: For pauses and bounds.
        lifecycle: Told of trouble.
        reconnect_cap: Longest pause between tries in seconds.
        lane_count: How many lanes share the slots.
        emit: Told of claims and outages.
    """

    def __init__(
        self,
        slots: Slots,
        dispatcher: Dispatcher,
        bridge: Bridge,
        *,
        clock: Clock,
        lifecycle: Lifecycle,
        reconnect_cap: float,
        lane_count: int,
        emit: Callable[[Event], object] | None,
    ) -> None:
        self._slots = slots
        self._dispatcher = dispatcher
        self._bridge = bridge
        self._clock = clock
        self._lifecycle = lifecycle
        self._reconnect_cap = reconnect_cap
        self._shares_slots = lane_count > 1
        self._emit = emit

    async def run(self, lane: Lane) -> None:
        """Claim for ``lane`` until it is quiesced."""
        pauses = Pauses(self._reconnect_cap)
        while not lane.quiesced.is_set():
            await lane.wait_until_open()
            await self._slots.wait_until_free(lane.limited)
            if lane.quiesced.is_set() or not lane.is_open:
                self._slots.freed()  # the room that woke this lane is for another one
                continue
            try:
                await self._claim(lane)
            except DriverError as error:
                if lane.quiesced.is_set():
                    return
                if isinstance(error, _FATAL):
                    self._lifecycle.fail(error)
                    return
                await self._pause(lane, error, pauses)
            else:
                self._recovered(lane, pauses)

    async def claim_one(self, lane: Lane) -> list[Held]:
        """At most one message, without waiting for it."""
        return await self._ask(lane, 1, 0.0)

    async def _ask(self, lane: Lane, most: int, wait: float) -> list[Held]:
        try:
            return await self._bridge.call(lane.keeper.claim, most, wait)
        except DriverError:
            raise
        except Exception as error:
            # An adapter's bug, or its client's: whoever waits may see it pass.
            msg = f"claim failed: {error!r:.200}"
            raise TransientError(msg) from error

    async def _claim(self, lane: Lane) -> None:
        wanted, reserved, longest = self._share(lane)
        slots = self._slots
        slots.reserved += reserved
        try:
            slots.freed()  # another lane may want the rest
            wait = min(lane.keeper.capabilities.max_wait, longest)
            helds = await self._ask(lane, wanted, wait)
            slots.reserved -= reserved
            reserved = 0
            lane.was_empty = not helds
            if helds and self._emit is not None:
                self._emit(MessagesClaimed(queue=lane.queue, count=len(helds)))
            for held in helds:
                self._dispatcher.accept(lane, held)
        finally:
            slots.reserved -= reserved
            slots.freed()

    def _share(self, lane: Lane) -> tuple[int, int, float]:
        """How many messages to ask for, how many slots that reserves, and how long to wait.

        A long wait on a queue with nothing in it must not keep slots from the others: who
        shares them reserves some only for what is there already.
        """
        free = self._slots.room(lane.limited)
        if lane.keeper.capabilities.uncounted_return is UncountedReturn.COUNTED:
            free -= self._slots.ahead  # giving back what has not begun would cost an attempt
        free = max(free, 1)
        if self._shares_slots and lane.was_empty:
            return lane.per_slot, 0, POLL_SECONDS
        waiting = 0 if lane.buffer is None else len(lane.buffer)
        most = int(min(lane.keeper.capabilities.max_claim, free * lane.per_slot - waiting))
        wanted = max(most, 1)
        longest = 0.0 if self._shares_slots else POLL_SECONDS
        return wanted, -(-wanted // lane.per_slot), longest

    async def _pause(self, lane: Lane, error: DriverError, pauses: Pauses) -> None:
        pause = pauses.next()
        if isinstance(error, ClosedError):
            pause = self._reconnect_cap
        text = f"{type(error).__name__}: {error}"[:200]
        self._lifecycle.trouble(f"claim {lane.title}", f"{lane.title}: {text}")
        if self._emit is not None:
            self._emit(
                BrokerUnreachable(queue=lane.queue, operation="claim", error=text, retry_in=pause)
            )
        with move_on_after(self._clock, pause):
            await self._lifecycle.stop_asked.wait()

    def _recovered(self, lane: Lane, pauses: Pauses) -> None:
        pauses.reset()
        # Asked of the lifecycle: the trouble may have been met by the lane before this one.
        if self._lifecycle.clear(f"claim {lane.title}") and self._emit is not None:
            self._emit(BrokerReached(queue=lane.queue))

"""Draining: when a finite batch is done, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from brokerwq._runtime.connection import Connection
from brokerwq._runtime.lane import Lane
from brokerwq._runtime.opener import Opener
from brokerwq._runtime.slots import Slots
from brokerwq.clock import Clock
from brokerwq.driver.protocol import Certainty, QueueStats
from brokerwq.errors import DriverError
from brokerwq.events import Event, QueueInspected

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_SURE_AGAIN_AFTER = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainGoal:
    """When a drain is over.

    Attributes:
        include_delayed: Wait for every delayed message, however far off.
        settle: Seconds for which estimated counts must stay at zero.
        progress: Told how many are left, whenever that was looked up.
    """

    include_delayed: bool = False
    settle: float = 5.0
    progress: Callable[[int], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """How a drain ended.

    Attributes:
        left_delayed: Messages that are delayed beyond the longest backoff, not awaited.
        estimated: The counts were estimates that stayed at zero.
    """

    left_delayed: int = 0
    estimated: bool = False


class Drain:
    """Looks until all queues are empty.

    Args:
        goal: When it is over; None is never asked.
        connection: Counts.
        slots: Whether anything runs here.
        opener: Quiesces lanes for a close look, and opens them again.
        clock: For pauses.
        emit: Told of each look.
    """

    def __init__(
        self,
        goal: DrainGoal | None,
        connection: Connection,
        slots: Slots,
        opener: Opener,
        *,
        clock: Clock,
        emit: Callable[[Event], object] | None,
    ) -> None:
        self._goal = goal or DrainGoal()
        self._connection = connection
        self._slots = slots
        self._opener = opener
        self._clock = clock
        self._emit = emit

    async def run(self, lanes_now: Callable[[], Iterable[Lane]]) -> Drained:
        """Return once nothing is left that a drain waits for.

        Args:
            lanes_now: The lanes; a lane may be replaced by another one for its queue.
        """
        pause = _FIRST_PAUSE
        empty_since: float | None = None
        while True:
            lanes = list(lanes_now())
            looks = await self._look(lanes)
            if looks is None or not self._is_empty(lanes, looks):
                empty_since = None
                await self._clock.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            now = self._clock.now()
            empty_since = now if empty_since is None else empty_since
            estimated = any(_is_estimate(stats) for stats in looks)
            if estimated and now - empty_since < self._goal.settle:
                await self._clock.sleep(min(_LONGEST_PAUSE, self._goal.settle))
                continue
            if not await self._is_certain(lanes):
                empty_since, pause = None, _FIRST_PAUSE
                continue
            left = sum(stats.delayed.value for stats in looks)
            return Drained(left_delayed=left, estimated=estimated)

    async def _look(self, lanes: Sequence[Lane]) -> list[QueueStats] | None:
        looks: list[QueueStats] = []
        for lane in lanes:
            try:
                stats = await self._connection.inspect(lane.queue)
            except DriverError:
                return None  # the lane's own claim meets the same trouble, and reports it
            if self._emit is not None:
                self._emit(QueueInspected(queue=lane.queue, stats=stats))
            looks.append(stats)
        if self._goal.progress is not None:
            left = sum(s.ready.value + s.leased.value + s.delayed.value for s in looks)
            self._goal.progress(left)
        return looks

    def _is_empty(self, lanes: Sequence[Lane], looks: Sequence[QueueStats]) -> bool:
        is_busy = any(lane.settler.pending or not lane.gate.is_set() for lane in lanes)
        if is_busy or not self._slots.is_at_rest:
            return False
        return all(
            not stats.ready.value
            and not stats.leased.value
            and (not stats.delayed.value or self._is_far_off(lane, stats))
            for lane, stats in zip(lanes, looks, strict=True)
        )

    def _is_far_off(self, lane: Lane, stats: QueueStats) -> bool:
        if self._goal.include_delayed or stats.next_due is None:
            return False
        return stats.next_due > lane.longest_wait

    async def _is_certain(self, lanes: Sequence[Lane]) -> bool:
        """Whether a close look finds nothing either; if it does, the lanes go on.

        A broker that cannot count what is leased is looked at without a consumer of ours,
        twice: what another one held could have come back in between.
        """
        unsure = [lane for lane in lanes if lane.is_pushed]
        if not unsure:
            return True
        for lane in unsure:
            await self._opener.quiesce(lane)
        found_none = True
        for _ in range(2):
            looks = await self._look(lanes)
            found_none = found_none and looks is not None and self._is_empty(lanes, looks)
            if not found_none:
                break
            await self._clock.sleep(_SURE_AGAIN_AFTER)
        if found_none:
            return True
        for lane in unsure:
            await self._opener.reopen(lane)
        return False


def _is_estimate(stats: QueueStats) -> bool:
    counts = (stats.ready, stats.leased, stats.delayed)
    return any(count.certainty is Certainty.ESTIMATE for count in counts)

"""Draining: when a finite batch is done, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from brokerwq._runtime.lane import Lane
from brokerwq._runtime.opener import Opener
from brokerwq._runtime.slots import Slots
from brokerwq.clock import Clock
from brokerwq.driver.protocol import Certainty, QueueStats
from brokerwq.errors import DriverError
from brokerwq.events import Event, QueueInspected

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_PAUSE_PER_LOOK = 20.0
"""Times as long as a look took; at a million messages one takes a good while."""
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
        left_delayed: Messages that are delayed beyond the longest backoff, not awaited, or held
            for want of a dead-letter queue.
        estimated: The counts were estimates that stayed at zero.
    """

    left_delayed: int = 0
    estimated: bool = False


class Drain:
    """Looks until all queues are empty.

    Args:
        goal: When it is over.
        lanes: The open lanes; one that is being replaced is missing for a while.
        lane_count: How many there are otherwise.
        slots: Whether anything runs here.
        on_hold: How many messages of a lane are held for want of a dead-letter queue.
        opener: Quiesces lanes for a close look, and opens them again.
        clock: For pauses.
        emit: Told of each look.
    """

    def __init__(
        self,
        goal: DrainGoal,
        lanes: Callable[[], Iterable[Lane]],
        lane_count: int,
        *,
        slots: Slots,
        on_hold: Callable[[Lane], int],
        opener: Opener,
        clock: Clock,
        emit: Callable[[Event], object] | None,
    ) -> None:
        self._goal = goal
        self._lanes = lanes
        self._lane_count = lane_count
        self._slots = slots
        self._on_hold = on_hold
        self._opener = opener
        self._clock = clock
        self._emit = emit

    async def run(self) -> Drained:
        """Return once nothing is left that a drain waits for."""
        pause = _FIRST_PAUSE
        finished = -1
        empty_since: float | None = None
        while True:
            lanes = list(self._lanes())
            started = self._clock.now()
            looks = await self._find_nothing(lanes)
            now = self._clock.now()
            if looks is None:
                empty_since = None
                # What was just finished may have been the last; but looking must stay cheap.
                has_moved, finished = self._slots.finished != finished, self._slots.finished
                pause = _FIRST_PAUSE if has_moved else min(pause * 2, _LONGEST_PAUSE)
                least = min((now - started) * _PAUSE_PER_LOOK, _LONGEST_PAUSE)
                await self._clock.sleep(max(pause, least))
                continue
            empty_since = now if empty_since is None else empty_since
            estimated = any(_is_estimate(stats) for stats in looks)
            if estimated and now - empty_since < self._goal.settle:
                await self._clock.sleep(min(_LONGEST_PAUSE, self._goal.settle))
                continue
            if not await self._is_certain(lanes):
                empty_since, pause = None, _FIRST_PAUSE
                continue
            left = sum(
                max(stats.delayed.value, self._on_hold(lane))
                for lane, stats in zip(lanes, looks, strict=True)
            )
            return Drained(left_delayed=left, estimated=estimated)

    async def _find_nothing(self, lanes: Sequence[Lane]) -> Sequence[QueueStats] | None:
        """What a look at all queues found, if that is nothing to wait for; else None."""
        looks: list[QueueStats] = []
        for lane in lanes:
            try:
                stats = await lane.connection.inspect(lane.queue)
            except DriverError:
                return None  # the lane's own claim meets the same trouble, and reports it
            if self._emit is not None:
                self._emit(QueueInspected(queue=lane.queue, stats=stats))
            looks.append(stats)
        if self._goal.progress is not None:
            left = sum(s.ready.value + s.leased.value + s.delayed.value for s in looks)
            self._goal.progress(left)
        return looks if self._is_empty(lanes, looks) else None

    def _is_empty(self, lanes: Sequence[Lane], looks: Sequence[QueueStats]) -> bool:
        is_busy = any(lane.settler.pending or not lane.gate.is_set() for lane in lanes)
        if is_busy or len(lanes) < self._lane_count or not self._slots.is_at_rest:
            return False
        return all(map(self._has_nothing, lanes, looks))

    def _has_nothing(self, lane: Lane, stats: QueueStats) -> bool:
        at_once = stats.ready.value + stats.leased.value
        # Of what comes back for ever, and is never run, not each broker tells when.
        if at_once + stats.delayed.value <= self._on_hold(lane):
            return True
        return not at_once and (not stats.delayed.value or self._is_far_off(lane, stats))

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
        if await self._find_nothing(lanes) is not None:
            await self._clock.sleep(_SURE_AGAIN_AFTER)
            if await self._find_nothing(lanes) is not None:
                return True
        for lane in unsure:
            await self._opener.reopen(lane)
        return False


def _is_estimate(stats: QueueStats) -> bool:
    counts = (stats.ready, stats.leased, stats.delayed)
    return any(count.certainty is Certainty.ESTIMATE for count in counts)

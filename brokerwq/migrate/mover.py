"""The mover: all lanes of a migration, until nothing is left or until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from brokerwq.clock import Clock, move_on_after
from brokerwq.migrate.lane import Lane
from brokerwq.migrate.ledger import Ledger
from brokerwq.migrate.line import LaneReport, Line
from brokerwq.migrate.pace import Pace
from brokerwq.migrate.pair import Direction, Pair
from brokerwq.migrate.sending import Target
from brokerwq.migrate.side import Side

_LOOK = 0.1
_SHOW = 10.0
_STOP_SECONDS = 20.0

DEFAULT_LEASE = 60.0


@dataclass(slots=True, kw_only=True)
class MoveReport:
    """What a mover did.

    Attributes:
        lanes: Queue by queue, dead-letter queues included.
        throttled: How often the target asked for a pause.
        seconds: How long it took.
        is_complete: Nothing that fits was left at the source at the end.
    """

    lanes: list[LaneReport] = field(default_factory=list[LaneReport])
    throttled: int = 0
    seconds: float = 0.0
    is_complete: bool = False

    @property
    def moved(self) -> int:
        """Messages that are at the target now."""
        return sum(lane.moved for lane in self.lanes)

    @property
    def refused(self) -> int:
        """Messages that do not fit, and are where they were."""
        return sum(lane.refused_count for lane in self.lanes)

    @property
    def waiting(self) -> int:
        """Messages that were still at the source at the last look, misfits left out."""
        return sum(lane.waiting for lane in self.lanes)


class Mover:
    """Moves once; make another one to move again.

    Args:
        source: Where messages come from.
        target: Where they go.
        pairs: Queue by queue; they exist at the target.
        ledger: Open.
        direction: For the ledger.
        keeps_raw: Both sides are brokers of one kind.
        clock: Time.
        rate: Messages a second at most; None for no limit.
        settle: Seconds for which nothing may be left before it is over.
        lease: Seconds after which what a mover that was killed held comes back.
        patience: Seconds for which a broker in trouble is asked again.
        waits: Whether what is delayed or held by others is waited for.
        on_progress: Told how things stand, after every batch.
    """

    def __init__(
        self,
        source: Side,
        target: Side,
        pairs: Sequence[Pair],
        ledger: Ledger,
        *,
        direction: Direction,
        keeps_raw: bool,
        clock: Clock,
        rate: float | None = None,
        settle: float = 5.0,
        lease: float = DEFAULT_LEASE,
        patience: float = 60.0,
        waits: bool = True,
        on_progress: Callable[[MoveReport], object] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._direction: Direction = direction
        self._clock = clock
        self._settle = settle
        self._on_progress = on_progress
        self._stopping = asyncio.Event()
        self._started = clock.now()
        self._target = Target(target, clock, patience, self._stopping)
        line = Line(
            source=source,
            target=self._target,
            keeps_raw=keeps_raw,
            direction=direction,
            ledger=ledger,
            pace=Pace(rate, clock),
            clock=clock,
            lease=lease,
            patience=patience,
            waits=waits,
            stopping=self._stopping,
            progressed=self._progressed,
        )
        self._lanes = [Lane(line, pair) for pair in pairs]
        self.report = MoveReport(lanes=[lane.report for lane in self._lanes])

    def stop(self) -> None:
        """End after the batches that are under way."""
        self._stopping.set()

    async def run(self) -> MoveReport:
        """Move until nothing is left, or until told to stop.

        Cancelled, it ends the batches that are under way, puts back what it holds, and then
        lets itself be cancelled.

        Raises:
            ConfigError: the migration is finished.
            DriverError: one of the sides refuses, or has not answered for all of the patience.
        """
        self._set_forgiven(await self._ledger.begin(self._direction))
        moving = asyncio.ensure_future(self._move())
        try:
            await asyncio.shield(moving)
        except asyncio.CancelledError:
            self.stop()
            with move_on_after(self._clock, _STOP_SECONDS) as scope:
                scope.shield = True
                await asyncio.wait({moving})
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
            raise
        finally:
            self._finish_report()
            await self._ledger.end()
        return self.report

    async def _move(self) -> None:
        supervising = asyncio.ensure_future(self._supervise())
        lanes = [asyncio.ensure_future(lane.run()) for lane in self._lanes]
        try:
            done, _ = await asyncio.wait([supervising, *lanes], return_when=asyncio.FIRST_EXCEPTION)
            failed = next((task for task in done if task.exception() is not None), None)
            if failed is not None:
                self.stop()
                await asyncio.wait(lanes)
                failed.result()
        finally:
            for task in (supervising, *lanes):
                task.cancel()
            await asyncio.gather(supervising, *lanes, return_exceptions=True)

    async def _supervise(self) -> None:
        shown_at = self._clock.now()
        while not self._stopping.is_set():
            await self._clock.sleep(_LOOK)
            now = self._clock.now()
            if self._is_over(now):
                self.report.is_complete = not self.report.waiting
                self.stop()
                return
            if now - shown_at >= _SHOW:
                shown_at = now
                self._set_forgiven(await self._ledger.show(self._direction))

    def _is_over(self, now: float) -> bool:
        return all(
            lane.rest.quiet_since is not None and now - lane.rest.quiet_since >= self._settle
            for lane in self._lanes
        )

    def _set_forgiven(self, others: int) -> None:
        for lane in self._lanes:
            lane.forgiven = others

    def _progressed(self) -> None:
        self._finish_report()
        self._on_progress(self.report)

    def _finish_report(self) -> None:
        self.report.throttled = self._target.throttled
        self.report.seconds = self._clock.now() - self._started

"""What is left at the source, and whether there is anything to wait for."""

from __future__ import annotations

import math
from contextlib import suppress

from brokerwq.driver.moving import Hastening, abilities_of
from brokerwq.driver.protocol import Certainty
from brokerwq.errors import DriverError, PermissionDeniedError
from brokerwq.migrate.line import LaneReport, Line
from brokerwq.migrate.pair import Pair

_HASTEN_BEYOND = 600.0
"""Seconds; neither what waits for its next attempt, nor misfits that are out of the way."""
_HASTEN_EVERY = 60.0


class Rest:
    """See the module.

    Attributes:
        quiet_since: Clock reading since which nothing was left to move; None while there is.

    Args:
        line: What it is part of.
        pair: The queue.
        report: Where it is told.
        wait: Seconds that a claim waits.
    """

    def __init__(self, line: Line, pair: Pair, report: LaneReport, wait: float) -> None:
        self.quiet_since: float | None = None
        self._line = line
        self._pair = pair
        self._report = report
        self._wait = wait
        self._looked_at = -math.inf
        self._hasten_at = -math.inf
        self._can_delay = abilities_of(line.target.driver, pair.target).max_send_delay > 0

    def is_missing(self) -> None:
        """There is no such queue, and so nothing in it."""
        self._report.is_missing = True
        self._report.held_by_others = False
        self.quiet_since = 0.0

    async def look(self, *, is_idle: bool) -> None:
        """Count, after a claim that has brought nothing; ``is_idle`` if nothing is in hand."""
        clock = self._line.clock
        now = clock.now()
        if now - self._looked_at < self._wait / 2:
            await clock.sleep(self._wait / 4)
            return
        self._looked_at = now
        if self._line.waits:
            await self._hasten(now)
        try:
            left = await self._count()
        except DriverError:
            return  # the next claim meets the same trouble, and reports it
        self._report.waiting = left
        if left or not is_idle:
            self.quiet_since = None
        elif self.quiet_since is None:
            self.quiet_since = now
        self._line.progressed()

    async def _count(self) -> int:
        line = self._line
        try:
            stats = await line.source.driver.inspect(self._pair.source)
        except PermissionDeniedError:
            return 0  # whoever may not count goes by claims that bring nothing
        self._report.held_by_others = stats.leased.certainty is Certainty.UNKNOWN
        hidden = stats.leased.value + stats.delayed.value if line.waits else 0
        if hidden:
            # Those that other movers have put out of the way, too; some of them have died.
            hidden -= await line.ledger.away(line.direction, self._pair.key(line.direction))
        return stats.ready.value + max(0, hidden)

    async def _hasten(self, now: float) -> None:
        """Bring out what is delayed for long, where the source can; now and then."""
        source = self._line.source.driver
        if now < self._hasten_at or not isinstance(source, Hastening) or not self._can_delay:
            return
        self._hasten_at = now + _HASTEN_EVERY
        with suppress(DriverError):  # what is not brought out is waited for
            await source.hasten(self._pair.source, _HASTEN_BEYOND)

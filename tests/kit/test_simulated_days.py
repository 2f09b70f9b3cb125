"""A month of retries, delays, snoozes and lost leases takes seconds, and can be had again."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from brokerwq import App, Job, RetryPolicy, Snooze
from brokerwq.errors import ConnectionLostError
from brokerwq.testing import TestApp
from brokerwq.testing.faults import Fail, Faults, FaultyDriver

DAYS = 30
SITES = 4
LEASE = 4.0
EVERY = timedelta(hours=6)
SECONDS = 5.0


class Month:
    """Sites that are looked at every six hours; much goes wrong on the way."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.app = App(
            "memory://",
            lease=LEASE,
            retry=RetryPolicy(max_attempts=8, base=30, cap=timedelta(hours=2)),
        )
        self.trace: list[tuple[float, str, int, int]] = []
        self._start = 0.0

        @self.app.worker("sites")
        async def look(job: Job, *, site: int, nth: int) -> None:
            await self.look(job, site, nth)

        self.worker = look

    async def look(self, job: Job, site: int, nth: int) -> None:
        self._note("begun", site, job.attempt)
        fate = random.random()  # noqa: S311
        if fate < 0.1:
            self._note("snoozed", site, job.attempt)
            raise Snooze(timedelta(hours=3))
        if fate < 0.3:
            self._note("failed", site, job.attempt)
            msg = "the site does not answer"
            raise TimeoutError(msg)
        if fate < 0.5:
            await self.app.clock.sleep(2 * LEASE)  # lost, where it is not extended
        self._note("done", site, job.attempt)
        job.enqueue(self.worker.options(delay=EVERY), site=site, nth=nth + 1)

    def _note(self, what: str, site: int, attempt: int) -> None:
        self.trace.append((round(self.app.clock.now() - self._start, 3), what, site, attempt))

    async def pass_by(self) -> None:
        random.seed(self.seed)  # also what backoff draws from
        faults = Faults(seed=self.seed)
        error = ConnectionLostError("cut")
        faults.add("extend", Fail(error), chance=0.5, times=None)
        faults.add("ack", Fail(error), chance=0.1, times=None)
        place: Any = TestApp(self.app, driver=lambda driver: FaultyDriver(driver, faults))
        async with place as shop:
            shop.patience = 0.0  # nothing here waits for anything but the clock
            self._start = self.app.clock.now()
            for site in range(SITES):
                await self.worker.enqueue(site=site, nth=0)
            self.report = await shop.advance(timedelta(days=DAYS))


@pytest.mark.slow
async def test_thirty_days_take_seconds_and_are_the_same_for_the_same_seed() -> None:
    first, again, other = Month(1), Month(1), Month(2)
    # Processor time: what others do on this machine is not the question.
    started = time.process_time()
    await first.pass_by()
    seconds = time.process_time() - started
    await again.pass_by()
    await other.pass_by()

    assert seconds < SECONDS
    happened = Counter(what for _, what, _, _ in first.trace)
    assert first.report.lost > 10
    assert min(happened[what] for what in ("done", "failed", "snoozed")) > 50
    assert max(attempt for *_, attempt in first.trace) > 3
    assert max(at for at, *_ in first.trace) > (DAYS - 1) * 86400
    assert first.trace == again.trace
    assert first.trace != other.trace

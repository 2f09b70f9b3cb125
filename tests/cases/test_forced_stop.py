"""A second stop means now, whatever the broker does."""

from __future__ import annotations

import asyncio

import pytest

from brokerwq.driver import Consumer, Driver
from brokerwq.testing.faults import Faults, FaultyConsumer, FaultyDriver, Hang
from tests.cases.lab import FaultyApp, Place, counts, declare

LONGEST = 1.6
"""Seconds; half of one is for what the machine and the steps of a fake clock add."""


class HungConsumer(FaultyConsumer):
    async def aclose(self) -> None:
        await asyncio.get_running_loop().create_future()


class HungDriver(FaultyDriver):
    """Does not answer any more, not even to a good-bye."""

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        consumer = await self.inner.consume(queue, lease=lease, prefetch=prefetch)
        return HungConsumer(consumer, self.faults)

    async def aclose(self) -> None:
        await asyncio.get_running_loop().create_future()


class HungApp(FaultyApp):
    def build_driver(self) -> Driver:
        return HungDriver(super().build_driver(), self.faults)


@pytest.mark.slow
@pytest.mark.parametrize("busy", [True, False])
async def test_a_broker_that_hangs_keeps_a_second_stop_for_about_a_second(
    both: Place, *, busy: bool
) -> None:
    faults = Faults(clock=both.clock)
    app = HungApp(both.url, faults, clock=both.clock, telemetry=both.events)
    both.apps.append(app.well)
    started = asyncio.Event()

    @app.worker("q", lease=60)
    async def long() -> None:
        started.set()
        await both.clock.sleep(3600)

    await declare(app.well, "q", lease=60.0)
    if busy:
        await app.well.broker().send("q", b"{}", type="long", content_type="application/json")
    async with both.running(app, grace=600) as running:
        await both.until(lambda: started.is_set() or not busy)
        for operation in ("claim", "quiesce", "ack", "put_back", "release", "extend"):
            faults.add(operation, Hang(), times=None)
        await both.passes(0.2)
        running.runner.stop()
        await both.passes(0.5)
        assert not running.task.done()

        asked = both.clock.now()
        running.runner.stop()
        await both.until(running.task.done)

        assert both.clock.now() - asked < LONGEST
        assert running.task.result().unsettled == int(busy)


async def test_a_second_stop_still_puts_back_what_a_broker_that_answers_takes(
    both: Place,
) -> None:
    app = both.app()
    started = asyncio.Event()

    @app.worker("q", lease=60)
    async def long() -> None:
        started.set()
        await both.clock.sleep(3600)

    await long.enqueue()
    async with both.running(app, grace=600) as running:
        await both.until(started.is_set)
        running.runner.stop()
        running.runner.stop()
        await both.until(running.task.done)

    assert running.task.result().put_back == 1
    assert await counts(app, "q") == (1, 0, 0, 0)

"""The brokers that come with brokerwq agree with the model of one, whatever is done to them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from brokerwq.driver import Consumer, Delivery, Driver, Mark, Results
from brokerwq.driver.registry import find_adapter
from brokerwq.testing import FakeClock
from brokerwq.testing.faults import FaultyConsumer, FaultyDriver
from brokerwq.testing.model import ModelError
from brokerwq.testing.stateful import BrokerMachine

pytestmark = pytest.mark.slow


class MemoryMachine(BrokerMachine):
    def new_broker(self, clock: FakeClock) -> Callable[[], Driver]:
        adapter = find_adapter("memory://")
        space: Any = adapter.parse_url("memory://")
        return lambda: adapter.build(space, clock)


class SqliteMachine(BrokerMachine):
    delays_follow_wall: ClassVar[bool] = True

    def new_broker(self, clock: FakeClock) -> Callable[[], Driver]:
        self._folder = tempfile.TemporaryDirectory()
        url = f"sqlite:///{Path(self._folder.name)}/jobs.db?synchronous=NORMAL"
        adapter = find_adapter(url)
        file: Any = adapter.parse_url(url)
        return lambda: adapter.build(file, clock)

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


class LyingConsumer(FaultyConsumer):
    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        return await super().extend(deliveries, 2 * seconds + 60)


class AmnesicConsumer(FaultyConsumer):
    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        kept = [replace(mark, suspect=False) for mark in marks]
        return await super().put_back(deliveries, delays, kept)


class SwappingConsumer(FaultyConsumer):
    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        return await super().release(deliveries, list(reversed(delays)))


class ForgivingConsumer(FaultyConsumer):
    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        return [None for _ in await super().ack(deliveries)]


BROKEN = (LyingConsumer, AmnesicConsumer, SwappingConsumer, ForgivingConsumer)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKEN)
def test_the_machine_finds_what_is_broken(kind: type[FaultyConsumer]) -> None:
    class BrokenDriver(FaultyDriver):
        def wrap(self, consumer: Consumer) -> Consumer:
            return kind(consumer, self.faults)

    class BrokenMachine(MemoryMachine):
        def new_broker(self, clock: FakeClock) -> Callable[[], Driver]:
            make = super().new_broker(clock)
            return lambda: BrokenDriver(make())

    no_shrinking = settings(
        max_examples=500,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
    )
    with pytest.raises(ModelError):
        run_state_machine_as_test(BrokenMachine, settings=no_shrinking)


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)

TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(
    max_examples=10,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

"""The faults that ship strike as they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from brokerwq.driver import Driver, QueueSpec
from brokerwq.errors import ConnectionLostError, DriverError, LeaseLostError, ThrottledError
from brokerwq.testing import FakeClock, Harness
from brokerwq.testing.bench import some_messages
from brokerwq.testing.faults import (
    Delay,
    Drop,
    Duplicate,
    Fail,
    Faults,
    FaultyDriver,
    Hang,
    LoseAnswer,
    Partly,
)

CUT = ConnectionLostError("cut")


@asynccontextmanager
async def broken_by(faults: Faults) -> AsyncGenerator[Driver]:
    async with Harness.from_url("memory://", clock=faults.clock).connect() as inner:
        await inner.declare(QueueSpec(name="q"))
        yield FaultyDriver(inner, faults)


async def ready(driver: Driver) -> int:
    return (await driver.inspect("q")).ready.value


async def test_without_faults_a_driver_does_its_work_and_every_call_is_noted() -> None:
    faults = Faults()
    async with broken_by(faults) as driver:
        await driver.send("q", some_messages(2), [0.0, 0.0])
        consumer = await driver.consume("q", lease=60, prefetch=1)
        got = await consumer.claim(2, 0.0)
        assert await consumer.ack(got) == [None, None]
        assert await ready(driver) == 0

    assert [(call.operation, call.items) for call in faults.calls] == [
        ("send", 2),
        ("consume", 0),
        ("claim", 2),
        ("ack", 2),
        ("inspect", 0),
    ]


async def test_fail_raises_and_asks_nobody_as_often_as_it_was_told() -> None:
    faults = Faults()
    faults.add("send", Fail(CUT), skip=1, times=2)
    async with broken_by(faults) as driver:
        outcomes: list[str] = []
        for message in some_messages(4):
            try:
                await driver.send("q", [message], [0.0])
                outcomes.append("done")
            except ConnectionLostError:
                outcomes.append("cut")

        assert outcomes == ["done", "cut", "cut", "done"]
        assert await ready(driver) == 2


async def test_a_lost_answer_hides_what_was_done() -> None:
    faults = Faults()
    faults.add("send", LoseAnswer(CUT))
    async with broken_by(faults) as driver:
        with pytest.raises(ConnectionLostError):
            await driver.send("q", some_messages(1), [0.0])

        assert await ready(driver) == 1


async def test_a_dropped_send_is_done_in_words_only() -> None:
    faults = Faults()
    faults.add("send", Drop())
    async with broken_by(faults) as driver:
        assert await driver.send("q", some_messages(2), [0.0, 0.0]) == [None, None]
        assert await ready(driver) == 0


async def test_a_duplicated_send_stores_two_and_a_duplicated_claim_hands_out_two() -> None:
    faults = Faults()
    faults.add("send", Duplicate())
    faults.add("claim", Duplicate())
    async with broken_by(faults) as driver:
        assert await driver.send("q", some_messages(1), [0.0]) == [None]
        assert await ready(driver) == 2
        consumer = await driver.consume("q", lease=60, prefetch=1)
        assert len(await consumer.claim(1, 0.0)) == 2


async def test_a_call_fails_partly_at_the_places_named() -> None:
    faults = Faults()
    lost = LeaseLostError("lost")
    faults.add("ack", Partly(lost, items=(1,)))
    async with broken_by(faults) as driver:
        await driver.send("q", some_messages(3), [0.0] * 3)
        consumer = await driver.consume("q", lease=60, prefetch=1)
        got = await consumer.claim(3, 0.0)

        assert await consumer.ack(got) == [None, lost, None]
        assert await consumer.ack(got[1:2]) == [None]


async def test_the_same_seed_strikes_the_same_calls() -> None:
    async def struck(seed: int) -> list[bool]:
        faults = Faults(seed=seed)
        throttled = ThrottledError("slow down")
        faults.add("inspect", Fail(throttled), chance=0.5, times=None)
        async with broken_by(faults) as driver:
            for _ in range(40):
                try:
                    await driver.inspect("q")
                except ThrottledError:
                    continue
        return [call.fault is not None for call in faults.calls]

    first = await struck(1)

    assert await struck(1) == first
    assert await struck(2) != first
    assert 5 < sum(first) < 35


async def test_a_delay_passes_on_the_clock_of_the_faults() -> None:
    clock = FakeClock()
    faults = Faults(clock=clock)
    faults.add("send", Delay(3600))
    async with broken_by(faults) as driver:
        started = clock.now()
        await clock.drive(_send_one(driver))

        assert clock.now() == started + 3600
        assert await ready(driver) == 1


async def _send_one(driver: Driver) -> None:
    await driver.send("q", some_messages(1), [0.0])


async def test_a_call_that_hangs_ends_only_by_cancellation() -> None:
    faults = Faults()
    faults.add("inspect", Hang())
    async with broken_by(faults) as driver:
        hanging = asyncio.ensure_future(driver.inspect("q"))
        done, _ = await asyncio.wait({hanging}, timeout=0.02)
        hanging.cancel()
        await asyncio.wait({hanging})

        assert not done
        assert hanging.cancelled()


async def test_an_outage_strikes_everything_until_it_ends() -> None:
    faults = Faults()
    async with broken_by(faults) as driver:
        consumer = await driver.consume("q", lease=60, prefetch=1)
        with faults.outage():
            for call in (driver.inspect("q"), driver.purge("q"), consumer.claim(1, 0.0)):
                with pytest.raises(DriverError) as caught:
                    await call
                assert caught.value.retryable
                assert caught.value.__cause__ is not None
        assert await ready(driver) == 0


async def test_cleared_faults_strike_no_more() -> None:
    faults = Faults()
    faults.add("inspect", Fail(CUT), times=None)
    faults.clear()
    async with broken_by(faults) as driver:
        assert await ready(driver) == 0

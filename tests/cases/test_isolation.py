"""A crash suspect that shall run alone, and what may come in between."""

from __future__ import annotations

import uuid

import pytest

from brokerwq import App, Job, Message, RetryPolicy
from brokerwq.driver import Driver
from brokerwq.errors import ConnectionLostError
from brokerwq.events import CrashSuspectIsolated, MessagesClaimed
from brokerwq.testing import FakeClock
from brokerwq.testing.faults import Delay, Fail, Faults
from tests.cases.lab import FaultyApp, Place, counts, declare, send_raw
from tests.contract.sound import Broker, SoundDriver
from tests.contract.sound_capabilities import SOUND

SUSPECT = Message(id="s", type="suspect", body=b"{}", attempts=1, suspect=True)
"""At its last attempt of two."""


class PushingApp(FaultyApp):
    """Its runner's broker sends messages ahead of what is claimed."""

    def build_driver(self) -> Driver:
        assert isinstance(self.clock, FakeClock)
        pushing = Broker(SOUND["connection"], clock=self.clock, faults=self.faults)
        return SoundDriver(self.well.build_driver(), pushing)


async def test_a_stop_puts_back_a_suspect_that_has_not_begun(place: Place) -> None:
    faults = Faults(clock=place.clock)
    faults.add("ack", Delay(0.2))
    app = place.faulty_app(faults)
    calls: list[str] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=2))
    async def slow() -> None:
        calls.append("slow")
        await place.clock.sleep(1.0)

    @app.worker("q", retry=RetryPolicy(max_attempts=2))
    async def suspect() -> None:
        calls.append("suspect")

    await declare(app.well, "q", lease=60.0)
    await slow.enqueue()
    async with place.running(app) as running:
        await place.until(lambda: calls)
        await send_raw(app.well, "q", SUSPECT)
        await place.until(lambda: len(place.events.of(MessagesClaimed)) == 2)
        report = await running.stop()

    assert calls == ["slow"]
    assert report.done == 1
    assert await counts(app.well, "q") == (1, 0, 0, 0)


async def test_a_drain_goes_on_while_a_consumer_is_replaced_beside_a_suspect(place: Place) -> None:
    faults = Faults(clock=place.clock)
    app = PushingApp(place.url, faults, clock=place.clock, telemetry=place.events)
    place.apps += [app, app.well]
    calls: list[str] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=2))
    async def suspect(*, n: int = 0) -> None:
        calls.append(f"suspect {n}")

    await declare(app.well, "q", lease=60.0)
    await send_raw(app.well, "q", SUSPECT)
    for n in range(1, 4):
        await suspect.enqueue(n=n)
    faults.add("consume", Fail(ConnectionLostError("cut")), skip=1, times=5)
    report = await place.drain(app)

    assert sorted(calls) == [f"suspect {n}" for n in range(4)]
    assert (report.drained, report.done) == (True, 4)
    assert await counts(app.well, "q") == (0, 0, 0, 0)


# -- where the broker counts every return -----------------------------------------------------

ATTEMPTS = 3


def fifo() -> Place:
    return Place(f"memory://{uuid.uuid4().hex}?like=sqs-fifo", FakeClock())


async def send_received(place: Place, app: App, received: dict[str, int]) -> None:
    """Store messages that processes which died had received so often before."""
    await declare(app, "q", lease=30.0)
    for id_, times in received.items():
        await send_raw(app, "q", Message(id=id_, type="work", body=b"{}", group=id_))
        driver = await app.broker().driver()
        consumer = await driver.consume("q", lease=30.0, prefetch=1)
        for _ in range(times):
            claimed = await consumer.claim(10, 0.0)
            mine = [delivery for delivery in claimed if delivery.message.id == id_]
            assert len(claimed) == len(mine) == 1
            await consumer.release(mine, [0.0])
        if times:
            # Out of the way of the next one.
            await consumer.claim(1, 0.0)
    await place.passes(31.0)


@pytest.mark.slow
async def test_what_was_claimed_beside_a_suspect_spends_no_attempt_where_returns_count() -> None:
    place = fifo()
    app = place.app()
    ran: list[tuple[str, int]] = []
    now: set[str] = set()

    @app.worker("q", lease=30, retry=RetryPolicy(max_attempts=ATTEMPTS))
    async def work(job: Job) -> None:
        now.add(job.id)
        await place.clock.sleep(100.0)  # several leases
        ran.append((job.id, job.attempt))
        if job.attempt == ATTEMPTS:
            assert now == {job.id}
        now.remove(job.id)

    await send_received(place, app, {"a": 1, "b": 1, "c": 1, "d": 0})
    report = await place.drain(app)

    assert sorted(ran) == [("a", 3), ("b", 3), ("c", 3), ("d", 1)]
    assert len(place.events.of(CrashSuspectIsolated)) == 3
    assert (report.done, report.put_back, sum(report.dead.values())) == (4, 0, 0)
    await place.aclose()


async def test_a_stop_puts_back_what_was_kept_beside_a_suspect() -> None:
    place = fifo()
    app = place.app()
    started: list[str] = []

    @app.worker("q", lease=30, retry=RetryPolicy(max_attempts=ATTEMPTS))
    async def work(job: Job) -> None:
        started.append(job.id)
        await place.clock.sleep(3600.0)

    await send_received(place, app, {"a": 1, "b": 0, "c": 0})
    async with place.running(app, grace=1) as running:
        await place.until(lambda: started)
        report = await running.stop()

    assert started == ["a"]
    assert report.put_back == 3
    assert await counts(app, "q") == (3, 0, 0, 0)
    await place.aclose()

"""A crash suspect that shall run alone, and what may come in between."""

from __future__ import annotations

from brokerwq import Message, RetryPolicy
from brokerwq.driver import Driver
from brokerwq.errors import ConnectionLostError
from brokerwq.events import MessagesClaimed
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

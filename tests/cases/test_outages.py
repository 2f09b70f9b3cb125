"""A broker that fails: the runner waits, says so, loses nothing and goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from brokerwq import App, QueueSpec, Runner
from brokerwq.driver import Consumer, Driver
from brokerwq.errors import (
    AuthenticationError,
    ConnectionLostError,
    DriverError,
    PermissionDeniedError,
    ProtocolError,
    QueueMismatchError,
    QueueNotFoundError,
    StorageFullError,
    ThrottledError,
    TransientError,
)
from brokerwq.events import BrokerReached, BrokerUnreachable, StateChanged
from brokerwq.testing.faults import (
    Fail,
    Faults,
    FaultyDriver,
    Hang,
    Operation,
)
from tests.cases.lab import Events, FaultyApp, Place, declare, send

GONE = ConnectionLostError("cut")


@pytest.fixture
def faults(place: Place) -> Faults:
    return Faults(clock=place.clock)


def states(events: Events) -> list[str]:
    return [event.state for event in events.of(StateChanged)]


# -- states -----------------------------------------------------------------------------------


async def test_a_quiet_life_goes_through_four_states(both: Place) -> None:
    app = both.app()

    @app.worker("q")
    async def work() -> None:
        pass

    runner = Runner(app, log=False)
    assert runner.state == "starting"
    async with both.running(app, runner=runner):
        assert (runner.state, runner.reasons) == ("ready", ())
    assert runner.state == "stopped"
    assert states(both.events) == ["ready", "draining", "stopped"]


async def test_it_is_draining_while_running_jobs_end(place: Place) -> None:
    app = place.app()
    started = asyncio.Event()

    @app.worker("q")
    async def work() -> None:
        started.set()
        await place.clock.sleep(5)

    await work.enqueue()
    async with place.running(app) as running:
        await place.until(started.is_set, step=0.0)
        running.runner.stop()
        await place.passes(1)
        assert running.runner.state == "draining"
        await running.ended()
    assert running.task.result().done == 1


async def test_a_broker_that_is_not_there_yet_is_waited_for(place: Place, faults: Faults) -> None:
    app = place.faulty_app(faults)
    seen: list[int] = []

    @app.worker("q")
    async def work(*, n: int) -> None:
        seen.append(n)

    await declare(app.well, "q", lease=60.0)
    faults.add("open", Fail(GONE), times=8)
    runner = Runner(app, log=False)
    task = asyncio.create_task(runner.run(handle_signals=False))
    await place.passes(1)
    assert runner.state == "starting"
    assert "cut" in runner.reasons[0]
    await place.until(lambda: runner.state == "ready", step=1.0)
    assert runner.reasons == ()
    tries = place.events.of(BrokerUnreachable)
    assert len(tries) == 8
    pauses = [event.retry_in for event in tries]
    assert pauses[0] < 0.2
    assert max(pauses) <= 5
    assert pauses[-1] > 2
    assert len(place.events.of(BrokerReached)) == 1
    runner.stop()
    await place.until(task.done)


@pytest.mark.parametrize("operation", ["open", "declare", "consume"])
async def test_a_stop_is_heard_while_the_broker_is_waited_for(
    place: Place, faults: Faults, operation: Operation
) -> None:
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work() -> None:
        pass

    faults.add(operation, Fail(GONE), times=None)
    runner = Runner(app, log=False)
    task = asyncio.create_task(runner.run(handle_signals=False))
    await place.passes(60)
    assert not task.done()
    runner.stop(7)
    await place.passes(1)
    assert task.done()
    assert task.result().exit_code == 7
    assert runner.state == "stopped"


@pytest.mark.parametrize("operation", ["open", "declare", "consume"])
async def test_a_stop_is_heard_while_a_call_hangs_at_the_start(
    place: Place, faults: Faults, operation: Operation
) -> None:
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work() -> None:
        pass

    faults.add(operation, Hang(), times=None)
    runner = Runner(app, log=False)
    task = asyncio.create_task(runner.run(handle_signals=False))
    await place.passes(2)
    runner.stop()
    await place.passes(1)
    assert task.done()
    assert task.result().exit_code == 0


REFUSALS: Sequence[DriverError] = [
    AuthenticationError("wrong password"),
    PermissionDeniedError("not yours"),
    ProtocolError("not ours"),
    QueueNotFoundError("no such queue"),
    QueueMismatchError("other arguments"),
]


@pytest.mark.parametrize("operation", ["open", "declare", "consume"])
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
async def test_a_refusal_at_the_start_is_final(
    place: Place, faults: Faults, operation: Operation, refusal: DriverError
) -> None:
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work() -> None:
        pass

    faults.add(operation, Fail(refusal), times=None)
    started = place.clock.now()
    runner = Runner(app, log=False)
    with pytest.raises(type(refusal)) as caught:
        await place.drive(runner.run(handle_signals=False))
    assert caught.value is refusal
    assert runner.state == "stopped"
    assert place.clock.now() - started < 1
    assert sum(call.operation == operation for call in faults.calls) == 1


async def test_a_queue_with_other_properties_is_named_with_all_of_them(place: Place) -> None:
    app = place.app(
        queues=[QueueSpec(name="a", dead_letter="y"), QueueSpec(name="b", dead_letter="x")]
    )

    @app.worker("a")
    async def left() -> None:
        pass

    @app.worker("b")
    async def right() -> None:
        pass

    before = place.app()
    await declare(before, "a", lease=60.0)
    await declare(before, "b", lease=60.0)
    with pytest.raises(QueueMismatchError) as caught:
        await place.drain(app)
    for word in ("a: dead_letter", "'y'", "b: dead_letter", "'x'"):
        assert word in str(caught.value)


# -- while it runs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        GONE,
        TransientError("later"),
        ThrottledError("slowly", retry_after=3),
        StorageFullError("full"),
        QueueNotFoundError("deleted"),
        AuthenticationError("password changed"),
        PermissionDeniedError("revoked"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_happens_to_claims_while_it_runs_is_waited_out(
    place: Place, faults: Faults, error: DriverError
) -> None:
    app = place.faulty_app(faults)
    seen: list[int] = []

    @app.worker("q")
    async def work(*, n: int) -> None:
        seen.append(n)

    await declare(app.well, "q", lease=60.0)
    async with place.running(app) as running:
        await send(app.well, "q", "work", n=1)
        await place.until(lambda: seen, step=0.01)
        faults.add("claim", Fail(error), times=20)
        await place.passes(20)
        assert running.runner.state == "degraded"
        assert type(error).__name__ in running.runner.reasons[0]
        await send(app.well, "q", "work", n=2)
        await place.until(lambda: len(seen) == 2, step=1.0)
        await place.until(lambda: running.runner.state == "ready", step=1.0)
        assert running.runner.reasons == ()
    assert states(place.events) == ["ready", "degraded", "ready", "draining", "stopped"]
    tries = [event.retry_in for event in place.events.of(BrokerUnreachable)]
    assert 5 <= len(tries) <= 20
    assert max(tries) <= 5


@pytest.mark.slow
async def test_a_queue_remade_with_other_properties_ends_the_runner(
    place: Place, faults: Faults
) -> None:
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work() -> None:
        pass

    runner = Runner(app, log=False)
    task = asyncio.create_task(runner.run(handle_signals=False))
    await place.passes(1)
    assert runner.state == "ready"
    faults.add("claim", Fail(QueueMismatchError("it is another one")))
    await place.passes(11)
    assert task.done()
    with pytest.raises(QueueMismatchError, match="another"):
        await task
    assert runner.state == "stopped"


async def test_a_claim_that_never_answers_is_not_waited_for_for_ever(
    place: Place, faults: Faults
) -> None:
    app = place.faulty_app(faults)
    seen: list[int] = []

    @app.worker("q")
    async def work() -> None:
        seen.append(1)

    faults.add("claim", Hang(), times=1)
    async with place.running(app) as running:
        await send(app.well, "q", "work")
        await place.passes(30)
        assert seen == []
        await place.passes(30)
        assert seen == [1]
        assert running.runner.state == "ready"


class OneQueueGone(FaultyDriver):
    """Claims from ``gone`` go wrong as the faults say, those from other queues never."""

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        if queue == "gone":
            return await super().consume(queue, lease=lease, prefetch=prefetch)
        return await self.inner.consume(queue, lease=lease, prefetch=prefetch)


class OneQueueGoneApp(FaultyApp):
    def build_driver(self) -> Driver:
        return OneQueueGone(App.build_driver(self), self.faults)


async def test_one_queue_that_is_gone_does_not_stop_the_other(place: Place, faults: Faults) -> None:
    app = OneQueueGoneApp(place.url, faults, clock=place.clock, telemetry=place.events)
    place.apps += [app, app.well]
    done: list[str] = []

    @app.worker("gone")
    async def left() -> None:
        done.append("gone")

    @app.worker("there")
    async def right() -> None:
        done.append("there")

    await declare(app.well, "gone", lease=60.0)
    await send(app.well, "gone", "left")
    faults.add("claim", Fail(QueueNotFoundError("it was deleted")), times=None)
    async with place.running(app) as running:
        for _ in range(10):
            await send(app.well, "there", "right")
        await place.until(lambda: done == ["there"] * 10, step=0.5)
        assert running.runner.state == "degraded"
        faults.clear()
        await place.until(lambda: len(done) == 11, step=0.5)
        assert done[-1] == "gone"

"""Settles and heartbeats that do not get through: tried again, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from brokerwq import Job, RetryPolicy, Snooze
from brokerwq.errors import (
    ConnectionLostError,
    DriverError,
    MessageRefusedError,
    QueueNotFoundError,
    TransientError,
)
from brokerwq.events import SettleFailed
from brokerwq.testing.fault_plan import ALL_OPERATIONS
from brokerwq.testing.faults import (
    Delay,
    Drop,
    Fail,
    Fault,
    Faults,
    Hang,
    LoseAnswer,
    Operation,
    Partly,
)
from tests.cases.lab import Place, counts, declare, reasons, send

GONE = ConnectionLostError("cut")


@pytest.fixture
def faults(place: Place) -> Faults:
    return Faults(clock=place.clock)


# -- settles ----------------------------------------------------------------------------------


def _failing(job: Job) -> None:
    if job.attempt == 1:
        raise ValueError


def _snoozing(job: Job) -> None:
    if job.message.snoozed == 0:
        raise Snooze(1)


def _at_last(_: Job) -> None:
    raise ValueError


ENDINGS: dict[Operation, Callable[[Job], None]] = {
    "ack": lambda _: None,
    "release": _failing,
    "put_back": _snoozing,
    "dead_letter": _at_last,
}


@pytest.mark.parametrize("operation", ENDINGS)
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("kind", ["fail", "lose the answer", "slow", "partly"])
async def test_a_settle_that_does_not_go_through_is_tried_again(
    place: Place, faults: Faults, operation: Operation, times: int, kind: str
) -> None:
    app = place.faulty_app(faults, lease=30)
    calls: list[int] = []
    last = 1 if operation == "dead_letter" else 4

    @app.worker("q", retry=RetryPolicy(max_attempts=last, base=1, jitter="none"))
    async def work(job: Job, *, n: int) -> None:
        calls.append(n)
        ENDINGS[operation](job)

    faulty: dict[str, Fault] = {
        "fail": Fail(GONE),
        "lose the answer": LoseAnswer(GONE),
        "slow": Delay(2.0),
        "partly": Partly(TransientError("busy"), items=(0, 2)),
    }
    faults.add(operation, faulty[kind], times=times)
    await declare(app.well, "q", lease=30.0)
    for n in range(5):
        await send(app.well, "q", "work", n=n)
    async with place.running(app) as running:
        await place.until(lambda: len(calls) >= 5, step=0.01)
        await place.passes(60)
        report = await running.stop()

    assert await counts(app.well, "q") == (0, 0, 0, 5 if operation == "dead_letter" else 0)
    assert sorted(set(calls)) == [0, 1, 2, 3, 4]
    again = 10 if operation in ("release", "put_back") else 5
    assert len(calls) == again
    assert report.unsettled == 0
    if kind == "lose the answer":
        # What was done is done; that somebody else has the message is all that can be seen.
        assert report.lost >= 5
    else:
        assert report.lost == 0
        assert report.done == (0 if operation == "dead_letter" else 5)


async def test_a_broker_that_is_gone_while_jobs_run_hears_of_their_ends_when_it_is_back(
    place: Place, faults: Faults
) -> None:
    app = place.faulty_app(faults, lease=60)
    calls: list[int] = []

    @app.worker("q")
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        await place.clock.sleep(2)

    await declare(app.well, "q", lease=60.0)
    for _ in range(10):
        await send(app.well, "q", "work")
    async with place.running(app, slots=10) as running:
        await place.until(lambda: len(calls) == 10, step=0.0)
        with faults.outage():
            await place.passes(25)
            assert running.runner.state == "degraded"
        await place.passes(30)
        assert running.runner.state == "ready"
        report = await running.stop()
    assert calls == [1] * 10
    assert (report.done, report.lost, report.unsettled) == (10, 0, 0)
    assert await counts(app.well, "q") == (0, 0, 0, 0)


async def test_an_outage_longer_than_the_leases_costs_an_attempt_and_loses_nothing(
    place: Place, faults: Faults
) -> None:
    app = place.faulty_app(faults, lease=10)
    calls: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=3))
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        await place.clock.sleep(2)

    await declare(app.well, "q", lease=10.0)
    for _ in range(4):
        await send(app.well, "q", "work")
    async with place.running(app, slots=4) as running:
        await place.until(lambda: len(calls) == 4, step=0.0)
        with faults.outage():
            await place.passes(40)
        await place.passes(60)
        report = await running.stop()
    assert calls == [1] * 4 + [2] * 4
    assert report.done == 4
    assert report.lost + report.unsettled == 4
    assert await counts(app.well, "q") == (0, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [GONE, MessageRefusedError("too many headers"), QueueNotFoundError("no dlq")]
)
async def test_a_dead_letter_that_cannot_be_moved_is_kept_without_another_call(
    place: Place, faults: Faults, error: DriverError
) -> None:
    app = place.faulty_app(faults, lease=60)
    calls: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=2, base=0.5))
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        raise ValueError

    faults.add("dead_letter", Fail(error), times=10)
    await declare(app.well, "q", lease=60.0)
    await send(app.well, "q", "work")
    async with place.running(app) as running:
        await place.until(lambda: len(place.events.of(SettleFailed)) >= 1, step=0.5)
        await place.passes(1)
        assert running.runner.state == "degraded"
        assert "dead letter" in " ".join(running.runner.reasons)
        await place.passes(300)
        assert running.runner.state == "ready"
        report = await running.stop()
    assert calls == [1, 2]
    assert dict(report.dead) == {"failed": 1}
    assert await reasons(app.well, "q") == ["failed"]


async def test_heartbeats_that_fail_in_passing_lose_no_lease(place: Place, faults: Faults) -> None:
    app = place.faulty_app(faults, lease=9)
    calls: list[int] = []

    @app.worker("q")
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        await place.clock.sleep(60)

    faults.add("extend", Fail(GONE), times=None, chance=0.4)
    await declare(app.well, "q", lease=9.0)
    await send(app.well, "q", "work")
    faults.seed = 3
    async with place.running(app) as running:
        await place.passes(62)
        report = await running.stop()
    assert (calls, report.done, report.lost) == ([1], 1, 0)


@pytest.mark.parametrize("fault", [Hang(), Fail(GONE), Drop()])
async def test_a_heartbeat_that_never_gets_through_raises_the_alarm_in_time(
    place: Place, faults: Faults, fault: Hang | Fail | Drop
) -> None:
    app = place.faulty_app(faults, lease=12)
    told: list[float] = []
    calls: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        try:
            await place.clock.sleep(100)
        except asyncio.CancelledError:
            told.append(place.clock.now() - started)
            raise

    faults.add("extend", fault, times=None)
    await declare(app.well, "q", lease=12.0)
    await send(app.well, "q", "work")
    started = place.clock.now()
    async with place.running(app, grace=0):
        await place.passes(12)
    if isinstance(fault, Drop):
        assert told != []  # a broker that lies is found out only by its next answer
    else:
        assert told
        assert told[0] < 12
    assert calls == [1]


async def test_an_adapters_own_bug_is_not_the_end_of_the_runner(
    place: Place, faults: Faults
) -> None:
    app = place.faulty_app(faults, lease=30)
    calls: list[int] = []

    @app.worker("q")
    async def work(job: Job) -> None:
        calls.append(job.attempt)

    operations: list[Operation] = ["ack", "claim", "extend"]
    for operation in operations:
        faults.add(operation, Fail(ZeroDivisionError("a bug")), times=2)
    await declare(app.well, "q", lease=30.0)
    await send(app.well, "q", "work")
    async with place.running(app) as running:
        await place.until(lambda: calls, step=0.5)
        await place.passes(120)
        report = await running.stop()
    assert (report.done, report.unsettled) == (1, 2)
    assert calls == [1, 2, 3]
    assert await counts(app.well, "q") == (0, 0, 0, 0)


@pytest.mark.slow
async def test_a_broker_that_hangs_at_the_stop_does_not_keep_the_process(
    place: Place, faults: Faults
) -> None:
    app = place.faulty_app(faults, lease=30)

    @app.worker("q")
    async def work() -> None:
        await place.clock.sleep(100)

    await declare(app.well, "q", lease=30.0)
    await send(app.well, "q", "work")
    async with place.running(app, grace=1) as running:
        await place.passes(1)
        for operation in ALL_OPERATIONS:
            faults.add(operation, Hang(), times=None)
        asked = place.clock.now()
        running.runner.stop()
        await running.ended()
    assert place.clock.now() - asked < 60

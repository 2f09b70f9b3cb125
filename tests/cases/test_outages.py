"""A broker that fails: the runner waits, says so, loses nothing and goes on by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from brokerwq import App, Job, QueueSpec, RetryPolicy, Runner, Snooze
from brokerwq.errors import (
    AuthenticationError,
    ConfigError,
    ConnectionLostError,
    DriverError,
    MessageRefusedError,
    PermissionDeniedError,
    ProtocolError,
    QueueMismatchError,
    QueueNotFoundError,
    StorageFullError,
    ThrottledError,
    TransientError,
)
from brokerwq.events import BrokerReached, BrokerUnreachable, SettleFailed, StateChanged
from brokerwq.health import serve_health
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
from tests.cases.lab import Events, Place, counts, declare, reasons, send

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


async def test_one_queue_that_is_gone_does_not_stop_the_other(place: Place, faults: Faults) -> None:
    app = place.faulty_app(faults)
    done: list[str] = []

    @app.worker("a")
    async def left() -> None:
        done.append("a")

    @app.worker("b")
    async def right() -> None:
        done.append("b")

    faults.add("claim", Fail(QueueNotFoundError("a was deleted")), times=None, chance=0.5)
    async with place.running(app):
        for queue, name in (("a", "left"), ("b", "right")):
            for _ in range(10):
                await send(app.well, queue, name)
        await place.until(lambda: len(done) == 20, step=0.5)


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


# -- health -----------------------------------------------------------------------------------


async def _ask(address: str, path: str) -> tuple[int, dict[str, object]]:
    def ask() -> tuple[int, dict[str, object]]:
        try:
            with urlopen(f"http://{address}{path}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    return await asyncio.to_thread(ask)


async def test_health_tells_the_state_over_http(place: Place, faults: Faults) -> None:
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work() -> None:
        pass

    runner = Runner(app, log=False)
    with serve_health(runner, "127.0.0.1:0") as address:
        assert await _ask(address, "/live") == (200, {"state": "starting", "reasons": []})
        assert (await _ask(address, "/ready"))[0] == 503
        assert (await _ask(address, "/other"))[0] == 404
        async with place.running(app, runner=runner):
            assert await _ask(address, "/ready") == (200, {"state": "ready", "reasons": []})
            faults.add("claim", Fail(GONE), times=50)
            await place.passes(15)
            status, told = await _ask(address, "/ready")
            assert (status, told["state"]) == (503, "degraded")
            assert "cut" in str(told["reasons"])
            assert (await _ask(address, "/live"))[0] == 200
            assert (await _ask(address, "/live?x=1"))[0] == 200
        assert (await _ask(address, "/live"))[0] == 503
    with pytest.raises(OSError, match="refused"):
        await _ask(address, "/live")


@pytest.mark.parametrize(
    "address", ["", "nowhere", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", ":-1", "256.1.1.1:80"]
)
def test_an_address_that_cannot_be_used_is_refused(place: Place, address: str) -> None:
    runner = Runner(_with_worker(place), log=False)
    with pytest.raises(ConfigError, match="health"), serve_health(runner, address):
        pass


def test_an_address_in_use_is_refused(place: Place) -> None:
    runner = Runner(_with_worker(place), log=False)
    with (
        serve_health(runner, "127.0.0.1:0") as address,
        pytest.raises(ConfigError, match="health"),
        serve_health(runner, address),
    ):
        pass


def _with_worker(place: Place) -> App:
    app = place.app()

    @app.worker("q")
    async def work() -> None:
        pass

    return app

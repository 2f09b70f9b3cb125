"""Leases: how long, whose, and what happens when one ends too early."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import timedelta
from typing import Any

import pytest

from brokerwq import App, Claimer, Job, QueueSpec, RetryPolicy, connect
from brokerwq.driver import Delivery
from brokerwq.errors import ConfigError, LeaseLostError
from brokerwq.events import JobEnded, LeaseLost, LeasesExtended, LoopBlocked
from brokerwq.testing import FakeClock
from tests.cases.lab import Place, counts

# -- a message that waits for its turn --------------------------------------------------------


async def test_leases_of_messages_that_wait_for_a_slot_are_kept_alive(place: Place) -> None:
    ours, theirs = place.app(lease=4), place.app(lease=4)
    calls: list[tuple[str, int]] = []

    def worker(app: App) -> Any:
        @app.worker("q", name="work", batch=10)
        async def work(jobs: list[Job], numbers: list[int]) -> None:
            calls.extend(("x", job.attempt) for job in jobs)
            await place.clock.sleep(1.5 * len(numbers))

        return work

    work = worker(ours)
    worker(theirs)
    await work.enqueue_many(range(10))
    async with place.running(ours, slots=1), place.running(theirs, slots=1):
        await place.until(lambda: len(calls) >= 10)
        await place.passes(20)
    assert calls == [("x", 1)] * 10
    assert await counts(ours, "q") == (0, 0, 0, 0)
    assert place.events.of(LeaseLost) == []


@pytest.mark.slow
async def test_no_message_is_run_by_two_runners_while_it_waits_at_sqlite(real: Place) -> None:
    ours, theirs = real.app(lease=1), real.app(lease=1)
    calls: list[int] = []

    def add(app: App) -> Any:
        @app.worker("q", name="work")
        async def work(job: Job, *, n: int) -> None:
            calls.append(n)
            assert job.attempt == 1
            await asyncio.sleep(0.4)

        return work

    work, _ = add(ours), add(theirs)
    await work.enqueue_many([work.call(n=n) for n in range(10)])
    async with real.running(ours, slots=1), real.running(theirs, slots=1):
        await real.until(lambda: len(calls) == 10)
    assert sorted(calls) == list(range(10))
    assert real.events.of(LeaseLost) == []


async def test_a_message_whose_lease_ended_while_it_waited_is_dropped_unstarted(
    place: Place,
) -> None:
    app = place.app(lease=4)
    calls: list[int] = []

    @app.worker("q", batch=10, batch_wait=8, retry=RetryPolicy(max_attempts=3))
    async def work(numbers: list[int]) -> None:
        calls.extend(numbers)

    await work.enqueue_many(range(3))
    async with place.running(app, heartbeat=False) as running:
        await place.passes(8.5)
        assert calls == []
        assert len(place.events.of(LeaseLost)) == 3
        # At their last attempt they are run one by one, and so without waiting.
        await place.until(lambda: len(calls) == 3, step=0.5)
        report = await running.stop()
    assert sorted(calls) == [0, 1, 2]
    assert (report.done, report.failed, report.dead_count) == (3, 0, 0)


# -- how long ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lease", [0, -1, 0.0, math.nan, math.inf, timedelta(0), True, "60", 1e300, 8 * 86400]
)
def test_a_lease_that_cannot_be_is_refused_where_it_is_written(place: Place, lease: Any) -> None:
    app = place.app()
    with pytest.raises(ConfigError, match="lease"):

        @app.worker("q", lease=lease)
        async def work() -> None:
            pass

    other = place.app(lease=lease)
    with pytest.raises(ConfigError, match="lease"):

        @other.worker("q")
        async def again() -> None:
            pass


@pytest.mark.slow
@pytest.mark.parametrize("lease", [0.5, 5, timedelta(seconds=30), 600])
async def test_a_heartbeat_keeps_any_lease_with_time_to_spare(place: Place, lease: Any) -> None:
    app = place.app()
    seconds = lease.total_seconds() if isinstance(lease, timedelta) else float(lease)
    calls: list[int] = []
    least: list[float] = []

    @app.worker("q", lease=lease, retry=RetryPolicy(max_attempts=1))
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        for _ in range(40):
            await place.clock.sleep(seconds / 10)
            least.append(job.lease.remaining)
            assert not job.lease.lost

    await work.enqueue()
    async with place.running(app):
        await place.until(lambda: len(least) == 40, step=seconds / 5)
    assert calls == [1]
    assert min(least) > seconds / 4
    beats = len(place.events.of(LeasesExtended))
    assert 9 <= beats <= 13


@pytest.mark.slow
async def test_no_lease_of_ones_own_takes_the_queues(both: Place) -> None:
    app = both.app(queues=[QueueSpec(name="q", lease=7.0)])
    limits: list[float] = []

    @app.worker("q", lease=None)
    async def work(job: Job) -> None:
        limits.append(job.lease.remaining)

    await work.enqueue()
    await both.drain(app)
    assert 5 < limits[0] <= 7


@pytest.mark.slow
async def test_a_job_may_ask_for_more_time(both: Place) -> None:
    app = both.app(lease=2)
    seen: list[float] = []

    @app.worker("q")
    async def work(job: Job) -> None:
        seen.append(await job.extend(120))
        seen.append(await job.extend(timedelta(seconds=1)))
        seen.append(job.lease.remaining)

    @app.worker("q")
    def plain(job: Job) -> None:
        seen.append(job.extend_sync(120))

    both.thread_patience = 0.002
    await work.enqueue()
    await plain.enqueue()
    report = await both.drain(app)
    assert report.done == 2
    assert all(100 < each <= 120 for each in seen)


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, "60", True])
async def test_a_time_that_cannot_be_asked_for_is_refused(place: Place, wrong: Any) -> None:
    app = place.app()
    refused: list[str] = []

    @app.worker("q")
    async def work(job: Job) -> None:
        with pytest.raises(ConfigError) as caught:
            await job.extend(wrong)
        refused.append(str(caught.value))

    await work.enqueue()
    assert (await place.drain(app)).done == 1
    assert len(refused) == 1


# -- a lease that is lost ---------------------------------------------------------------------


@pytest.mark.parametrize("settle", ["ack", "extend", "release", "put_back", "dead_letter"])
async def test_whoever_lost_a_lease_cannot_touch_the_message_of_another(
    both_slowly: Place, settle: str
) -> None:
    lease = 60 if isinstance(both_slowly.clock, FakeClock) else 0.5
    async with (
        connect(both_slowly.url, clock=both_slowly.clock) as broker,
        connect(both_slowly.url, clock=both_slowly.clock) as rival,
    ):
        await broker.declare(QueueSpec(name="q", lease=lease))
        await broker.send("q", b"x", id="m")
        async with broker.claimer("q") as ours, rival.claimer("q") as theirs:
            (first,) = await ours.claim(wait=0)
            await both_slowly.passes(lease * 1.1)
            (second,) = await both_slowly.drive(theirs.claim(wait=5))
            assert (second.message.id, second.attempt) == ("m", 2)

            with pytest.raises(LeaseLostError):
                await _late(ours, settle, first)
            stats = await broker.inspect("q")
            assert (stats.ready.value, stats.leased.value, stats.dead.value) == (0, 1, 0)
            await theirs.ack(second)
            with pytest.raises(LeaseLostError):
                await _late(ours, settle, first)
        stats = await broker.inspect("q")
        assert (stats.ready.value, stats.leased.value, stats.dead.value) == (0, 0, 0)


async def _late(claimer: Claimer, settle: str, delivery: Delivery) -> None:
    match settle:
        case "ack":
            await claimer.ack(delivery)
        case "extend":
            await claimer.extend(delivery, 60)
        case "release":
            await claimer.release(delivery)
        case "put_back":
            await claimer.put_back(delivery)
        case _:
            await claimer.dead_letter(delivery, "late")


@pytest.mark.parametrize("settle", ["ack", "extend", "release", "put_back", "dead_letter"])
async def test_a_message_is_settled_once(both: Place, settle: str) -> None:
    async with connect(both.url, clock=both.clock) as broker:
        await broker.declare(QueueSpec(name="q"))
        await broker.send("q", b"x", id="m")
        async with broker.claimer("q") as claimer:
            (delivery,) = await claimer.claim(wait=0)
            await claimer.ack(delivery)
            with pytest.raises(LeaseLostError):
                await _late(claimer, settle, delivery)
            assert await claimer.claim(wait=0) == []


@pytest.mark.slow
async def test_a_job_that_lost_its_lease_is_told_stopped_and_not_counted_as_done(
    place: Place,
) -> None:
    app = place.app(lease=10)
    ends: list[str] = []
    calls: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=3))
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        if job.attempt == 2:
            return
        try:
            await place.clock.sleep(60)
        except asyncio.CancelledError:
            ends.append(f"cancelled at {place.clock.now() - started:g}, lost: {job.lease.lost}")
            raise

    await work.enqueue()
    started = place.clock.now()
    async with place.running(app, heartbeat=False) as running:
        await place.until(lambda: len(calls) == 2)
        report = await running.stop()
    assert calls == [1, 2]
    assert ends == ["cancelled at 9, lost: True"]
    assert (report.done, report.lost, report.failed) == (1, 1, 0)
    (lost,) = place.events.of(LeaseLost)
    assert lost.queue == "q"
    assert [event.outcome for event in place.events.of(JobEnded)] == ["lost", "done"]


async def test_a_job_that_swallows_the_alarm_still_cannot_settle(place: Place) -> None:
    app = place.app(lease=10)
    calls: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=5))
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        if job.attempt == 1:
            while not job.lease.lost:
                await place.clock.sleep(1)
            for _ in range(3):
                try:
                    await place.clock.sleep(20)
                except asyncio.CancelledError:
                    continue

    await work.enqueue()
    async with place.running(app, heartbeat=False) as running:
        await place.until(lambda: len(calls) == 2, step=1.0)
        await place.passes(5)
        report = await running.stop()
    assert calls == [1, 2]
    assert (report.done, report.lost) == (1, 1)


@pytest.mark.slow
async def test_a_thread_that_lost_its_lease_is_told_and_keeps_its_slot_until_it_returns(
    real: Place,
) -> None:
    app = real.app(lease=0.4)
    told = threading.Event()
    release = threading.Event()
    attempts: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=5))
    def work(job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            while not job.lease.lost:
                release.wait(0.01)
            told.set()
            release.wait(10)

    await work.enqueue()
    async with real.running(app, slots=1, heartbeat=False) as running:
        await real.until(told.is_set)
        await real.passes(0.5)
        assert attempts == [1]
        release.set()
        await real.until(lambda: len(attempts) >= 2)
        await real.passes(0.05)
        report = await running.stop()
    assert attempts == [1, 2]
    assert (report.done, report.lost) == (1, 1)


# -- a blocked loop ---------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_handler_that_blocks_the_loop_keeps_its_lease_and_is_named(real: Place) -> None:
    app, rival = real.app(lease=1), App(real.url, lease=1)
    calls: list[int] = []

    @app.worker("q")
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        threading.Event().wait(3.2)  # as a careless handler does

    await work.enqueue()
    stolen: list[int] = []
    thread = threading.Thread(target=_claim_beside, args=(rival, calls, stolen))
    thread.start()
    async with real.running(app) as running:
        await asyncio.to_thread(thread.join)
        report = await running.stop()
    assert (calls, stolen) == ([1], [])
    assert (report.done, report.lost) == (1, 0)
    (blocked,) = real.events.of(LoopBlocked)
    assert blocked.seconds > 1
    assert blocked.running == ("work",)


def _claim_beside(app: App, calls: list[int], stolen: list[int]) -> None:
    async def claim() -> None:
        while not calls:
            await asyncio.sleep(0.01)
        async with app.broker().claimer("q", lease=1) as claimer:
            stolen.extend(delivery.attempt for delivery in await claimer.claim(wait=2.8))
        await app.aclose()

    asyncio.run(claim())


@pytest.mark.slow
async def test_plain_functions_never_block_the_loop(real: Place) -> None:
    app = real.app()
    inside = threading.Barrier(4, timeout=5)

    @app.worker("q")
    def work() -> None:
        inside.wait()

    await work.enqueue_many([work.call() for _ in range(4)])
    report = await real.drain(app, slots=4)
    assert report.done == 4


# -- clocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [600, -600, 86400 * 400, -86400 * 400])
async def test_a_wall_clock_that_is_set_ends_no_lease(place: Place, jump: float) -> None:
    app, rival = place.app(lease=30), place.app(lease=30)
    clock = place.clock
    assert isinstance(clock, FakeClock)
    calls: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        await clock.sleep(10)
        clock.jump_wall(jump)
        await clock.sleep(50)
        assert not job.lease.lost

    rival.worker("q", name="work")(work.fn)
    await work.enqueue()
    async with place.running(app), place.running(rival):
        await place.until(lambda: calls, step=0.0)
        await place.passes(100)
    assert calls == [1]
    assert await counts(app, "q") == (0, 0, 0, 0)

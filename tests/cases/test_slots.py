"""What runs at once: slots, workers' own limits, several queues, and reading ahead."""

from __future__ import annotations

import asyncio

import pytest

from brokerwq import Job, RetryPolicy
from tests.cases.lab import Gauge, Place, counts

MANY = 60


@pytest.mark.slow
async def test_no_more_jobs_run_at_once_than_there_are_slots(both: Place) -> None:
    app = both.app()
    gauge = Gauge(both.clock)

    @app.worker("a")
    async def left(*, n: int) -> None:
        await gauge.hold(0.003 * (n % 4))

    @app.worker("b")
    async def right(*, n: int) -> None:
        await gauge.hold(0.002 * (n % 3))

    await left.enqueue_many([left.call(n=n) for n in range(MANY)])
    await right.enqueue_many([right.call(n=n) for n in range(MANY)])
    report = await both.drain(app, slots=5)

    assert report.done == 2 * MANY
    assert gauge.most == 5


async def test_all_slots_are_used_when_there_is_enough_to_do(place: Place) -> None:
    app = place.app()
    gauge = Gauge(place.clock)

    @app.worker("q")
    async def work() -> None:
        await gauge.hold(2)

    await work.enqueue_many([work.call() for _ in range(100)])
    started = place.clock.now()
    report = await place.drain(app, slots=10)

    assert report.done == 100
    assert place.clock.now() - started == pytest.approx(20, abs=1)


async def test_a_workers_own_limit_is_kept_and_the_others_go_on(place: Place) -> None:
    app = place.app()
    narrow, wide = Gauge(place.clock), Gauge(place.clock)

    @app.worker("q", slots=2)
    async def slow() -> None:
        await narrow.hold(1)

    @app.worker("q")
    async def quick() -> None:
        await wide.hold(0.1)

    await slow.enqueue_many([slow.call() for _ in range(10)])
    await quick.enqueue_many([quick.call() for _ in range(50)])
    started = place.clock.now()
    report = await place.drain(app, slots=6)

    assert report.done == 60
    assert narrow.most == 2
    assert wide.most >= 4
    assert place.clock.now() - started < 8


@pytest.mark.slow
async def test_many_messages_of_a_limited_worker_do_not_keep_the_slots_from_others(
    place: Place,
) -> None:
    app = place.app()
    quick_done_at: list[float] = []

    @app.worker("q", slots=1)
    async def slow() -> None:
        await place.clock.sleep(10)

    @app.worker("q")
    async def quick() -> None:
        quick_done_at.append(place.clock.now())

    await slow.enqueue_many([slow.call() for _ in range(30)])
    await quick.enqueue_many([quick.call() for _ in range(5)])
    started = place.clock.now()
    async with place.running(app, slots=4, grace=0):
        await place.until(lambda: len(quick_done_at) == 5)
    assert quick_done_at[-1] - started < 15


@pytest.mark.slow
async def test_messages_of_a_limited_worker_let_others_pass_at_sqlite_too(real: Place) -> None:
    app = real.app()
    hold = asyncio.Event()
    passed = asyncio.Event()

    @app.worker("q", slots=1)
    async def slow() -> None:
        await hold.wait()

    @app.worker("q")
    async def quick() -> None:
        passed.set()

    await slow.enqueue_many([slow.call() for _ in range(6)])
    await quick.enqueue()
    async with real.running(app, slots=3) as running:
        await asyncio.wait_for(passed.wait(), 8)
        hold.set()
        report = await running.stop()
    assert report.failed == report.lost == 0


@pytest.mark.slow
@pytest.mark.parametrize("order", [("idle", "busy"), ("busy", "idle")])
async def test_an_idle_queue_does_not_keep_the_slots_from_a_busy_one(
    both_slowly: Place, order: tuple[str, str]
) -> None:
    app = both_slowly.app()
    done: list[float] = []

    @app.worker("idle")
    async def never() -> None:
        pass

    @app.worker("busy")
    async def work() -> None:
        done.append(both_slowly.clock.now())
        await both_slowly.clock.sleep(0.01)

    started = both_slowly.clock.now()
    async with both_slowly.running(app, *order, slots=4):
        await both_slowly.passes(0.2)
        await work.enqueue_many([work.call() for _ in range(100)])
        await both_slowly.until(lambda: len(done) == 100)
    assert done[-1] - started < 3


@pytest.mark.slow
async def test_a_queue_that_has_just_run_dry_does_not_keep_the_slots_from_another(
    place: Place,
) -> None:
    app = place.app()
    done: list[tuple[str, float]] = []

    @app.worker("first")
    async def first() -> None:
        done.append(("first", place.clock.now()))

    @app.worker("second")
    async def second() -> None:
        done.append(("second", place.clock.now()))
        await place.clock.sleep(0.5)

    await first.enqueue()
    await second.enqueue_many([second.call() for _ in range(20)])
    started = place.clock.now()
    async with place.running(app, slots=2):
        await place.until(lambda: len(done) == 21)
    assert done[-1][1] - started < 7


@pytest.mark.slow
async def test_a_busy_queue_does_not_keep_the_slots_from_another(place: Place) -> None:
    app = place.app()
    started: list[tuple[str, float]] = []

    @app.worker("flood")
    async def flood() -> None:
        started.append(("flood", place.clock.now()))
        await place.clock.sleep(0.5)

    @app.worker("drops")
    async def drops() -> None:
        started.append(("drops", place.clock.now()))
        await place.clock.sleep(0.5)

    await flood.enqueue_many([flood.call() for _ in range(400)])
    async with place.running(app, slots=4, grace=0):
        await place.passes(5.2)
        await drops.enqueue_many([drops.call() for _ in range(8)])
        sent = place.clock.now()
        await place.until(lambda: sum(name == "drops" for name, _ in started) == 8)
    waits = [at - sent for name, at in started if name == "drops"]
    assert max(waits) < 10


@pytest.mark.slow
async def test_two_flooded_queues_share_the_slots_about_evenly(place: Place) -> None:
    app = place.app()
    done = {"left": 0, "right": 0}

    @app.worker("a")
    async def left() -> None:
        await place.clock.sleep(0.1)
        done["left"] += 1

    @app.worker("b")
    async def right() -> None:
        await place.clock.sleep(0.1)
        done["right"] += 1

    await left.enqueue_many([left.call() for _ in range(400)])
    await right.enqueue_many([right.call() for _ in range(400)])
    async with place.running(app, slots=4, grace=0):
        await place.until(lambda: sum(done.values()) >= 200)
    assert min(done.values()) > 50


async def test_one_slot_serves_many_queues(place: Place) -> None:
    app = place.app()
    gauge = Gauge(place.clock)
    done: list[str] = []

    @app.worker("q0", name="work")
    async def work(job: Job) -> None:
        await gauge.hold(0.02)
        done.append(job.queue)

    for worker in [work, *(app.worker(f"q{n}", name="work")(work.fn) for n in range(1, 8))]:
        for _ in range(3):
            await worker.enqueue()
    report = await place.drain(app, slots=1)

    assert report.done == 24
    assert gauge.most == 1
    assert {done.count(f"q{n}") for n in range(8)} == {3}


# -- reading ahead ----------------------------------------------------------------------------


@pytest.mark.slow
async def test_what_was_claimed_ahead_is_put_back_uncounted_when_the_slots_stay_busy(
    both_slowly: Place,
) -> None:
    app = both_slowly.app()
    attempts: list[int] = []
    hold = asyncio.Event()

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def work(job: Job, *, n: int) -> None:
        attempts.append(job.attempt)
        if n >= 200:
            await hold.wait()

    # Quick ones first, so that the runner learns to read ahead.
    await work.enqueue_many([work.call(n=n) for n in range(400)])
    async with both_slowly.running(app, slots=2) as running:
        await both_slowly.until(lambda: len(attempts) >= 202)
        await both_slowly.passes(2.5)
        ready, leased, _, _ = await counts(app, "q")
        assert (ready, leased) == (198, 2)
        hold.set()
        await both_slowly.until(lambda: len(attempts) == 400)
        report = await running.stop()
    assert set(attempts) == {1}
    assert (report.done, report.dead_count) == (400, 0)


@pytest.mark.slow
async def test_what_was_read_ahead_can_be_had_by_another_runner(place: Place) -> None:
    app, other = place.app(), place.app()
    seen: list[str] = []
    hold = asyncio.Event()

    @app.worker("q", name="work", retry=RetryPolicy(max_attempts=1))
    async def stalls(*, n: int) -> None:
        if n >= 100:
            await hold.wait()
        seen.append("first")

    @other.worker("q", name="work", retry=RetryPolicy(max_attempts=1))
    async def goes_on(*, n: int) -> None:
        seen.append("second" if n >= 100 else "too early")

    await stalls.enqueue_many([stalls.call(n=n) for n in range(200)])
    async with place.running(app, slots=1):
        await place.until(lambda: len(seen) == 100, step=0.0)
        async with place.running(other, slots=1):
            await place.until(lambda: seen.count("second") == 99)
            hold.set()
            await place.until(lambda: len(seen) == 200)
    assert seen.count("too early") == 0


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2])
async def test_a_workers_own_limit_survives_reading_ahead(place: Place, limit: int) -> None:
    app = place.app()
    gauge = Gauge(place.clock)
    stall = [False]

    @app.worker("q", slots=limit, retry=RetryPolicy(max_attempts=1))
    async def limited() -> None:
        await gauge.hold(1.5 if stall[0] else 0)

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def free() -> None:
        await place.clock.sleep(1.5 if stall[0] else 0)
        stall[0] = not stall[0]

    for _ in range(30):
        await free.enqueue()
        await limited.enqueue()
    report = await place.drain(app, slots=2)

    assert (report.done, report.dead_count) == (60, 0)
    assert gauge.most <= limit


async def test_two_copies_of_one_message_never_run_at_once_in_one_process(place: Place) -> None:
    app = place.app()
    gauge = Gauge(place.clock)
    attempts: list[int] = []

    @app.worker("q")
    async def work(job: Job) -> None:
        attempts.append(job.attempt)
        await gauge.hold(3)

    for _ in range(3):
        await work.options(id="same").enqueue()
    report = await place.drain(app, slots=5)

    assert report.done == 3
    assert gauge.most == 1
    assert attempts == [1, 1, 1]

"""Draining: it ends when the batch is done, neither sooner nor never."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from brokerwq import App, Job, Message, Retry, RetryPolicy, Snooze
from brokerwq.errors import ConfigError
from brokerwq.events import BrokerUnreachable
from brokerwq.testing import FakeClock
from brokerwq.testing.faults import Faults
from tests.cases.lab import Place, counts, declare, send, send_raw


async def test_an_empty_queue_is_drained_at_once(both: Place) -> None:
    app = both.app()

    @app.worker("q")
    async def work() -> None:
        pass

    started = both.clock.now()
    report = await both.drain(app)
    assert report.drained
    assert (report.done, report.exit_code, report.estimated, report.left_delayed) == (
        0,
        0,
        False,
        0,
    )
    assert both.clock.now() - started < 1


async def test_every_message_is_done_when_it_ends(both_slowly: Place) -> None:
    app = both_slowly.app()
    running = 0

    @app.worker("q")
    async def work(*, n: int) -> None:
        nonlocal running
        running += 1
        await both_slowly.clock.sleep(0.02 if n % 7 else 0.3)
        running -= 1

    await work.enqueue_many([work.call(n=n) for n in range(100)])
    report = await both_slowly.drain(app)
    assert (report.done, running) == (100, 0)
    assert await counts(app, "q") == (0, 0, 0, 0)


@pytest.mark.slow
async def test_failing_messages_are_awaited_through_their_backoff(place: Place) -> None:
    app = place.app()
    last: list[float] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=6, base=10, jitter="none", cap=300))
    async def work(job: Job) -> None:
        last.append(place.clock.now())
        if job.attempt < 6:
            raise ValueError

    await work.enqueue()
    started = place.clock.now()
    report = await place.drain(app)
    assert report.done == 1
    assert last[-1] - started == pytest.approx(10 + 20 + 40 + 80 + 160, abs=1)


@pytest.mark.slow
async def test_what_is_delayed_beyond_any_backoff_is_reported_and_not_awaited(
    both: Place,
) -> None:
    app = both.app()

    @app.worker("q", retry=RetryPolicy(cap=5))
    async def work() -> None:
        pass

    await work.enqueue()
    await work.options(delay=3600).enqueue()
    await work.options(delay=7200).enqueue()
    started = both.clock.now()
    report = await both.drain(app)
    assert (report.done, report.left_delayed, report.drained) == (1, 2, True)
    assert both.clock.now() - started < 2
    assert await counts(app, "q") == (0, 0, 2, 0)


@pytest.mark.slow
async def test_it_may_wait_for_those_too(place: Place) -> None:
    app = place.app()

    @app.worker("q", retry=RetryPolicy(cap=5))
    async def work() -> None:
        pass

    await work.options(delay=700).enqueue()
    started = place.clock.now()
    report = await place.drain(app, include_delayed=True)
    assert (report.done, report.left_delayed) == (1, 0)
    assert place.clock.now() - started == pytest.approx(700, abs=1)


async def test_near_and_far_delays_beside_each_other(place: Place) -> None:
    app = place.app()
    seen: list[int] = []

    @app.worker("q", retry=RetryPolicy(cap=60))
    async def work(*, n: int) -> None:
        seen.append(n)

    await work.options(delay=30).enqueue(n=30)
    await work.options(delay=50).enqueue(n=50)
    await work.options(delay=900).enqueue(n=900)
    report = await place.drain(app)
    assert (seen, report.left_delayed) == ([30, 50], 1)


async def test_a_snooze_beyond_the_backoff_is_left_behind_too(place: Place) -> None:
    app = place.app()

    @app.worker("q", retry=RetryPolicy(cap=5))
    async def work(*, far: bool) -> None:
        raise Snooze(3600) if far else Retry(after=3600)

    await work.enqueue(far=True)
    await work.enqueue(far=False)
    report = await place.drain(app)
    assert (report.snoozed, report.failed, report.left_delayed) == (1, 1, 2)


@pytest.mark.slow
async def test_a_message_that_another_runner_holds_is_awaited(both: Place) -> None:
    app, other = both.app(), both.app()
    hold = asyncio.Event()
    seen: list[str] = []

    @other.worker("q", name="work")
    async def slow() -> None:
        seen.append("taken")
        await hold.wait()
        seen.append("done")

    @app.worker("q", name="work")
    async def work() -> None:
        seen.append("stolen")

    await slow.enqueue()
    async with both.running(other):
        await both.until(lambda: seen)
        drain = asyncio.create_task(both.drain(app))
        await asyncio.sleep(0.3)
        assert not drain.done()
        hold.set()
        report = await drain
    assert (seen, report.done) == (["taken", "done"], 0)


async def test_a_message_of_a_runner_that_died_is_awaited_and_done(place: Place) -> None:
    app = place.app(lease=60)
    seen: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=3))
    async def work(job: Job) -> None:
        seen.append(job.attempt)

    await work.enqueue()
    async with app.broker().claimer("q", lease=60) as claimer:
        assert len(await claimer.claim(wait=0)) == 1
    started = place.clock.now()
    report = await place.drain(app)
    assert (seen, report.done) == ([2], 1)
    assert 59 <= place.clock.now() - started <= 62


@pytest.mark.slow
async def test_two_drainers_share_the_work_and_both_end(both: Place) -> None:
    apps = [both.app(), both.app()]
    seen: list[int] = []

    for app in apps:

        @app.worker("q", name="work")
        async def work(*, n: int) -> None:
            seen.append(n)
            await both.clock.sleep(0.01)

    await apps[0].broker().declare(apps[0].queue_specs()[0])
    for n in range(60):
        await send(apps[0], "q", "work", n=n)

    async def both_drain() -> list[int]:
        reports = await asyncio.gather(*(app.drain(log=False) for app in apps))
        return [report.done for report in reports]

    done = await both.drive(both_drain())
    assert sum(done) == 60
    assert sorted(seen) == list(range(60))


@pytest.mark.slow
async def test_children_on_the_same_queue_are_part_of_the_batch(both: Place) -> None:
    app = both.app()
    seen: list[int] = []

    @app.worker("q")
    async def work(job: Job, *, n: int) -> None:
        seen.append(n)
        if n < 6:
            job.enqueue(work, n=n + 1)
            job.enqueue(work, n=n + 1)

    await work.enqueue(n=0)
    report = await both.drain(app)
    assert report.done == 2**7 - 1
    assert len(seen) == 2**7 - 1


@pytest.mark.slow
async def test_messages_that_arrive_meanwhile_are_done_as_well(both: Place) -> None:
    app = both.app()
    seen: list[int] = []

    @app.worker("q")
    async def work(*, n: int) -> None:
        seen.append(n)
        if n < 30:
            await work.enqueue(n=n + 1)

    await work.enqueue(n=0)
    await both.drain(app)
    assert seen == list(range(31))


@pytest.mark.slow
async def test_several_queues_are_drained_together(both: Place) -> None:
    app = both.app()
    seen: list[str] = []

    @app.worker("a")
    async def first(job: Job, *, n: int) -> None:
        seen.append("a")
        if n:
            job.enqueue(second, n=n)

    @app.worker("b")
    async def second(job: Job, *, n: int) -> None:
        seen.append("b")
        job.enqueue(first, n=n - 1)

    @app.worker("c")
    async def never() -> None:
        seen.append("c")

    await first.enqueue(n=4)
    await never.enqueue()
    report = await both.drain(app, "a", "b")
    assert seen == ["a", "b"] * 4 + ["a"]
    assert report.done == 9
    assert await counts(app, "c") == (1, 0, 0, 0)


async def test_only_queues_with_workers_can_be_drained(place: Place) -> None:
    app = place.app()

    @app.worker("q")
    async def work() -> None:
        pass

    with pytest.raises(ConfigError, match="known: q"):
        await place.drain(app, "nope")
    with pytest.raises(ConfigError, match="no workers"):
        await place.drain(place.app())


@pytest.mark.slow
async def test_dead_letters_do_not_keep_it_from_ending(both: Place) -> None:
    app = both.app()

    @app.worker("q", retry=RetryPolicy(max_attempts=2, base=0.01))
    async def work() -> None:
        raise ValueError

    await work.enqueue_many([work.call() for _ in range(10)])
    report = await both.drain(app)
    assert dict(report.dead) == {"failed": 10}
    assert report.drained


async def test_progress_is_told_and_comes_to_nothing(both_slowly: Place) -> None:
    app = both_slowly.app()
    told: list[int] = []

    @app.worker("q")
    async def work() -> None:
        await both_slowly.clock.sleep(0.02)

    await work.enqueue_many([work.call() for _ in range(60)])
    await both_slowly.drive(app.drain(progress=told.append, slots=2, log=False))
    assert told[-1] == 0
    assert max(told) <= 60
    assert len(told) > 3


async def test_an_outage_does_not_end_it_early(place: Place) -> None:
    faults = Faults(clock=place.clock)
    app = place.faulty_app(faults)
    seen: list[int] = []

    @app.worker("q")
    async def work(*, n: int) -> None:
        seen.append(n)
        await place.clock.sleep(5)

    await declare(app.well, "q", lease=60.0)
    for n in range(6):
        await send(app.well, "q", "work", n=n)

    async def outage() -> None:
        await place.clock.sleep(7)
        with faults.outage():
            await place.clock.sleep(40)

    async def run() -> int:
        failing = asyncio.create_task(outage())
        report = await app.drain(log=False, slots=1)
        await failing
        return report.done

    assert await place.drive(run()) == 6
    assert sorted(seen) == list(range(6))
    assert place.events.of(BrokerUnreachable) != []


@pytest.mark.slow
async def test_a_stop_ends_a_drain_that_is_not_done(both: Place) -> None:
    app = both.app()
    seen: list[int] = []

    @app.worker("q")
    async def work(*, n: int) -> None:
        seen.append(n)
        if n == 3:
            raise SystemExit(4)

    await work.enqueue_many([work.call(n=n) for n in range(8)])
    report = await both.drain(app, slots=1)
    assert report.exit_code == 4
    assert not report.drained
    assert sum(await counts(app, "q")) == 8 - report.done


async def test_messages_of_unknown_type_are_awaited_until_they_are_given_up_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "100")
    app = place.app()

    @app.worker("q")
    async def work() -> None:
        pass

    await declare(app, "q", lease=60.0)
    await send_raw(app, "q", Message(id="m", type="typo", body=b"{}"))
    report = await place.drain(app)
    assert dict(report.dead) == {"unknown-type": 1}


async def test_drains_in_a_row_by_one_app(both_slowly: Place) -> None:
    app: App = both_slowly.app()
    seen: list[int] = []

    @app.worker("q")
    async def work(*, n: int) -> None:
        seen.append(n)

    for n in range(3):
        await work.enqueue(n=n)
        report = await both_slowly.drain(app)
        assert report.done == 1
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("like", ["", "?like=rabbitmq", "?like=sqs"])
@pytest.mark.parametrize("ids", [("a", "b", "c"), ("", "", "")])
async def test_what_is_held_for_want_of_a_dead_letter_queue_is_left_and_reported(
    like: str, ids: tuple[str, str, str]
) -> None:
    place = Place(f"memory://{uuid.uuid4().hex}{like}", FakeClock())
    app = place.app()
    seen: list[int] = []

    @app.worker("q", codec="json", foreign=True, on_dead="hold")
    async def take(n: int) -> None:
        seen.append(n)

    await declare(place.app(), "q")
    bodies = (b"no json", b"1", b"no json either")
    messages = [Message(id=id_, body=body) for id_, body in zip(ids, bodies, strict=True)]
    await send_raw(app, "q", *messages)
    report = await place.drain(app)

    assert seen == [1]
    assert (report.drained, report.done, report.left_delayed) == (True, 1, 2)
    await place.aclose()

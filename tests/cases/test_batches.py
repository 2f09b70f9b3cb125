"""Batches: many messages in one call, each with an end of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from brokerwq import DeadLetter, Discard, Done, Job, Message, Outcome, Retry, RetryPolicy, Snooze
from brokerwq.errors import ConfigError
from brokerwq.events import JobEnded, LeaseLost
from tests.cases.lab import Gauge, Place, counts, dead_letters, declare, send, send_raw

QUICK = RetryPolicy(max_attempts=2, base=0.01, jitter="none")


@pytest.mark.slow
async def test_every_message_of_a_batch_ends_as_the_handler_says(both: Place) -> None:
    app = both.app()
    seen: list[tuple[int, int]] = []

    @app.worker("q", batch=10, batch_wait=0.05, retry=QUICK)
    async def work(jobs: list[Job], numbers: list[int]) -> Sequence[Outcome | None]:
        seen.extend((n, job.attempt) for n, job in zip(numbers, jobs, strict=True))
        ends: dict[int, Any] = {
            0: None,
            1: Done(),
            2: Retry(after=0),
            3: Snooze(0.05) if seen.count((3, 1)) == 1 else None,
            4: Discard("stale"),
            5: DeadLetter("hopeless"),
            6: Done,
            7: Retry,
        }
        return [ends[n] for n in numbers]

    await work.enqueue_many(range(8))
    report = await both.drain(app)

    assert sorted(seen) == sorted(
        [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (7, 2)]
    )
    assert (report.done, report.discarded, report.failed, report.snoozed) == (4, 1, 2, 1)
    assert dict(report.dead) == {"hopeless": 1, "failed": 2}


@pytest.mark.slow
async def test_a_batch_handler_that_answers_nothing_is_done_with_all(both: Place) -> None:
    app = both.app()
    sizes: list[int] = []

    @app.worker("q", batch=4)
    async def work(numbers: list[int]) -> None:
        sizes.append(len(numbers))

    await work.enqueue_many(range(10))
    report = await both.drain(app, slots=1)
    assert (report.done, sum(sizes), max(sizes)) == (10, 10, 4)


@pytest.mark.slow
async def test_a_plain_function_takes_batches_too(both: Place) -> None:
    both.thread_patience = 0.002
    app = both.app()
    seen: list[int] = []

    @app.worker("q", batch=4)
    def work(jobs: list[Job], numbers: list[int]) -> list[Outcome]:
        seen.extend(numbers)
        return [Done()] * len(jobs)

    await work.enqueue_many(range(10))
    report = await both.drain(app)
    assert (report.done, sorted(seen)) == (10, list(range(10)))


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [Done()],
        [Done()] * 4,
        (Done(), Done()),
        "abc",
        "done",
        42,
        {"a": 1, "b": 2, "c": 3},
        [True, True, True],
        ["ok", "ok", "ok"],
        [ValueError("a"), ValueError("b"), ValueError("c")],
        iter([None, None, None]),
    ],
)
async def test_a_wrong_answer_fails_the_batch_and_says_why(place: Place, answer: Any) -> None:
    app = place.app()

    @app.worker("q", batch=3, batch_wait=1, retry=RetryPolicy(max_attempts=1))
    async def work(numbers: list[int]) -> Any:
        assert len(numbers) == 3
        return answer

    await work.enqueue_many(range(3))
    report = await place.drain(app)
    assert (report.done, dict(report.dead)) == (0, {"failed": 3})
    for letter in await dead_letters(app, "q"):
        assert letter.dead is not None
        assert "answered" in letter.dead.error


@pytest.mark.slow
async def test_an_error_fails_every_message_of_the_batch(both: Place) -> None:
    app = both.app()
    calls: list[int] = []

    @app.worker("q", batch=5, batch_wait=0.05, retry=QUICK)
    async def work(numbers: list[int]) -> None:
        calls.append(len(numbers))
        raise ValueError

    await work.enqueue_many(range(5))
    report = await both.drain(app)
    assert sum(calls) == 10
    assert (report.failed, dict(report.dead)) == (5, {"failed": 5})


async def test_an_outcome_raised_is_the_outcome_of_all(place: Place) -> None:
    app = place.app()

    @app.worker("q", batch=3, batch_wait=1)
    async def work(numbers: list[int]) -> None:
        raise Discard(str(len(numbers)))

    await work.enqueue_many(range(3))
    report = await place.drain(app)
    assert report.discarded == 3


@pytest.mark.slow
async def test_one_that_cannot_be_read_does_not_spoil_the_others(both: Place) -> None:
    app = both.app()
    calls: list[tuple[list[int], list[str]]] = []

    @app.worker("q", batch=5, batch_wait=0.2)
    async def work(jobs: list[Job], numbers: list[int]) -> list[Outcome | None]:
        calls.append((numbers, [job.id for job in jobs]))
        return [Discard("odd") if n % 2 else None for n in numbers]

    await declare(app, "q", lease=60.0)
    bodies = [b"0", b"one", b"2", b"3", b""]
    for nth, body in enumerate(bodies):
        message = Message(id=str(nth), type="work", content_type="application/json", body=body)
        await send_raw(app, "q", message)
    report = await both.drain(app)
    assert calls == [([0, 2, 3], ["0", "2", "3"])]
    assert (report.done, report.discarded, dict(report.dead)) == (2, 1, {"decode": 2})
    assert sorted(letter.id for letter in await dead_letters(app, "q")) == ["1", "4"]


async def test_a_batch_with_nothing_readable_is_no_call(place: Place) -> None:
    app = place.app()

    @app.worker("q", batch=5, batch_wait=1)
    async def work(numbers: list[int]) -> None:
        raise AssertionError(numbers)

    await declare(app, "q", lease=60.0)
    for nth in range(3):
        await send_raw(app, "q", Message(id=str(nth), type="work", body=b"?"))
    report = await place.drain(app)
    assert dict(report.dead) == {"decode": 3}


# -- waiting for a full batch -----------------------------------------------------------------


async def test_a_batch_that_does_not_fill_up_goes_after_its_wait(place: Place) -> None:
    app = place.app()
    calls: list[tuple[int, float]] = []

    @app.worker("q", batch=10, batch_wait=3)
    async def work(numbers: list[int]) -> None:
        calls.append((len(numbers), place.clock.now()))

    async with place.running(app):
        started = place.clock.now()
        await work.enqueue_many(range(4))
        await place.passes(1)
        await work.enqueue_many(range(3))
        await place.passes(1.9)
        assert calls == []
        await place.passes(0.2)
        assert [size for size, _ in calls] == [7]
        await work.enqueue_many(range(10))
        await place.passes(0.1)
    assert [size for size, _ in calls] == [7, 10]
    assert calls[0][1] - started == pytest.approx(3, abs=0.1)


async def test_batches_of_one_and_batches_without_wait_go_at_once(place: Place) -> None:
    app = place.app()
    calls: list[int] = []

    @app.worker("one", batch=1, batch_wait=60)
    async def single(numbers: list[int]) -> None:
        calls.append(len(numbers))

    @app.worker("q", batch=10)
    async def work(numbers: list[int]) -> None:
        calls.append(len(numbers))

    async with place.running(app):
        await single.enqueue_many(range(3))
        await work.enqueue(1)
        await place.passes(0.1)
    assert sum(calls) == 4


async def test_a_slot_counts_batches_not_messages(place: Place) -> None:
    app = place.app()
    gauge = Gauge(place.clock)

    @app.worker("q", batch=10)
    async def work(_: list[int]) -> None:
        await gauge.hold(1)

    await work.enqueue_many(range(100))
    started = place.clock.now()
    report = await place.drain(app, slots=5)
    assert (report.done, gauge.most) == (100, 5)
    assert place.clock.now() - started == pytest.approx(2, abs=0.5)


async def test_a_workers_own_limit_counts_batches(place: Place) -> None:
    app = place.app()
    gauge = Gauge(place.clock)

    @app.worker("q", batch=5, slots=2)
    async def work(_: list[int]) -> None:
        await gauge.hold(1)

    await work.enqueue_many(range(50))
    report = await place.drain(app, slots=6)
    assert (report.done, gauge.most) == (50, 2)


@pytest.mark.slow
async def test_a_stop_while_a_batch_fills_puts_it_back_at_once_and_uncounted(
    both: Place,
) -> None:
    app = both.app(lease=60)
    calls: list[int] = []

    @app.worker("q", batch=10, batch_wait=600, retry=RetryPolicy(max_attempts=1))
    async def work(jobs: list[Job], _: list[int]) -> None:
        calls.extend(job.attempt for job in jobs)

    await work.enqueue_many(range(6))
    async with both.running(app) as running:
        await both.passes(0.3)
        assert await counts(app, "q") == (0, 6, 0, 0)
        asked = both.clock.now()
        report = await running.stop()
        assert both.clock.now() - asked < 1
    assert await counts(app, "q") == (6, 0, 0, 0)
    assert (report.put_back, calls) == (6, [])
    await work.enqueue_many(range(4))
    report = await both.drain(app)
    assert (report.done, calls) == (10, [1] * 10)


@pytest.mark.slow
async def test_a_drain_does_not_end_while_a_batch_fills(place: Place) -> None:
    app = place.app()
    calls: list[int] = []

    @app.worker("q", batch=10, batch_wait=30)
    async def work(numbers: list[int]) -> None:
        calls.append(len(numbers))

    await work.enqueue_many(range(13))
    report = await place.drain(app)
    assert (report.done, calls) == (13, [10, 3])


async def test_what_is_stale_elsewhere_does_not_empty_a_batch_that_fills(place: Place) -> None:
    app = place.app()
    batches: list[int] = []

    @app.worker("slow", slots=1)
    async def slow() -> None:
        await place.clock.sleep(10)

    @app.worker("slow")
    async def other() -> None:
        pass

    @app.worker("batched", batch=10, batch_wait=3)
    async def work(numbers: list[int]) -> None:
        batches.append(len(numbers))

    await slow.enqueue_many([slow.call() for _ in range(9)])
    async with place.running(app, slots=3, grace=0):
        await place.passes(0.1)
        await work.enqueue_many(range(5))
        await place.until(lambda: batches, step=0.5)
    assert batches == [5]
    returned = {event.type for event in place.events.of(JobEnded) if event.outcome == "put-back"}
    assert returned == {"slow"}


# -- leases -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_one_lost_lease_costs_only_its_own_message(place: Place) -> None:
    app = place.app(lease=60)
    seen: list[tuple[int, int]] = []

    @app.worker("q", batch=5, batch_wait=1)
    async def work(jobs: list[Job], numbers: list[int]) -> None:
        seen.extend((n, job.attempt) for n, job in zip(numbers, jobs, strict=True))
        await place.clock.sleep(100)

    await work.enqueue_many(range(5))
    async with place.running(app) as running:
        await place.until(lambda: len(seen) == 5)
        _steal(app, place, 2)
        await place.passes(120)
        assert len(place.events.of(LeaseLost)) == 1
        await place.until(lambda: len(seen) == 6)
        await place.passes(200)
        report = await running.stop()
    assert sorted(seen) == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1), (4, 1)]
    assert (report.done, report.lost) == (5, 1)


def _steal(app: Any, place: Place, n: int) -> None:
    """End one lease at the broker, as its administrator could."""
    space = app.place.settings.space
    with space.locked():
        queue = space.queue("q")
        (record,) = [record for _, _, record in queue._timers if record.body == str(n).encode()]
        queue.take_out(record)
        queue.put(record, place.clock.now(), 0.0, space.ticket())


async def test_a_batch_that_lost_every_lease_is_stopped(place: Place) -> None:
    app = place.app(lease=10)
    calls: list[int] = []
    told: list[bool] = []

    @app.worker("q", batch=3, batch_wait=1, retry=RetryPolicy(max_attempts=5))
    async def work(jobs: list[Job], numbers: list[int]) -> None:
        calls.append(len(numbers))
        if jobs[0].attempt > 1:
            return
        try:
            await place.clock.sleep(100)
        except asyncio.CancelledError:
            told.extend(job.lease.lost for job in jobs)
            raise

    await work.enqueue_many(range(3))
    async with place.running(app, heartbeat=False) as running:
        await place.until(lambda: sum(calls) == 6, step=0.5)
        report = await running.stop()
    assert told == [True] * 3
    assert (report.done, report.lost) == (3, 3)


async def test_two_copies_of_one_message_are_not_in_one_batch(place: Place) -> None:
    app = place.app()
    batches: list[list[str]] = []

    @app.worker("q", batch=10, batch_wait=0.5)
    async def work(jobs: list[Job], _: list[int]) -> None:
        batches.append([job.id for job in jobs])

    for _ in range(3):
        await work.enqueue(1, id="same")
    report = await place.drain(app)
    assert report.done == 3
    assert batches == [["same"]] * 3


def test_a_batch_worker_has_its_queue_to_itself(place: Place) -> None:
    app = place.app()

    @app.worker("q", batch=2)
    async def work(numbers: list[int]) -> None:
        pass

    with pytest.raises(ConfigError, match="to itself"):

        @app.worker("q")
        async def other() -> None:
            pass


async def test_children_of_a_batch_follow_its_own_messages(place: Place) -> None:
    app = place.app()
    children: list[int] = []

    @app.worker("out")
    async def child(*, n: int) -> None:
        children.append(n)

    @app.worker("q", batch=4, batch_wait=1, retry=QUICK)
    async def work(jobs: list[Job], numbers: list[int]) -> list[Outcome | None]:
        for job, n in zip(jobs, numbers, strict=True):
            job.enqueue(child, n=n)
        return [DeadLetter("bad") if n == 2 else None for n in numbers]

    await work.enqueue_many(range(4))
    await place.drain(app)
    assert sorted(children) == [0, 1, 3]


async def test_a_batch_has_one_time_limit(place: Place) -> None:
    app = place.app()

    @app.worker("q", batch=3, batch_wait=1, timeout=5, retry=QUICK)
    async def work(_: list[int]) -> None:
        await place.clock.sleep(6)

    await work.enqueue_many(range(3))
    report = await place.drain(app)
    assert (report.timeouts, dict(report.dead)) == (3, {"timeout": 3})


async def test_messages_of_other_types_pass_by_a_batch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "0")
    app = place.app()
    seen: list[int] = []

    @app.worker("q", batch=3, batch_wait=0.5)
    async def work(numbers: list[int]) -> None:
        seen.extend(numbers)

    await work.enqueue_many(range(4))
    await send(app, "q", "other")
    report = await place.drain(app)
    assert (sorted(seen), dict(report.dead)) == ([0, 1, 2, 3], {"unknown-type": 1})

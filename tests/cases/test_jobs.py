"""The job at work: its context, time limit, children, middleware and what it shares."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from brokerwq import App, Discard, Job, Message, Next, Retry, RetryPolicy, Snooze
from brokerwq.errors import ConfigError, MessageRefusedError, PayloadError
from brokerwq.events import TimeLimitOverrun
from brokerwq.testing.faults import Fail, Faults
from tests.cases.lab import Place, counts, dead_letters, declare, send, send_raw

QUICK = RetryPolicy(max_attempts=3, base=0.01, jitter="none")


@pytest.mark.slow
async def test_a_job_knows_its_message(both: Place) -> None:
    both.thread_patience = 0.002
    app = both.app()
    seen: list[Job] = []

    @app.worker("q", retry=QUICK, timeout=30)
    async def work(job: Job, *, n: int) -> None:
        seen.append(job)
        assert n == 1
        assert job.deadline is not None
        assert job.deadline - both.clock.now() == pytest.approx(30, abs=2)

    @app.worker("q")
    def plain(job: Job) -> None:
        seen.append(job)

    message_id = await work.options(headers={"who": "me"}).enqueue(n=1)
    await plain.enqueue()
    await both.drain(app)

    job, other = sorted(seen, key=lambda job: job.type, reverse=True)
    assert (job.id, job.type, job.queue) == (message_id, "work", "q")
    assert (job.attempt, job.max_attempts) == (1, 3)
    assert dict(job.headers) == {"who": "me"}
    assert job.enqueued_at is not None
    assert abs(both.clock.utcnow() - job.enqueued_at) < timedelta(seconds=30)
    assert (other.type, other.deadline) == ("plain", None)


async def test_a_worker_is_still_a_function() -> None:
    app = App("memory://")

    @app.worker("q")
    async def work(*, n: int) -> int:
        return n + 1

    assert await work(n=1) == 2


# -- time limits ------------------------------------------------------------------------------


async def test_a_handler_that_takes_too_long_is_stopped_and_has_failed(both_slowly: Place) -> None:
    app = both_slowly.app()
    calls: list[int] = []
    told: list[str] = []

    @app.worker("q", timeout=0.2, retry=QUICK)
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        try:
            await both_slowly.clock.sleep(3600)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    await work.enqueue()
    report = await both_slowly.drain(app)
    assert (calls, told) == ([1, 2, 3], ["cancelled"] * 3)
    assert (report.timeouts, report.failed, dict(report.dead)) == (2, 2, {"timeout": 1})
    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert (letter.dead.reason, letter.dead.attempts) == ("timeout", 3)


async def test_time_limits_cover_middleware_and_clean_up(place: Place) -> None:
    app = place.app()

    async def slow(job: Job, call_next: Next) -> object:
        await place.clock.sleep(20)
        return await call_next(job)

    @app.worker("q", timeout=10, middleware=[slow], retry=RetryPolicy(max_attempts=1))
    async def work() -> None:
        raise AssertionError

    await work.enqueue()
    report = await place.drain(app)
    assert dict(report.dead) == {"timeout": 1}


async def test_what_is_done_in_spite_of_its_limit_is_done(place: Place) -> None:
    app = place.app()

    @app.worker("q", timeout=1)
    async def work() -> None:
        with pytest.raises(asyncio.CancelledError):
            await place.clock.sleep(5)

    await work.enqueue()
    report = await place.drain(app)
    assert (report.done, report.timeouts) == (1, 0)
    (overrun,) = place.events.of(TimeLimitOverrun)
    assert overrun.seconds >= overrun.limit == 1


async def test_a_handlers_own_timeout_is_an_ordinary_failure(place: Place) -> None:
    app = place.app()

    @app.worker("q", timeout=100, retry=RetryPolicy(max_attempts=1))
    async def work() -> None:
        raise TimeoutError

    await work.enqueue()
    report = await place.drain(app)
    assert (report.timeouts, dict(report.dead)) == (0, {"failed": 1})


@pytest.mark.slow
async def test_a_thread_cannot_be_stopped_and_is_settled_when_it_ends(real: Place) -> None:
    app = real.app(lease=0.5)
    ended = threading.Event()
    slow = threading.Event()

    @app.worker("q", timeout=0.1, retry=RetryPolicy(max_attempts=1))
    def work(job: Job) -> None:
        slow.wait(0.9)
        assert not job.lease.lost
        ended.set()

    await work.enqueue()
    report = await real.drain(app)
    assert ended.is_set()
    assert (report.done, report.lost) == (1, 0)
    assert [overrun.type for overrun in real.events.of(TimeLimitOverrun)] == ["work"]


async def test_a_time_limit_of_the_app_holds_where_the_worker_says_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_TIMEOUT", "5")
    app = place.app(retry=RetryPolicy(max_attempts=1))

    @app.worker("q")
    async def work() -> None:
        await place.clock.sleep(6)

    @app.worker("q", timeout=10)
    async def patient() -> None:
        await place.clock.sleep(6)

    await work.enqueue()
    await patient.enqueue()
    report = await place.drain(app)
    assert (report.done, dict(report.dead)) == (1, {"timeout": 1})


# -- children ---------------------------------------------------------------------------------


async def test_children_are_sent_after_success_and_before_the_ack(place: Place) -> None:
    faults = Faults(clock=place.clock)
    app = place.faulty_app(faults)
    children: list[str] = []
    promised: list[str] = []

    @app.worker("children")
    async def child(job: Job, *, n: int) -> None:
        assert job.message.cause == parent
        children.append(f"{n} {job.id}")

    @app.worker("q")
    async def work(job: Job) -> None:
        promised.extend(f"{n} {job.enqueue(child, n=n)}" for n in range(3))
        assert [call for call in faults.calls if call.operation == "send"] == []

    await declare(app.well, "q", lease=60.0)
    await declare(app.well, "children", lease=60.0)
    parent = await send(app.well, "q", "work")
    await place.drain(app)

    assert sorted(children) == sorted(promised)
    order = [c.operation for c in faults.calls if c.operation in ("send", "ack")]
    assert order[:2] == ["send", "ack"]  # all three at once


@pytest.mark.parametrize(
    "end", [ValueError("x"), Retry(after=0), Discard("x"), Snooze(0.01), KeyError("x")]
)
async def test_nothing_is_sent_by_a_job_that_did_not_succeed(place: Place, end: Exception) -> None:
    app = place.app()
    children: list[int] = []

    @app.worker("q")
    async def child(*, n: int) -> None:
        children.append(n)

    @app.worker("q", retry=QUICK)
    async def work(job: Job) -> None:
        job.enqueue(child, n=job.attempt)
        if job.attempt < 3 and not isinstance(end, Snooze):
            raise end
        if isinstance(end, Snooze) and job.message.snoozed == 0:
            raise end

    await work.enqueue()
    await place.drain(app)
    expected = {"Discard": [], "Snooze": [1]}.get(type(end).__name__, [3])
    assert children == expected


async def test_a_job_that_is_run_again_sends_the_same_children(place: Place) -> None:
    faults = Faults(clock=place.clock)
    app = place.faulty_app(faults, lease=10)
    seen: list[tuple[str, str]] = []
    attempts: list[int] = []

    @app.worker("children")
    async def child(job: Job, *, name: str) -> None:
        seen.append((name, job.id))

    @app.worker("q")
    async def work(job: Job) -> None:
        attempts.append(job.attempt)
        job.enqueue(child, name="a")
        job.enqueue(child, name="b")

    await declare(app.well, "q", lease=10.0)
    await declare(app.well, "children", lease=10.0)
    faults.add("ack", Fail(MessageRefusedError("the job will run again")))
    await send(app.well, "q", "work")
    await place.drain(app, "q")
    await place.drain(app, "children")

    assert attempts == [1, 2]
    assert len(seen) == 4
    assert len(set(seen)) == 2


async def test_children_that_cannot_be_sent_make_the_job_run_again(place: Place) -> None:
    faults = Faults(clock=place.clock)
    app = place.faulty_app(faults)
    seen: list[int] = []
    attempts: list[int] = []

    @app.worker("children")
    async def child(*, n: int) -> None:
        seen.append(n)

    @app.worker("q", retry=RetryPolicy(max_attempts=5, base=1))
    async def work(job: Job) -> None:
        attempts.append(job.attempt)
        job.enqueue(child, n=job.attempt)

    await declare(app.well, "q", lease=60.0)
    await declare(app.well, "children", lease=60.0)
    faults.add("send", Fail(MessageRefusedError("not now")))
    await send(app.well, "q", "work")
    report = await place.drain(app)
    assert attempts == [1, 2]
    assert seen == [2]
    assert report.failed == 1


async def test_children_may_be_delayed_and_grouped_but_have_no_id_of_their_own(
    place: Place,
) -> None:
    app = place.app()
    seen: list[tuple[str, float]] = []
    refused: list[Exception] = []

    @app.worker("q")
    async def child(text: str) -> None:
        seen.append((text, place.clock.now()))

    @app.worker("q")
    async def fields(*, n: int) -> None:
        seen.append((str(n), place.clock.now()))

    @app.worker("q")
    async def work(job: Job) -> None:
        job.enqueue(child, "later", delay=5)
        job.enqueue(fields.options(delay=timedelta(seconds=7)), n=1)
        for wrong in (lambda: job.enqueue(child, "x", id="mine"), lambda: _wrong(job, child)):
            try:
                wrong()
            except (ConfigError, PayloadError) as error:
                refused.append(error)

    await work.enqueue()
    started = place.clock.now()
    await place.drain(app)
    assert [text for text, _ in seen] == ["later", "1"]
    assert [at - started for _, at in seen] == pytest.approx([5, 7], abs=0.1)
    assert len(refused) == 2


def _wrong(job: Job, child: Any) -> None:
    job.enqueue(child, 7)


async def test_children_of_messages_without_ids_have_ids_that_differ(place: Place) -> None:
    app = place.app()
    ids: list[str] = []

    @app.worker("children")
    async def child(job: Job) -> None:
        ids.append(job.id)

    @app.worker("q", foreign=True)
    async def take(job: Job, body: bytes) -> None:
        assert body == b"x"
        job.enqueue(child)

    await declare(app, "q", lease=60.0)
    await send_raw(app, "q", *[Message(id="", body=b"x") for _ in range(5)])
    await place.drain(app)
    assert len(set(ids)) == 5


@pytest.mark.slow
async def test_a_plain_function_has_children_too(real: Place) -> None:
    app = real.app()
    seen: list[int] = []

    @app.worker("q")
    def child(*, n: int) -> None:
        seen.append(n)

    @app.worker("q")
    def work(job: Job) -> None:
        for n in range(3):
            job.enqueue(child, n=n)

    await work.enqueue()
    report = await real.drain(app)
    assert (report.done, sorted(seen)) == (4, [0, 1, 2])


async def test_a_job_is_told_that_the_runner_stops(both: Place) -> None:
    both.thread_patience = 0.002
    app = both.app()
    order: list[str] = []

    @app.worker("q")
    async def work(job: Job) -> None:
        order.append("started")
        while not job.stopping:
            await both.clock.sleep(0.01)
        raise Snooze(30)

    await work.enqueue()
    async with both.running(app) as running:
        await both.until(lambda: order)
        report = await running.stop()
    assert (report.snoozed, report.failed) == (1, 0)
    assert await counts(app, "q") == (0, 0, 1, 0)

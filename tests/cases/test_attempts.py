"""How often a message is tried, how long between, and what counts."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from brokerwq import App, DeadLetter, Discard, Job, Message, Retry, RetryPolicy, Snooze
from brokerwq.backoff import Rule
from brokerwq.outcomes import Outcome
from tests.cases.lab import Place, counts, dead_letters, declare, reasons, send_raw

QUICK = RetryPolicy(max_attempts=3, base=0.01, jitter="none")


@pytest.mark.slow
async def test_a_message_that_always_fails_is_tried_exactly_as_often_as_was_said(
    both: Place,
) -> None:
    app = both.app()
    attempts: list[int] = []

    @app.worker("q", retry=QUICK)
    async def work(job: Job, *, n: int) -> None:
        attempts.append(job.attempt)
        assert job.max_attempts == 3
        raise ValueError(n)

    message_id = await work.enqueue(n=1)
    report = await both.drain(app)

    assert attempts == [1, 2, 3]
    assert (report.failed, dict(report.dead), report.done) == (2, {"failed": 1}, 0)
    (letter,) = await dead_letters(app, "q")
    note = letter.dead
    assert note is not None
    assert (letter.id, note.reason, note.error_type, note.error) == (
        message_id,
        "failed",
        "ValueError",
        "1",
    )
    assert (note.attempts, note.queue, note.first_at) == (3, "q", letter.created_at)
    assert letter.attempts == 0
    assert await counts(app, "q") == (0, 0, 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("max_attempts", [1, 2, 4])
async def test_the_dead_letter_is_there_without_another_claim(
    both: Place, max_attempts: int
) -> None:
    app = both.app()
    calls = 0

    @app.worker("q", retry=RetryPolicy(max_attempts=max_attempts, base=0.01))
    async def work(*, n: int) -> None:
        nonlocal calls
        calls += 1
        raise ValueError(n)

    await work.enqueue(n=1)
    async with both.running(app):
        await both.until(lambda: calls == max_attempts)
        await both.passes(0.2)
        assert await counts(app, "q") == (0, 0, 0, 1)
    assert calls == max_attempts


async def test_the_gaps_grow_as_the_policy_says_and_others_are_not_held_up(place: Place) -> None:
    app = place.app()
    bad: list[float] = []
    good: list[float] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=4, base=1, jitter="none"), slots=1)
    async def work(*, n: int) -> None:
        (bad if n == 0 else good).append(place.clock.now())
        if n == 0:
            raise ValueError(n)

    await work.enqueue_many([work.call(n=n) for n in range(101)])
    started = place.clock.now()
    report = await place.drain(app)

    assert [round(b - a, 3) for a, b in itertools.pairwise(bad)] == [1, 2, 4]
    assert len(good) == 100
    assert max(good) - started < 1
    assert (report.done, dict(report.dead)) == (100, {"failed": 1})


async def test_a_message_waiting_for_its_next_attempt_takes_no_slot_and_survives_a_restart(
    both_slowly: Place,
) -> None:
    app = both_slowly.app()
    seen: list[tuple[int, int]] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=3, base=0.6, jitter="none"))
    async def work(job: Job, *, n: int) -> None:
        seen.append((n, job.attempt))
        if n == 0 and job.attempt < 3:
            raise ValueError(n)

    await work.enqueue(n=0)
    async with both_slowly.running(app, slots=1):
        await both_slowly.until(lambda: seen)
        await work.enqueue(n=1)
        await both_slowly.until(lambda: len(seen) == 2, step=0.01)
    assert await counts(app, "q") == (0, 0, 1, 0)

    report = await both_slowly.drain(app)
    assert seen == [(0, 1), (1, 1), (0, 2), (0, 3)]
    assert report.done == 1


@pytest.mark.slow
async def test_full_jitter_keeps_within_the_wait_and_spreads(place: Place) -> None:
    app = place.app()
    first: dict[int, float] = {}
    gaps: list[float] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=2, base=8, jitter="full"))
    async def work(job: Job, *, n: int) -> None:
        if job.attempt == 2:
            gaps.append(place.clock.now() - first[n])
            return
        first[n] = place.clock.now()
        raise ValueError(n)

    await work.enqueue_many([work.call(n=n) for n in range(100)])
    await place.drain(app)

    assert len(gaps) == 100
    assert max(gaps) <= 8.01
    assert min(gaps) < 2
    assert max(gaps) > 6


class OddError(Exception):
    pass


class OtherError(OddError):
    pass


def broken(_: BaseException) -> Outcome:
    msg = "the rule itself fails"
    raise RuntimeError(msg)


def read_reason(error: BaseException) -> Outcome:
    return DeadLetter(str(error))


def nonsense(_: BaseException) -> Outcome:
    return "later"  # type: ignore[return-value]


RULES: list[tuple[Rule, type[Exception], str]] = [
    (DeadLetter("no such customer"), OddError, "dead"),
    (DeadLetter("no such customer"), OtherError, "dead"),
    (Discard("stale"), OddError, "discarded"),
    (Discard, OddError, "discarded"),
    (read_reason, OddError, "dead"),
    (Snooze(5), OddError, "snoozed"),
    (Retry, OddError, "failed"),
    (broken, OddError, "failed"),
    (nonsense, OddError, "failed"),
]


@pytest.mark.parametrize(("rule", "raised", "outcome"), RULES)
async def test_what_an_exception_means_is_the_policys_to_say(
    place: Place, rule: Rule, raised: type[Exception], outcome: str
) -> None:
    app = place.app()
    calls: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=2, base=0.01, on={OddError: rule}))
    async def work(job: Job) -> None:
        calls.append(job.attempt)
        if len(calls) == 1:
            msg = "no such customer"
            raise raised(msg)

    await work.enqueue()
    report = await place.drain(app)

    if outcome == "dead":
        assert (calls, dict(report.dead)) == ([1], {"no such customer": 1})
        (letter,) = await dead_letters(app, "q")
        assert letter.dead is not None
        assert (letter.dead.error_type, letter.dead.error) == (raised.__name__, "no such customer")
    elif outcome == "discarded":
        assert (calls, report.discarded, report.done) == ([1], 1, 0)
    elif outcome == "snoozed":
        assert (calls, report.snoozed, report.done) == ([1, 1], 1, 1)
    else:
        assert (calls, report.failed, report.done) == ([1, 2], 1, 1)


async def test_the_closest_class_of_an_exception_decides(place: Place) -> None:
    app = place.app()
    rules: dict[type[BaseException], Rule] = {
        Exception: DeadLetter("anything"),
        OddError: DeadLetter("odd"),
    }

    @app.worker("q", retry=RetryPolicy(on=rules))
    async def work(*, kind: str) -> None:
        raise {"other": OtherError, "odd": OddError, "value": ValueError}[kind]

    for kind in ("other", "odd", "value"):
        await work.enqueue(kind=kind)
    report = await place.drain(app)

    assert dict(report.dead) == {"odd": 2, "anything": 1}


@pytest.mark.parametrize(
    ("attempts", "suspect", "reason"), [(3, False, "failed"), (3, True, "lost"), (7, True, "lost")]
)
async def test_a_message_beyond_its_attempts_is_dead_before_its_handler_runs(
    place: Place, attempts: int, *, suspect: bool, reason: str
) -> None:
    app = place.app()
    calls: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=3))
    async def work(job: Job) -> None:
        calls.append(job.attempt)

    await declare(app, "q", lease=60.0)
    message = Message(id="m", type="work", body=b"{}", attempts=attempts, suspect=suspect)
    await send_raw(app, "q", message)
    await place.drain(app)

    assert calls == []
    assert await reasons(app, "q") == [reason]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("max_attempts", "earlier", "losses", "runs"),
    [
        (3, 2, 0, [3]),
        (3, 2, 1, []),  # two failed and one was lost: three in all
        (3, 0, 2, [3]),
        (3, 0, 3, []),
        (2, 1, 1, []),
        (1, 0, 1, []),
    ],
)
async def test_a_lost_attempt_is_spent_whatever_came_before_it(
    both: Place, max_attempts: int, earlier: int, losses: int, runs: list[int]
) -> None:
    app = both.app(lease=0.3)
    attempts: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=max_attempts))
    async def work(job: Job) -> None:
        attempts.append(job.attempt)

    await declare(app, "q", lease=0.3)
    await send_raw(app, "q", Message(id="m", type="work", body=b"{}", attempts=earlier))
    for _ in range(losses):
        await _lose(both, app)
    report = await both.drain(app)
    assert attempts == runs
    assert dict(report.dead) == ({} if runs else {"lost": 1})


async def _lose(place: Place, app: App) -> None:
    """Claim as a runner does that then dies."""
    async with app.broker().claimer("q", lease=0.3) as claimer:
        assert len(await place.drive(claimer.claim(wait=5))) == 1
    await place.passes(0.31)


async def test_lowering_the_limit_applies_to_what_is_already_queued(place: Place) -> None:
    generous, strict = place.app(), place.app()
    calls: list[int] = []

    @generous.worker("q", name="work", retry=RetryPolicy(max_attempts=9, base=0.01))
    async def patient(job: Job, *, n: int) -> None:
        calls.append(job.attempt)
        raise ValueError(n)

    @strict.worker("q", name="work", retry=RetryPolicy(max_attempts=2, base=0.01))
    async def impatient(job: Job) -> None:
        calls.append(-job.attempt)

    await patient.enqueue(n=1)
    async with place.running(generous):
        await place.until(lambda: len(calls) >= 4)
    await place.drain(strict)

    assert all(call > 0 for call in calls)
    assert len(await dead_letters(strict, "q")) == 1


async def test_each_worker_on_a_queue_has_its_own_limit(place: Place) -> None:
    app = place.app()
    calls: list[str] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def once(*, n: int) -> None:
        calls.append("once")
        raise ValueError(n)

    @app.worker("q", retry=RetryPolicy(max_attempts=3, base=0.01))
    async def thrice(*, n: int) -> None:
        calls.append("thrice")
        raise ValueError(n)

    await once.enqueue(n=1)
    await thrice.enqueue(n=1)
    await place.drain(app)

    assert sorted(calls) == ["once", "thrice", "thrice", "thrice"]


async def test_a_redriven_message_starts_afresh(place: Place) -> None:
    app = place.app()
    attempts: list[int] = []

    @app.worker("q", retry=QUICK)
    async def work(job: Job, *, n: int) -> None:
        attempts.append(job.attempt)
        raise ValueError(n)

    await work.enqueue(n=1)
    await place.drain(app)
    (letter,) = await dead_letters(app, "q")
    await send_raw(app, "q", letter)
    await place.drain(app)

    assert attempts == [1, 2, 3, 1, 2, 3]


async def test_a_handler_that_asks_for_a_time_gets_that_time(place: Place) -> None:
    app = place.app()
    times: list[float] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=3, base=1, jitter="none"))
    async def work(job: Job) -> None:
        times.append(place.clock.now())
        if job.attempt == 1:
            raise Retry(after=30)
        if job.attempt == 2:
            raise Retry(after=0)

    await work.enqueue()
    await place.drain(app)

    assert times[1] - times[0] == pytest.approx(30)
    assert times[2] - times[1] == pytest.approx(0, abs=0.01)


async def test_an_idle_runner_neither_spins_nor_keeps_a_failing_message_from_backing_off(
    place: Place,
) -> None:
    app = place.app()
    calls: list[float] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=50, base=1, factor=1, jitter="none"))
    async def work(*, n: int) -> None:
        calls.append(place.clock.now())
        raise ValueError(n)

    await work.enqueue(n=1)
    async with place.running(app):
        await place.passes(10.5)
        await asyncio.sleep(0)
    assert len(calls) == 11


# -- crash suspects ---------------------------------------------------------------------------


def lost(n: int, *, attempts: int, suspect: bool) -> Message:
    body = b'{"n":%d}' % n
    return Message(id=f"m{n}", type="work", body=body, attempts=attempts, suspect=suspect)


@pytest.mark.slow
async def test_a_suspect_is_not_held_while_another_that_was_lost_before_still_runs(
    place: Place,
) -> None:
    app = place.app(lease=60)
    order: list[tuple[int, float]] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=3))
    async def work(*, n: int) -> None:
        order.append((n, place.clock.now()))
        await place.clock.sleep(5)

    await declare(app, "q", lease=60.0)
    # Not yet at its last attempt: were it the culprit, it would strike beside the others.
    await send_raw(app, "q", lost(1, attempts=1, suspect=True))
    async with place.running(app, slots=4):
        await place.until(lambda: order, step=0.01)
        await send_raw(app, "q", lost(2, attempts=2, suspect=True))
        await place.passes(0.5)
        assert (await counts(app, "q"))[1:3] == (1, 1)
        await send_raw(app, "q", lost(3, attempts=0, suspect=False))
        await place.until(lambda: len(order) == 3)
        await place.passes(20)
    assert [n for n, _ in order] == [1, 3, 2]
    assert order[2][1] - order[1][1] >= 5  # by itself
    assert await counts(app, "q") == (0, 0, 0, 0)


@pytest.mark.slow
async def test_ordinary_retries_do_not_keep_a_suspect_waiting_for_ever(place: Place) -> None:
    app = place.app(lease=60)
    done: list[float] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=100, base=0.1, jitter="none"))
    async def retried() -> None:
        await place.clock.sleep(0.5)
        raise Retry(after=0)

    @app.worker("q", retry=RetryPolicy(max_attempts=3))
    async def work(*, n: int) -> None:
        done.append(n)

    await retried.enqueue_many([retried.call() for _ in range(3)])
    async with place.running(app, slots=4, grace=0):
        await place.passes(1.2)
        await send_raw(app, "q", lost(2, attempts=2, suspect=True))
        started = place.clock.now()
        await place.until(lambda: done)
        assert place.clock.now() - started < 20

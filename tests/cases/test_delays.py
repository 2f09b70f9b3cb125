"""Messages that are to be run later: never early, hardly late, and never counted."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from brokerwq import Job, Message, QueueSpec, Retry, RetryPolicy, Snooze, connect
from brokerwq.errors import ConfigError
from tests.cases.lab import Place, counts, declare, send_raw

DAY = 86400.0


@pytest.mark.parametrize(
    ("delay", "wanted"),
    [
        (-1, 0.0),
        (0, 0.0),
        (-0.0, 0.0),
        (0.4, 0.4),
        (1, 1.0),
        (899.9, 899.9),
        (900, 900.0),
        (901, 901.0),
        (43_201, 43_201.0),
        (timedelta(-1), 0.0),
        (timedelta(milliseconds=250), 0.25),
        (timedelta(hours=30), 30 * 3600.0),
    ],
)
async def test_a_delay_is_kept_and_spends_no_attempt(
    place: Place, delay: Any, wanted: float
) -> None:
    app = place.app()
    seen: list[tuple[float, int]] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=1, cap=1))
    async def work(job: Job) -> None:
        seen.append((place.clock.now(), job.attempt))

    sent = place.clock.now()
    await work.options(delay=delay).enqueue()
    await place.passes(max(wanted - 0.01, 0.0))
    async with place.running(app):
        if wanted:
            assert seen == []
        await place.passes(0.05)
    ((at, attempt),) = seen
    assert wanted <= round(at - sent, 6) <= wanted + 0.05
    assert attempt == 1


@pytest.mark.parametrize(
    "delay",
    [math.nan, math.inf, -math.inf, "10", True, [1], 1e300, timedelta.max, 11 * 365 * DAY],
)
async def test_what_is_no_delay_is_refused_before_anything_is_sent(both: Place, delay: Any) -> None:
    app = both.app()

    @app.worker("q")
    async def work(text: str) -> None:
        raise AssertionError(text)

    await declare(app, "q", lease=60.0)
    with pytest.raises(ConfigError, match="delay"):
        await work.enqueue("x", delay=delay)
    with pytest.raises(ConfigError, match="delay"):
        await work.enqueue_many(["x"], delay=delay)
    with pytest.raises(ConfigError, match="delay"):
        await app.broker().send("q", b"x", delay=delay)
    assert await counts(app, "q") == (0, 0, 0, 0)


@pytest.mark.slow
async def test_a_moment_may_be_said_instead(place: Place) -> None:
    app = place.app()
    seen: list[datetime] = []

    @app.worker("q")
    async def work() -> None:
        seen.append(place.clock.utcnow())

    now = place.clock.utcnow()
    in_a_while = now + timedelta(minutes=5)
    await work.options(at=in_a_while).enqueue()
    await work.options(at=in_a_while.astimezone(timezone(timedelta(hours=5)))).enqueue()
    await work.options(at=now - timedelta(days=3000)).enqueue()
    with pytest.raises(ConfigError, match="time zone"):
        await work.options(at=in_a_while.replace(tzinfo=None)).enqueue()
    with pytest.raises(ConfigError, match="10 years"):
        await work.options(at=datetime.max.replace(tzinfo=UTC)).enqueue()
    with pytest.raises(ConfigError, match="not both"):
        await work.options(at=now, delay=1).enqueue()

    await place.drain(app, include_delayed=True)
    assert len(seen) == 3
    assert seen[0] - now < timedelta(seconds=1)
    for at in seen[1:]:
        assert timedelta() <= at - in_a_while < timedelta(seconds=1)


@pytest.mark.slow
async def test_short_delays_are_kept_at_sqlite(real: Place) -> None:
    app = real.app()
    waits: dict[str, float] = {}
    sent: dict[str, float] = {}

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def work(job: Job) -> None:
        waits[job.id] = real.clock.now() - sent[job.id]

    wanted = {"past": -5.0, "now": 0.0, "soon": 0.4, "later": 0.8}
    for name, delay in wanted.items():
        sent[name] = real.clock.now()
        await work.options(delay=delay, id=name).enqueue()
    report = await real.drain(app, include_delayed=True)

    assert report.done == 4
    for name, delay in wanted.items():
        assert max(delay, 0.0) <= waits[name] <= max(delay, 0.0) + 0.5, name


async def test_a_delay_survives_a_restart(both_slowly: Place) -> None:
    app = both_slowly.app()
    seen: list[int] = []

    @app.worker("q")
    async def work(*, n: int) -> None:
        seen.append(n)

    await work.options(delay=1.0).enqueue(n=1)
    async with both_slowly.running(app):
        await both_slowly.passes(0.1)
    await app.aclose()
    assert await counts(app, "q") == (0, 0, 1, 0)
    report = await both_slowly.drain(app)
    assert (seen, report.done) == ([1], 1)


async def test_a_delayed_message_keeps_no_slot_from_the_others(place: Place) -> None:
    app = place.app()
    order: list[int] = []

    @app.worker("q")
    async def work(*, n: int) -> None:
        order.append(n)

    for n in range(20):
        await work.options(delay=100).enqueue(n=n)
    await work.enqueue(n=99)
    await place.drain(app, slots=1)
    assert order == [99, *range(20)]


# -- beyond what the broker delays by itself: by hops -----------------------------------------


@pytest.mark.slow
async def test_a_message_that_is_not_due_goes_back_unrun_until_it_is(place: Place) -> None:
    app = place.app()
    seen: list[tuple[float, int]] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def work(job: Job) -> None:
        seen.append((place.clock.now(), job.attempt))

    await declare(app, "q", lease=60.0)
    due = place.clock.utcnow() + timedelta(seconds=500)
    message = Message(id="m", type="work", body=b"{}", not_before=due)
    started = place.clock.now()
    await send_raw(app, "q", message, delay=100)
    report = await place.drain(app)
    ((at, attempt),) = seen
    assert at - started == pytest.approx(500, abs=1)
    assert at - started >= 500
    assert (attempt, report.put_back) == (1, 1)


# -- delays of returns ------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Retry(after=DAY), Snooze(DAY), Retry(after=2.5)])
async def test_a_returned_message_waits_as_long_as_was_asked(place: Place, outcome: Any) -> None:
    app = place.app()
    seen: list[tuple[float, int]] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=5))
    async def work(job: Job) -> None:
        seen.append((place.clock.now(), job.attempt))
        if len(seen) == 1:
            raise outcome

    await work.enqueue()
    async with place.running(app):
        await place.until(lambda: len(seen) == 1, step=0.0)
    await place.passes(seen[0][0] + outcome.after - 0.02 - place.clock.now())
    async with place.running(app):
        await place.passes(0.0)
        assert len(seen) == 1
        await place.passes(0.03)
    gap = round(seen[1][0] - seen[0][0], 6)
    assert outcome.after <= gap <= outcome.after + 0.1
    assert seen[1][1] == (1 if isinstance(outcome, Snooze) else 2)


HUGE: list[Any] = [1e300, timedelta.max]
NO_TIMES: list[Any] = [math.nan, math.inf, "soon", True]


@pytest.mark.parametrize(
    ("outcome", "after", "reason"),
    [
        *((outcome, after, "failed") for outcome in (Snooze, Retry) for after in NO_TIMES),
        *((Retry, after, "failed") for after in HUGE),
        *((Snooze, after, "snoozed-too-long") for after in HUGE),
    ],
)
async def test_an_outcome_with_no_sensible_time_in_it_ends_as_a_dead_letter(
    both_slowly: Place, outcome: Any, after: Any, reason: str
) -> None:
    app = both_slowly.app()

    @app.worker("q", retry=RetryPolicy(max_attempts=2, base=0.01))
    async def work() -> None:
        raise outcome(after)

    await work.enqueue()
    report = await both_slowly.drain(app)
    assert dict(report.dead) == {reason: 1}
    assert report.failed == (reason == "failed")


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": -1},
        {"base": math.nan},
        {"base": 1e300},
        {"base": "1"},
        {"cap": 0},
        {"cap": math.inf},
        {"cap": 1e300},
        {"factor": 0.5},
        {"factor": math.nan},
        {"factor": 1e300},
        {"factor": timedelta(seconds=2)},
        {"factor": True},
        {"jitter": "some"},
        {"max_attempts": 0},
        {"max_attempts": 2.0},
        {"max_attempts": True},
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused_where_it_is_written(wrong: Any) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        RetryPolicy(**wrong)


@pytest.mark.parametrize("factor", [1, 2, 1000])
def test_waits_stay_within_the_cap_however_many_attempts_there_are(factor: float) -> None:
    policy = RetryPolicy(max_attempts=1_000_000, factor=factor, jitter="none")
    waits = [policy.wait_after(attempt) for attempt in (1, 2, 3, 64, 65, 66, 999_999)]
    assert waits == sorted(waits)
    assert max(waits) <= 600


@pytest.mark.slow
async def test_a_claimers_delays_mean_the_same(both: Place) -> None:
    async with connect(both.url, clock=both.clock) as broker:
        await broker.declare(QueueSpec(name="q"))
        await broker.send("q", b"x", delay=-3)
        async with broker.claimer("q", lease=30) as claimer:
            (delivery,) = await claimer.claim(wait=0)
            await claimer.release(delivery, delay=timedelta(days=-1))
            (delivery,) = await claimer.claim(wait=0)
            assert delivery.attempt == 2
            await claimer.put_back(delivery, delay=0.2)
            assert await claimer.claim(wait=0) == []
            (delivery,) = await both.drive(claimer.claim(wait=5))
            assert delivery.attempt == 2
            for wrong in (math.nan, 1e300):
                with pytest.raises(ConfigError, match="delay"):
                    await claimer.release(delivery, delay=wrong)
                with pytest.raises(ConfigError, match="delay"):
                    await claimer.put_back(delivery, delay=wrong)
            await claimer.ack(delivery)

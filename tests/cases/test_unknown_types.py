"""Messages whose worker is not here: a rolling deploy loses none, a typing error is found."""

from __future__ import annotations

import pytest

from brokerwq import Job, Message, RetryPolicy
from brokerwq.events import BrokerUnreachable
from tests.cases.lab import Place, counts, dead_letters, declare, send_raw

A_FEW = 20


@pytest.mark.slow
async def test_an_old_runner_leaves_new_types_to_a_new_one_uncounted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "20")
    await _rolling_deploy(place)


@pytest.mark.slow
async def test_a_rolling_deploy_at_sqlite_drops_nothing_either(
    real: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "20")
    await _rolling_deploy(real)


async def _rolling_deploy(both: Place) -> None:
    old, new = both.app(), both.app()
    seen: list[tuple[str, int]] = []

    @old.worker("q", name="a")
    async def old_type() -> None:
        seen.append(("a", 0))

    new.worker("q", name="a")(old_type.fn)

    @new.worker("q", name="b", retry=RetryPolicy(max_attempts=1))
    async def new_type(job: Job) -> None:
        seen.append(("b", job.attempt))

    await new_type.enqueue_many([new_type.call() for _ in range(A_FEW)])
    async with both.running(old):
        await both.passes(0.5)
        assert seen == []
        assert await counts(old, "q") == (0, 0, A_FEW, 0)
        async with both.running(new):
            await both.until(lambda: len(seen) == A_FEW)
    assert set(seen) == {("b", 1)}


@pytest.mark.slow
async def test_a_type_that_nobody_learns_is_dead_after_the_time_that_was_set(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "600")
    app = place.app()

    @app.worker("q", name="a")
    async def known() -> None:
        pass

    await declare(app, "q", lease=60.0)
    await send_raw(app, "q", Message(id="m", type="typo", body=b"{}"))
    started = place.clock.now()
    async with place.running(app) as running:
        await place.passes(590)
        assert await counts(app, "q") == (0, 0, 1, 0)
        await place.until(lambda: place.clock.now() - started > 650, step=5.0)
        report = await running.stop()
    assert dict(report.dead) == {"unknown-type": 1}
    assert report.failed == 0
    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert (letter.dead.reason, letter.dead.attempts) == ("unknown-type", 0)
    assert "typo" in letter.dead.error


@pytest.mark.slow
async def test_waiting_for_its_type_starts_with_the_first_sight_not_with_each_runner(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "100")
    app = place.app()

    @app.worker("q", name="a")
    async def known() -> None:
        pass

    await declare(app, "q", lease=60.0)
    await send_raw(app, "q", Message(id="m", type="typo", body=b"{}"))
    for _ in range(6):
        async with place.running(app):
            await place.passes(20)
    assert await counts(app, "q") == (0, 0, 0, 1)


@pytest.mark.slow
async def test_messages_of_unknown_types_do_not_hold_up_the_known(place: Place) -> None:
    app = place.app()
    done: list[float] = []

    @app.worker("q")
    async def known() -> None:
        done.append(place.clock.now())

    await declare(app, "q", lease=60.0)
    unknown = [Message(id=f"u{n}", type="typo", body=b"{}") for n in range(300)]
    await send_raw(app, "q", *unknown)
    await known.enqueue_many([known.call() for _ in range(30)])
    started = place.clock.now()
    async with place.running(app, slots=2):
        await place.until(lambda: len(done) == 30)
    assert done[-1] - started < 2


@pytest.mark.slow
async def test_an_alias_runs_what_was_enqueued_under_the_old_name(both: Place) -> None:
    before, after = both.app(), both.app()
    seen: list[str] = []

    @after.worker("q", name="thumbnail", aliases=["thumb"])
    async def thumbnail(job: Job) -> None:
        seen.append(job.type)

    await before.worker("q", name="thumb")(thumbnail.fn).enqueue()
    await thumbnail.enqueue()
    report = await both.drain(after)
    assert (sorted(seen), report.done) == (["thumb", "thumbnail"], 2)


async def test_a_message_without_type_on_a_queue_of_typed_workers_is_not_guessed_at(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "0")
    app = place.app()

    @app.worker("q")
    async def work() -> None:
        raise AssertionError

    await declare(app, "q", lease=60.0)
    await send_raw(app, "q", Message(id="m", body=b"{}"))
    report = await place.drain(app)
    assert dict(report.dead) == {"unknown-type": 1}


async def test_a_foreign_worker_leaves_typed_messages_alone(place: Place) -> None:
    app = place.app()
    seen: list[bytes] = []

    @app.worker("q", foreign=True)
    async def take(body: bytes) -> None:
        seen.append(body)

    await declare(app, "q", lease=60.0)
    await send_raw(app, "q", Message(id="", body=b"foreign"), Message(id="t", type="x", body=b"t"))
    async with place.running(app):
        await place.passes(1)
        assert seen == [b"foreign"]
        assert await counts(app, "q") == (0, 0, 1, 0)


@pytest.mark.slow
async def test_a_message_keeps_its_attempts_while_it_waits_for_its_type(place: Place) -> None:
    old, new = place.app(), place.app()
    attempts: list[int] = []

    @old.worker("q", name="a")
    async def other() -> None:
        pass

    @new.worker("q", name="b", retry=RetryPolicy(max_attempts=3, base=0.01))
    async def fails(job: Job) -> None:
        attempts.append(job.attempt)
        raise ValueError

    await fails.enqueue()
    async with place.running(new):
        await place.until(lambda: attempts, step=0.0)
    async with place.running(old):
        await place.passes(120)
    await place.drain(new)
    assert attempts == [1, 2, 3]
    assert place.events.of(BrokerUnreachable) == []

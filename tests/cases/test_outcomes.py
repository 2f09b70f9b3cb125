"""What a handler may answer or raise, and what becomes of its message and of the runner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

import anyio
import pytest

from brokerwq import App, DeadLetter, Discard, Done, Job, Message, Retry, RetryPolicy, Snooze
from brokerwq.backoff import Rule
from brokerwq.errors import ConfigError
from brokerwq.events import JobEnded, LeasesExtended
from brokerwq.outcomes import SNOOZE_LIMIT, Outcome
from tests.cases.lab import Place, counts, dead_letters, declare, reasons, send_raw

ONCE_MORE = RetryPolicy(max_attempts=2, base=0.01, jitter="none")


class FarOutError(BaseException):
    """Not an Exception."""


class MuteError(Exception):
    def __str__(self) -> str:
        msg = "no text"
        raise RuntimeError(msg)

    __repr__ = __str__


class LoudMuteError(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)

    __repr__ = __str__


class UnprintableError(Exception):
    def __str__(self) -> str:
        return "a\ud800b\x00c\x1b[31m"


class VastError(Exception):
    def __str__(self) -> str:
        return "x" * 10_000_000


class NotTextError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 -- on purpose


def _group() -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("two", [ValueError("a"), KeyError("b")])


ODD_ERRORS: dict[str, Callable[[], BaseException]] = {
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "BaseException": FarOutError,
    "TimeoutError": TimeoutError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "InvalidStateError": asyncio.InvalidStateError,
    "ExceptionGroup": _group,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("far out", [FarOutError()]),
    "CancelledGroup": lambda: BaseExceptionGroup("cancelled", [asyncio.CancelledError()]),
    "MuteError": MuteError,
    "LoudMuteError": LoudMuteError,
    "UnprintableError": UnprintableError,
    "VastError": VastError,
    "NotTextError": NotTextError,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
}


def _add_worker(app: App, kind: str, fail: Any, calls: list[tuple[str, int]]) -> Any:
    if kind == "async":

        @app.worker("q", name="work", retry=ONCE_MORE)
        async def work(job: Job, *, what: str) -> None:
            calls.append((what, job.attempt))
            if what == "bad":
                raise fail()

        return work

    @app.worker("q", name="work", retry=ONCE_MORE)
    def plain(job: Job, *, what: str) -> None:
        calls.append((what, job.attempt))
        if what == "bad":
            raise fail()

    return plain


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("error", ODD_ERRORS)
async def test_whatever_is_raised_is_one_failed_attempt_and_the_runner_goes_on(
    place: Place, kind: str, error: str
) -> None:
    place.thread_patience = 0.002 if kind == "plain" else 0.0
    app = place.app()
    calls: list[tuple[str, int]] = []
    work = _add_worker(app, kind, ODD_ERRORS[error], calls)

    await work.enqueue(what="bad")
    await work.enqueue(what="good")
    report = await place.drain(app, slots=1)

    assert sorted(calls) == [("bad", 1), ("bad", 2), ("good", 1)]
    assert (report.failed, report.done, dict(report.dead)) == (1, 1, {"failed": 1})
    assert (report.exit_code, report.stuck) == (0, 0)
    assert await counts(app, "q") == (0, 0, 0, 1)
    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert letter.dead.error_type
    assert len(letter.dead.error) <= 1000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_odd_errors_are_harmless_at_sqlite_too(both: Place, kind: str) -> None:
    both.thread_patience = 0.002 if kind == "plain" else 0.0
    app = both.app()
    calls: list[tuple[str, int]] = []

    def fail() -> BaseException:
        return list(ODD_ERRORS.values())[len(calls) % len(ODD_ERRORS)]()

    work = _add_worker(app, kind, fail, calls)
    await work.enqueue_many([work.call(what="bad") for _ in range(40)])
    await work.enqueue(what="good")
    report = await both.drain(app)

    assert (report.failed, report.done, dict(report.dead)) == (40, 1, {"failed": 40})
    assert await counts(app, "q") == (0, 0, 0, 40)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (lambda: SystemExit(3), 3),
        (SystemExit, 0),
        (lambda: SystemExit("bye"), 1),
        (lambda: BaseExceptionGroup("one", [SystemExit(5)]), 5),
        (KeyboardInterrupt, 130),
    ],
)
async def test_a_handler_that_asks_for_the_end_stops_the_runner_cleanly_with_its_code(
    both_slowly: Place, kind: str, error: Any, code: int
) -> None:
    both_slowly.thread_patience = 0.002 if kind == "plain" else 0.0
    app = both_slowly.app()
    calls: list[tuple[str, int]] = []
    work = _add_worker(app, kind, error, calls)

    await work.enqueue(what="bad")
    async with both_slowly.running(app, slots=1) as running:
        await running.ended()
    report = running.task.result()

    assert report.exit_code == code
    assert report.failed == 1
    assert calls == [("bad", 1)]
    ready, leased, delayed, dead = await counts(app, "q")
    assert (ready + delayed, leased, dead) == (1, 0, 0)


async def test_nothing_beats_for_a_message_after_its_handler_has_ended(place: Place) -> None:
    app = place.app(lease=3)
    calls: list[tuple[str, int]] = []
    work = _add_worker(app, "async", FarOutError, calls)

    await work.enqueue(what="bad")
    async with place.running(app):
        await place.until(lambda: len(calls) == 2)
        await place.passes(30)
    assert place.events.of(LeasesExtended) == []


# -- groups -----------------------------------------------------------------------------------


async def test_an_outcome_raised_inside_a_task_group_is_the_outcome(place: Place) -> None:
    app = place.app()

    @app.worker("q", retry=ONCE_MORE)
    async def work() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(_raise, Discard("not wanted"))

    await work.enqueue()
    report = await place.drain(app)
    assert (report.discarded, report.failed) == (1, 0)


async def test_nested_lone_groups_are_looked_into(place: Place) -> None:
    app = place.app()
    rules: dict[type[BaseException], Rule] = {LookupError: DeadLetter("not there")}

    @app.worker("q", retry=RetryPolicy(max_attempts=2, on=rules))
    async def work() -> None:
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            outer.start_soon(anyio.sleep, 0)
            inner.start_soon(_raise, KeyError("x"))

    await work.enqueue()
    report = await place.drain(app)
    assert dict(report.dead) == {"not there": 1}


async def test_a_group_of_several_is_a_failure_that_the_policy_may_name(place: Place) -> None:
    app = place.app()
    rules: dict[type[BaseException], Rule] = {BaseExceptionGroup: DeadLetter("several")}

    @app.worker("q", retry=RetryPolicy(max_attempts=2, on=rules))
    async def work() -> None:
        raise _group()

    await work.enqueue()
    report = await place.drain(app)
    assert dict(report.dead) == {"several": 1}


async def _raise(error: BaseException) -> NoReturn:
    raise error


# -- outcomes ---------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_snooze_spends_no_attempt(both: Place) -> None:
    app = both.app()
    attempts: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=2, base=0.01))
    async def work(job: Job) -> None:
        attempts.append(job.attempt)
        if len(attempts) <= 5:
            raise Snooze(0.02)

    await work.enqueue()
    report = await both.drain(app)
    assert attempts == [1] * 6
    assert (report.snoozed, report.done, report.failed) == (5, 1, 0)


async def test_a_snooze_between_failures_keeps_the_count(place: Place) -> None:
    app = place.app()
    attempts: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=3, base=0.01))
    async def work(job: Job, *, n: int) -> None:
        attempts.append(job.attempt)
        if len(attempts) % 2:
            raise Snooze(1)
        raise ValueError(n)

    await work.enqueue(n=1)
    report = await place.drain(app)
    assert attempts == [1, 1, 2, 2, 3, 3]
    assert dict(report.dead) == {"failed": 1}


async def test_a_message_cannot_be_snoozed_for_ever(place: Place) -> None:
    app = place.app()
    calls: list[float] = []

    @app.worker("q")
    async def work() -> None:
        calls.append(place.clock.now())
        raise Snooze(4)

    await declare(app, "q", lease=60.0)
    message = Message(id="m", type="work", body=b"{}", snoozed=SNOOZE_LIMIT - 10)
    await send_raw(app, "q", message)
    report = await place.drain(app)
    assert dict(report.dead) == {"snoozed-too-long": 1}
    assert [round(at - calls[0]) for at in calls] == [0, 4, 8]


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, -1, 0.0])
async def test_a_snooze_of_nothing_cannot_spin_for_ever(place: Place, after: float) -> None:
    app = place.app()
    calls = 0

    @app.worker("q")
    async def work() -> None:
        nonlocal calls
        calls += 1
        if calls < 200:
            raise Snooze(after)

    await work.enqueue()
    report = await place.drain(app)
    assert (report.snoozed, report.done) == (199, 1)


@pytest.mark.slow
async def test_a_discarded_message_is_gone_and_counted_apart(both: Place) -> None:
    app = both.app()

    @app.worker("q")
    async def work() -> None:
        raise Discard("stale")

    await work.enqueue()
    report = await both.drain(app)
    assert (report.discarded, report.done, report.dead_count) == (1, 0, 0)
    assert await counts(app, "q") == (0, 0, 0, 0)
    (ended,) = both.events.of(JobEnded)
    assert (ended.outcome, ended.reason) == ("discarded", "stale")


@pytest.mark.slow
async def test_a_dead_letter_carries_the_handlers_reason_and_the_error_behind_it(
    both: Place,
) -> None:
    app = both.app()

    @app.worker("q", retry=RetryPolicy(max_attempts=9))
    async def work(*, n: int) -> None:
        try:
            dict[int, int]()[n]
        except KeyError as error:
            reason = "no such customer"
            raise DeadLetter(reason) from error

    await work.enqueue(n=1)
    await both.drain(app)
    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert (letter.dead.reason, letter.dead.error_type) == ("no such customer", "KeyError")
    assert (letter.dead.attempts, letter.dead.error) == (1, "1")


@pytest.mark.parametrize(
    "reason",
    ["", " ", "x" * 5000, "a\ud800b", "two\nlines", "nul\x00", "ünï 🖼", None, 7, ValueError("v")],
)
async def test_any_reason_will_do(both_slowly: Place, reason: Any) -> None:
    app = both_slowly.app()
    wanted = [DeadLetter, Discard]

    @app.worker("q")
    async def work(*, n: int) -> None:
        raise wanted[n](reason)

    await work.enqueue(n=0)
    await work.enqueue(n=1)
    report = await both_slowly.drain(app)
    assert (report.dead_count, report.discarded) == (1, 1)
    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert letter.dead.reason


@pytest.mark.parametrize("rule", [DeadLetter, Discard, Retry])
async def test_a_class_named_as_a_rule_is_taken_as_its_plain_form(
    place: Place, rule: type[Outcome]
) -> None:
    app = place.app()

    @app.worker("q", retry=RetryPolicy(max_attempts=1, on={ValueError: rule}))
    async def work() -> None:
        msg = "the text"
        raise ValueError(msg)

    await work.enqueue()
    report = await place.drain(app)
    assert report.discarded + report.dead_count == 1
    for letter in await dead_letters(app, "q"):
        assert letter.dead is not None
        assert letter.dead.error == "the text"
        assert letter.dead.reason == ("ValueError" if rule is DeadLetter else "failed")


async def _later(_: BaseException) -> Outcome:
    return Retry()


@pytest.mark.parametrize(
    "rules",
    [
        {ValueError: Snooze},
        {ValueError: Outcome},
        {ValueError: "dead"},
        {ValueError: None},
        {ValueError: KeyError},
        {ValueError: _later},
        {"ValueError": Retry()},
        {int: Retry()},
        [(ValueError, Retry())],
    ],
)
async def test_a_rule_that_can_mean_nothing_is_refused_where_it_is_written(rules: Any) -> None:
    with pytest.raises(ConfigError, match="on"):
        RetryPolicy(on=rules)


async def test_an_outcome_class_may_be_raised_as_it_is(place: Place) -> None:
    app = place.app()

    @app.worker("q", retry=ONCE_MORE)
    async def work(*, what: str) -> None:
        raise {"retry": Retry, "done": Done, "discard": Discard}[what]

    for what in ("retry", "done", "discard"):
        await work.enqueue(what=what)
    report = await place.drain(app)
    assert (report.done, report.discarded, dict(report.dead)) == (1, 1, {"failed": 1})


async def test_a_retry_at_the_last_attempt_says_why_in_the_dead_letter(place: Place) -> None:
    app = place.app()

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def work() -> None:
        raise Retry(after=3, reason="the other side is busy")

    await work.enqueue()
    await place.drain(app)
    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert (letter.dead.reason, letter.dead.error) == ("failed", "the other side is busy")


@pytest.mark.parametrize(
    "value", [None, 0, "text", Done(), Retry(), DeadLetter("x"), [1], object()]
)
async def test_what_a_handler_returns_is_not_looked_at(place: Place, value: Any) -> None:
    app = place.app()

    @app.worker("q")
    async def work() -> Any:
        return value

    await work.enqueue()
    report = await place.drain(app)
    assert (report.done, await reasons(app, "q")) == (1, [])


async def test_a_handler_that_swallows_everything_is_done(place: Place) -> None:
    app = place.app()

    @app.worker("q")
    async def work() -> None:
        with contextlib.suppress(BaseException):
            await _raise(FarOutError())

    await work.enqueue()
    assert (await place.drain(app)).done == 1


async def test_a_handler_that_cancels_its_own_task_has_only_failed_itself(place: Place) -> None:
    app = place.app()
    done: list[int] = []

    @app.worker("q", retry=ONCE_MORE)
    async def work(*, n: int) -> None:
        if n == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        done.append(n)

    for n in range(6):
        await work.enqueue(n=n)
    report = await place.drain(app, slots=1)
    assert done == [1, 2, 3, 4, 5]
    assert (report.done, dict(report.dead)) == (5, {"failed": 1})


async def test_equal_faults_have_equal_digests(place: Place) -> None:
    app = place.app()

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def work(*, n: int) -> None:
        if n < 2:
            raise ValueError(n)
        raise KeyError(n)

    for n in range(3):
        await work.enqueue(n=n)
    await place.drain(app)
    letters = await dead_letters(app, "q")
    digests = [letter.dead.digest for letter in letters if letter.dead]
    assert len(digests) == 3
    assert len(set(digests)) == 2

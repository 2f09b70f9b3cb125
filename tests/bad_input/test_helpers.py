"""What users hang into the library, raising what it should not, or answering nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any, NoReturn

import pytest

from brokerwq import App, Job, RetryPolicy, Runner, RunReport
from brokerwq.errors import ConfigError, PayloadError

MESSAGES = 3


class OfNoKindError(BaseException):
    """What ``except Exception`` lets pass."""


def raises(error: BaseException) -> Callable[..., NoReturn]:
    def call(*_: object) -> NoReturn:
        raise error

    return call


ANYTHING = [RuntimeError("x"), OfNoKindError(), asyncio.CancelledError(), SystemExit(3)]


async def drained(app: App, *, fails: bool = False, **options: Any) -> RunReport:
    async def work(n: int) -> None:
        if fails:
            raise ValueError(n)

    untyped: Any = app
    worker = untyped.worker("q", **options)(work)
    async with app:
        for n in range(MESSAGES):
            await asyncio.wait_for(worker.enqueue(n), timeout=5)
    runner = Runner(app, log=False)
    report = await asyncio.wait_for(runner.drain(handle_signals=False), timeout=10)
    stats = await app.broker().inspect("q")
    assert (stats.ready.value, stats.leased.value, stats.delayed.value) == (0, 0, 0)
    return report


def an_app(**keywords: Any) -> App:
    policy = keywords.pop("retry", RetryPolicy(max_attempts=2, base=0.01, cap=0.01))
    return App(f"memory://{uuid.uuid4().hex}", retry=policy, **keywords)


@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
async def test_a_listener_may_raise_anything(error: BaseException) -> None:
    report = await drained(an_app(telemetry=raises(error)))
    assert report.done == MESSAGES


@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
async def test_a_rule_that_raises_decides_nothing(error: BaseException) -> None:
    policy = RetryPolicy(max_attempts=2, base=0.01, cap=0.01, on={ValueError: raises(error)})
    report = await drained(an_app(retry=policy), fails=True)
    assert report.dead == {"failed": MESSAGES}


@pytest.mark.slow
@pytest.mark.parametrize("answer", [None, "later", 3, ValueError, Ellipsis], ids=repr)
async def test_a_rule_that_answers_nonsense_decides_nothing(answer: Any) -> None:
    policy = RetryPolicy(max_attempts=2, base=0.01, cap=0.01, on={ValueError: lambda _: answer})
    report = await drained(an_app(retry=policy), fails=True)
    assert report.dead == {"failed": MESSAGES}


async def of_no_kind(_job: Job, _call_next: Any) -> object:
    raise OfNoKindError


def not_awaitable(_job: Job, _call_next: Any) -> object:
    return 5


def too_few(_job: Job) -> object:
    return 5


@pytest.mark.parametrize("layer", [of_no_kind, not_awaitable, too_few])
async def test_middleware_that_fails_fails_its_job_alone(layer: Any) -> None:
    report = await drained(an_app(middleware=[layer]))
    assert report.dead == {"failed": MESSAGES}


@pytest.mark.parametrize(
    "answer", [None, object(), float("nan"), "x" * 10**6, "\ud800", ""], ids=lambda a: repr(a)[:12]
)
async def test_a_key_that_is_none_is_refused_and_nothing_is_sent(answer: Any) -> None:
    app = an_app()

    def answers(_: object) -> Any:
        return answer

    with pytest.raises(PayloadError, match="key"):
        await drained(app, key=answers)
    async with app:
        assert await app.broker().queues() == []


async def test_a_lifespan_that_never_yields_says_so() -> None:
    app = an_app()

    @app.lifespan
    async def nothing() -> AsyncGenerator[None]:
        if app.workers == ():
            yield None

    with pytest.raises(ConfigError, match="nothing did not yield"):
        await drained(app)


async def test_a_lifespan_that_yields_twice_says_so_after_the_work() -> None:
    app = an_app()

    @app.lifespan
    async def twice() -> AsyncGenerator[None]:
        yield None
        yield None

    with pytest.raises(ConfigError, match="twice yielded a second time"):
        await drained(app)
    async with app:
        assert (await app.broker().inspect("q")).ready.value == 0


async def test_a_lifespan_that_catches_everything_hides_no_error() -> None:
    app = App("sqlite:////nowhere/at/all/q.db")

    @app.worker("q")
    async def work(n: int) -> None:
        raise AssertionError(n)

    @app.lifespan
    async def catches() -> AsyncGenerator[None]:
        with contextlib.suppress(BaseException):
            yield None

    with pytest.raises(ConfigError, match="no folder"):
        await Runner(app, log=False).run(handle_signals=False)

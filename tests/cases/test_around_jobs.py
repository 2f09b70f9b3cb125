"""What is around a job: middleware, its context, the lifespan, and answers that explode."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import anyio
import pytest

from brokerwq import Discard, Job, Next, RetryPolicy, Runner
from brokerwq.errors import ConfigError
from brokerwq.events import JobEnded
from brokerwq.testing.faults import Fail, Faults
from tests.cases.lab import Place, counts

# -- middleware -------------------------------------------------------------------------------


def _layer(name: str, order: list[str]) -> Callable[[Job, Next], Any]:
    async def layer(job: Job, call_next: Next) -> object:
        order.append(f"{name} in")
        try:
            return await call_next(job)
        finally:
            order.append(f"{name} out")

    return layer


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_first_middleware_is_the_outermost(both: Place, kind: str) -> None:
    both.thread_patience = 0.002
    order: list[str] = []
    app = both.app(middleware=[_layer("app 1", order), _layer("app 2", order)])
    around = [_layer("own 1", order), _layer("own 2", order)]

    if kind == "async":

        @app.worker("q", name="work", middleware=around)
        async def work() -> None:
            order.append("job")

        await work.enqueue()
    else:

        @app.worker("q", name="work", middleware=around)
        def plain() -> None:
            order.append("job")

        await plain.enqueue()
    await both.drain(app)
    names = ["app 1", "app 2", "own 1", "own 2"]
    assert order == [f"{n} in" for n in names] + ["job"] + [f"{n} out" for n in reversed(names)]


async def test_middleware_may_skip_fail_or_turn_a_failure_into_something_else(
    place: Place,
) -> None:
    calls: list[str] = []

    async def judge(job: Job, call_next: Next) -> object:
        what = job.headers.get("what", "")
        if what == "skip":
            return None
        if what == "fail":
            raise ValueError(what)
        try:
            return await call_next(job)
        except KeyError as error:
            raise Discard("no key") from error

    app = place.app(middleware=[judge])

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def work(job: Job) -> None:
        calls.append(job.headers["what"])
        if job.headers["what"] == "key":
            raise KeyError

    for what in ("skip", "fail", "key", "run"):
        await work.options(headers={"what": what}).enqueue()
    report = await place.drain(app)
    assert calls == ["key", "run"]
    assert (report.done, report.discarded, dict(report.dead)) == (2, 1, {"failed": 1})


async def test_context_variables_of_one_job_do_not_leak_into_the_next(place: Place) -> None:
    app = place.app()
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
    seen: list[str] = []

    async def login(job: Job, call_next: Next) -> object:
        seen.append(user.get())
        user.set(job.id)
        return await call_next(job)

    @app.worker("q", middleware=[login])
    async def work(job: Job) -> None:
        assert user.get() == job.id
        await place.clock.sleep(0.1)
        assert user.get() == job.id

    await work.enqueue_many([work.call() for _ in range(20)])
    report = await place.drain(app, slots=3)
    assert report.done == 20
    assert set(seen) == {"nobody"}


async def test_values_that_refuse_to_be_compared_do_no_harm(place: Place) -> None:
    odd: contextvars.ContextVar[object] = contextvars.ContextVar("odd", default=None)
    app = place.app()
    done: list[int] = []
    odd.set(Incomparable())

    @app.worker("q")
    async def work(*, n: int) -> None:
        odd.set(Incomparable())
        done.append(n)

    await work.enqueue_many([work.call(n=n) for n in range(10)])
    await place.drain(app, slots=2)
    assert sorted(done) == list(range(10))


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise ExplosiveError

    def __hash__(self) -> int:
        return 1


# -- lifespan ---------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_lifespan_is_entered_once_and_left_after_the_last_settle(both: Place) -> None:
    both.thread_patience = 0.002
    app = both.app()
    order: list[str] = []

    @app.lifespan
    async def resources() -> AsyncGenerator[dict[str, int]]:
        order.append("enter")
        yield {"answer": 42}
        settled = [event for event in both.events.of(JobEnded) if event.outcome == "done"]
        left = await counts(app, "q")
        order.append(f"leave after {len(settled)}, {sum(left)} left")

    @app.worker("q")
    async def work(job: Job) -> None:
        order.append(f"{job.state['answer']}")

    @app.worker("q")
    def plain(job: Job) -> None:
        order.append(f"{job.state['answer']}")

    await work.enqueue()
    await plain.enqueue()
    await both.drain(app)
    assert order == ["enter", "42", "42", "leave after 2, 0 left"]


async def test_a_lifespan_that_fails_at_the_start_claims_nothing(both: Place) -> None:
    app = both.app()

    @app.lifespan
    async def resources() -> AsyncGenerator[None]:
        if not app.workers[0].name:
            yield
        msg = "no database"
        raise RuntimeError(msg)

    @app.worker("q")
    async def work() -> None:
        raise AssertionError

    await work.enqueue()
    runner = Runner(app, log=False)
    with pytest.raises(RuntimeError, match="no database"):
        await both.drive(runner.run(handle_signals=False))
    assert runner.state == "stopped"
    assert await counts(app, "q") == (1, 0, 0, 0)


@pytest.mark.slow
async def test_a_lifespan_that_fails_at_the_end_says_so_after_the_work(both: Place) -> None:
    app = both.app()

    @app.lifespan
    async def resources() -> AsyncGenerator[None]:
        yield
        msg = "cannot close"
        raise RuntimeError(msg)

    @app.worker("q")
    async def work() -> None:
        pass

    await work.enqueue()
    with pytest.raises(RuntimeError, match="cannot close"):
        await both.drain(app)
    assert await counts(app, "q") == (0, 0, 0, 0)


async def test_a_lifespan_is_left_when_the_broker_refuses(place: Place) -> None:
    faults = Faults(clock=place.clock)
    app = place.faulty_app(faults)
    order: list[str] = []

    @app.lifespan
    async def resources() -> AsyncGenerator[None]:
        order.append("enter")
        try:
            yield
        finally:
            order.append("leave")

    @app.worker("q")
    async def work() -> None:
        pass

    faults.add("open", Fail(ConfigError("wrong")))
    with pytest.raises(ConfigError, match="wrong"):
        await place.drain(app)
    assert order == ["enter", "leave"]


async def _no_generator() -> None:
    pass


def _plain_generator() -> Any:
    yield


@pytest.mark.parametrize("wrong", [_no_generator, _plain_generator, 7, None])
def test_a_lifespan_that_is_none_is_refused_where_it_is_written(place: Place, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="lifespan"):
        place.app().lifespan(wrong)


async def test_a_stop_before_the_start_claims_nothing(both: Place) -> None:
    app = both.app()

    @app.worker("q")
    async def work() -> None:
        raise AssertionError

    await work.enqueue()
    runner = Runner(app, log=False)
    runner.stop(3)
    report = await both.drive(runner.run(handle_signals=False))
    assert report.exit_code == 3
    assert await counts(app, "q") == (1, 0, 0, 0)


# -- answers that explode ---------------------------------------------------------------------


class ExplosiveError(Exception):
    pass


class Explosive(Sequence[Any]):
    def __len__(self) -> int:
        raise ExplosiveError

    def __getitem__(self, _: Any) -> Any:
        raise ExplosiveError

    def __repr__(self) -> str:
        raise ExplosiveError


class Unshowable:
    def __repr__(self) -> str:
        raise ExplosiveError


@pytest.mark.parametrize("answer", [Explosive(), Unshowable(), [Unshowable()], [Explosive()]])
async def test_an_answer_that_explodes_hurts_only_its_own_batch(place: Place, answer: Any) -> None:
    app = place.app()

    @app.worker("q", batch=1, retry=RetryPolicy(max_attempts=1))
    async def work(numbers: list[int]) -> Any:
        return answer if numbers == [0] else None

    await work.enqueue_many(range(2))
    report = await place.drain(app, slots=1)
    assert (report.done, dict(report.dead)) == (1, {"failed": 1})


async def test_what_is_finished_although_the_stop_cancelled_it_is_done(place: Place) -> None:
    app = place.app()
    begun: list[int] = []

    @app.worker("q")
    async def work() -> None:
        begun.append(1)
        with anyio.CancelScope(shield=True):
            await place.clock.sleep(3.0)

    await work.enqueue()
    async with place.running(app, grace=1.0) as running:
        await place.until(lambda: begun)
        report = await running.stop()

    assert (report.done, report.put_back) == (1, 0)
    assert await counts(app, "q") == (0, 0, 0, 0)

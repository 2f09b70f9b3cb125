"""A worker under test that waits for ever: the test ends all the same, and says why."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from brokerwq import App, RetryPolicy, Runner
from brokerwq.testing import HangError, TestApp


class Hang:
    def __init__(self, tested: TestApp) -> None:
        self.tested = tested
        self.began = asyncio.Event()
        self.ended: list[int] = []

        @tested.app.worker("endless")
        async def wait(*, n: int) -> None:
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.append(n)

        self.wait = wait


@pytest.fixture
async def hang() -> AsyncGenerator[Hang]:
    tested = TestApp(App("memory://"))
    hang = Hang(tested)
    async with tested:
        yield hang


Begin = Callable[[TestApp], Awaitable[object]]
WAYS: dict[str, Begin] = {
    "drain": lambda tested: tested.drain(),
    "advance": lambda tested: tested.advance(5),
    "drive": lambda tested: tested.drive(Runner(tested.app, grace=3600).run(handle_signals=False)),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_what_is_cancelled_ends_at_once_and_leaves_nothing_running(
    hang: Hang, way: str
) -> None:
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    await hang.wait.enqueue(n=1)
    task = asyncio.ensure_future(WAYS[way](hang.tested))
    await asyncio.wait_for(hang.began.wait(), 10)

    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=10)

    assert done
    assert task.cancelled()
    assert hang.ended == [1]
    assert asyncio.all_tasks() <= tasks
    assert {each for each in threading.enumerate() if not each.daemon} <= threads


@pytest.mark.slow
@pytest.mark.parametrize("way", ["drain", "advance"])
async def test_a_worker_that_waits_for_ever_is_named(hang: Hang, way: str) -> None:
    hang.tested.patience, hang.tested.hang_patience = 0.001, 0.05
    id_ = await hang.wait.enqueue(n=1)

    with pytest.raises(HangError, match=rf"^wait \(message {id_}\): waits for something"):
        await WAYS[way](hang.tested)

    assert hang.ended == [1]


@pytest.mark.slow
async def test_who_waits_for_the_clock_or_a_time_limit_or_a_message_is_not_accused(
    hang: Hang,
) -> None:
    hang.tested.patience, hang.tested.hang_patience = 0.001, 0.01
    app, log = hang.tested.app, list[str]()
    is_called = asyncio.Event()

    @app.worker("sleeps")
    async def sleep(*, n: int) -> None:
        await app.clock.sleep(2000)
        log.append(f"slept {n}")

    @app.worker("limited", timeout=2000, retry=RetryPolicy(max_attempts=1))
    async def limited(*, n: int) -> None:
        log.append(f"began {n}")
        await asyncio.Event().wait()

    @app.worker("waits")
    async def called(*, n: int) -> None:
        await is_called.wait()
        log.append(f"was called {n}")

    @app.worker("calls")
    async def call(*, n: int) -> None:
        log.append(f"calls {n}")
        is_called.set()

    await sleep.enqueue(n=1)
    assert (await hang.tested.drain()).done == 1
    await limited.enqueue(n=2)
    assert (await hang.tested.drain()).dead == {"timeout": 1}
    await called.enqueue(n=3)
    await call.options(delay=2000).enqueue(n=4)
    assert (await hang.tested.drain(include_delayed=True)).done == 2
    assert log == ["slept 1", "began 2", "calls 4", "was called 3"]


@pytest.mark.slow
async def test_a_plain_function_is_waited_for(hang: Hang) -> None:
    hang.tested.patience, hang.tested.hang_patience = 0.001, 0.01

    @hang.tested.app.worker("plain")
    def work(*, n: int) -> None:
        time.sleep(0.3)
        hang.ended.append(n)

    await work.enqueue(n=1)

    await hang.tested.drain()

    assert hang.ended == [1]

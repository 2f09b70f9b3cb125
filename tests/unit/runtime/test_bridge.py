from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from brokerwq._runtime.bridge import ThreadBridge


@pytest.fixture
async def bridge() -> AsyncGenerator[ThreadBridge]:
    bridge = ThreadBridge()
    yield bridge
    await bridge.aclose(5.0)


async def test_call_runs_on_the_other_thread_and_answers_here(bridge: ThreadBridge) -> None:
    async def where(word: str) -> tuple[str, str]:
        return word, threading.current_thread().name

    assert await bridge.call(where, "x") == ("x", "brokerwq-io")


async def test_error_comes_back_as_it_was_raised(bridge: ThreadBridge) -> None:
    async def fail() -> None:
        msg = "no"
        raise LookupError(msg)

    with pytest.raises(LookupError, match="no"):
        await bridge.call(fail)


async def test_cancelling_the_answer_cancels_the_call(bridge: ThreadBridge) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    answer = bridge.call(wait)
    assert await asyncio.to_thread(begun.wait, 5)
    answer.cancel()
    assert await asyncio.to_thread(ended.wait, 5)


async def test_calls_go_on_while_the_callers_loop_is_blocked(bridge: ThreadBridge) -> None:
    ticked = threading.Event()

    async def tick() -> None:
        ticked.set()

    answer = bridge.call(tick)
    # The test's own loop stands still in this wait.
    assert ticked.wait(5)
    await answer


async def test_notification_arrives_on_the_callers_loop(bridge: ThreadBridge) -> None:
    heard = asyncio.Event()

    async def notify() -> None:
        bridge.notify(heard.set)

    await bridge.call(notify)
    await asyncio.wait_for(heard.wait(), 5)


async def test_closing_ends_the_thread_and_what_still_runs_there(bridge: ThreadBridge) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    answer = bridge.call(wait)
    assert await asyncio.to_thread(begun.wait, 5)
    await bridge.aclose(5.0)

    assert ended.is_set()
    assert "brokerwq-io" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(asyncio.CancelledError):
        await answer

"""One call for all who want it made at the same time."""

from __future__ import annotations

import asyncio

import pytest

from brokerwq._runtime.shared_call import SharedCall


class Gate:
    """A call that lasts until it is told how to end."""

    def __init__(self) -> None:
        self.begun = 0
        self.running = 0
        self.ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cleaned = asyncio.Event()
        self.cleaned.set()

    async def __call__(self) -> None:
        self.begun += 1
        self.running += 1
        assert self.running == 1
        try:
            await asyncio.shield(self.ends)
        finally:
            await self.cleaned.wait()
            self.running -= 1


async def _waiters(shared: SharedCall, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(shared.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_all_who_come_meanwhile_share_one_call() -> None:
    gate = Gate()
    tasks = await _waiters(SharedCall(gate), 5)
    gate.ends.set_result(None)
    await asyncio.gather(*tasks)
    assert gate.begun == 1


async def test_all_of_them_hear_of_its_failure_and_the_next_one_tries_again() -> None:
    gate = Gate()
    shared = SharedCall(gate)
    tasks = await _waiters(shared, 3)
    gate.ends.set_exception(ConnectionError("gone"))
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["gone"] * 3
    gate.ends = asyncio.get_running_loop().create_future()
    (task,) = await _waiters(shared, 1)
    gate.ends.set_result(None)
    await task
    assert gate.begun == 2


async def test_who_gives_up_does_not_end_it_for_the_others() -> None:
    gate = Gate()
    tasks = await _waiters(SharedCall(gate), 3)
    for task in tasks[:2]:
        task.cancel()
    await asyncio.wait(tasks[:2])
    assert gate.running == 1
    gate.ends.set_result(None)
    await tasks[2]
    assert gate.begun == 1


async def test_it_ends_when_nobody_waits_any_more_and_is_made_anew_after_that() -> None:
    gate = Gate()
    shared = SharedCall(gate)
    tasks = await _waiters(shared, 2)
    gate.cleaned.clear()
    for task in tasks:
        task.cancel()
    (late,) = await _waiters(shared, 1)
    assert gate.begun == 1  # the first one is still being left
    gate.cleaned.set()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    gate.ends.set_result(None)
    await late
    assert gate.begun == 2
    assert gate.running == 0

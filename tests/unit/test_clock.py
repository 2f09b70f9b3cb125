from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerwq.clock import SYSTEM_CLOCK, move_on_after
from brokerwq.errors import ConfigError
from brokerwq.testing import FakeClock


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = FakeClock(now=10.0, utcnow=datetime(2030, 1, 1, tzinfo=UTC))

    clock.advance(2.5)

    assert clock.now() == 12.5
    assert clock.utcnow() == datetime(2030, 1, 1, 0, 0, 2, 500_000, tzinfo=UTC)


def test_advance_takes_a_timedelta() -> None:
    clock = FakeClock(now=0.0)

    clock.advance(timedelta(minutes=1))

    assert clock.now() == 60.0


def test_wall_clock_jumps_without_moving_the_monotonic_one() -> None:
    clock = FakeClock(now=10.0, utcnow=datetime(2030, 1, 1, tzinfo=UTC))
    fired: list[float] = []
    clock.call_at(11.0, lambda: fired.append(clock.now()))

    clock.jump_wall(timedelta(days=-400))

    assert clock.now() == 10.0
    assert clock.utcnow() == datetime(2030, 1, 1, tzinfo=UTC) - timedelta(days=400)
    assert not fired


@pytest.mark.parametrize("seconds", [math.nan, math.inf, "1", True])
def test_advance_refuses_what_is_no_duration(seconds: float) -> None:
    with pytest.raises(ConfigError):
        FakeClock().advance(seconds)


def test_advance_refuses_to_run_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(-1)


@pytest.mark.slow
@given(st.lists(st.floats(0, 100), max_size=30), st.lists(st.floats(0, 40), max_size=10))
def test_callbacks_run_once_in_order_of_time_at_their_own_time(
    whens: list[float], steps: list[float]
) -> None:
    clock = FakeClock(now=0.0)
    fired: list[tuple[float, float]] = []

    def note(when: float) -> Callable[[], None]:
        return lambda: fired.append((when, clock.now()))

    for when in whens:
        clock.call_at(when, note(when))

    for step in [0.0, *steps]:
        clock.advance(step)

    assert [when for when, _ in fired] == sorted(when for when in whens if when <= clock.now())
    assert all(seen == when for when, seen in fired)
    assert clock.pending == len(whens) - len(fired)


def test_a_callback_armed_by_a_callback_runs_within_the_same_advance() -> None:
    clock = FakeClock(now=0.0)
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(clock.now())
        clock.call_at(clock.now() + 1, tick)

    clock.call_at(1.0, tick)
    clock.advance(3)

    assert ticks == [1.0, 2.0, 3.0]
    assert clock.next_at == 4.0


def test_cancelled_callbacks_do_not_run_and_do_not_pile_up() -> None:
    clock = FakeClock(now=0.0)
    fired: list[int] = []
    kept = clock.call_at(5.0, lambda: fired.append(1))
    for _ in range(10_000):
        clock.call_at(4.0, lambda: fired.append(2)).cancel()

    assert clock.pending == 1
    assert len(clock._timers) < 200  # pyright: ignore[reportPrivateUsage]
    clock.advance(5)

    assert fired == [1]
    kept.cancel()
    kept.cancel()
    assert clock.pending == 0


def test_an_error_in_a_callback_reaches_whoever_advances() -> None:
    clock = FakeClock(now=0.0)
    fired: list[int] = []

    def burst() -> None:
        raise ZeroDivisionError

    clock.call_at(1.0, burst)
    clock.call_at(2.0, lambda: fired.append(1))

    with pytest.raises(ZeroDivisionError):
        clock.advance(5)
    assert clock.now() == 1.0
    clock.advance(5)
    assert fired == [1]


async def test_sleepers_wake_in_order_of_time_each_at_its_own() -> None:
    clock = FakeClock(now=0.0)
    woken: list[tuple[float, float]] = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.now()))

    async with anyio.create_task_group() as group:
        for seconds in (3.0, 1.0, 2.0, 2.0, 0.5):
            group.start_soon(sleeper, seconds)
        await clock.advance_and_settle(2.5)
        assert woken == [(0.5, 0.5), (1.0, 1.0), (2.0, 2.0), (2.0, 2.0)]
        await clock.advance_and_settle(1)

    assert woken[-1] == (3.0, 3.0)


async def test_a_task_that_sleeps_again_and_again_meets_every_tick() -> None:
    clock = FakeClock(now=0.0)
    ticks: list[float] = []

    async def beat() -> None:
        while True:
            await clock.sleep(1)
            ticks.append(clock.now())

    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        await clock.advance_and_settle(5.5)
        group.cancel_scope.cancel()

    assert ticks == [1.0, 2.0, 3.0, 4.0, 5.0]


async def test_a_cancelled_sleeper_leaves_nothing_behind() -> None:
    clock = FakeClock(now=0.0)
    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(clock.sleep, 10)
        await clock.settle()
        assert clock.pending == 50
        group.cancel_scope.cancel()

    assert clock.pending == 0
    clock.advance(20)


@pytest.mark.parametrize("seconds", [0, -1])
async def test_sleeping_for_nothing_gives_others_a_turn(seconds: float) -> None:
    clock = FakeClock()
    others: list[int] = []
    asyncio.get_running_loop().call_soon(lambda: others.append(1))

    await clock.sleep(seconds)

    assert others == [1]


async def test_a_callback_for_the_past_runs_at_the_next_turn_without_advance() -> None:
    clock = FakeClock(now=100.0)
    fired: list[int] = []
    clock.call_at(99.0, lambda: fired.append(1))
    clock.call_at(99.0, lambda: fired.append(2)).cancel()

    assert not fired
    await clock.settle()

    assert fired == [1]


async def test_move_on_after_cancels_on_the_fake_clock() -> None:
    clock = FakeClock()

    async def work() -> bool:
        with move_on_after(clock, 30) as scope:
            await clock.sleep(1000)
        return scope.cancelled_caught

    started = clock.now()

    assert await clock.drive(work())
    assert clock.now() == started + 30
    assert clock.pending == 0


async def test_drive_passes_days_in_no_time() -> None:
    clock = FakeClock(now=0.0)

    async def work() -> float:
        for _ in range(30):
            await clock.sleep(86_400)
        return clock.now()

    started = SYSTEM_CLOCK.now()

    assert await clock.drive(work()) == 30 * 86_400
    assert SYSTEM_CLOCK.now() - started < 5


async def test_drive_raises_what_the_work_raises() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await FakeClock().drive(work())


async def test_drive_waits_for_a_thread_when_nobody_sleeps() -> None:
    gate = threading.Event()

    async def work() -> bool:
        return await asyncio.to_thread(gate.wait, 30)

    threading.Timer(0.02, gate.set).start()

    assert await FakeClock().drive(work())


async def test_drive_with_a_threshold_lets_a_thread_finish_before_time_moves() -> None:
    clock = FakeClock(now=0.0)
    gate = threading.Event()

    async def work() -> bool:
        with move_on_after(clock, 60) as scope:
            await asyncio.to_thread(gate.wait, 30)
        return scope.cancelled_caught

    threading.Timer(0.02, gate.set).start()

    assert not await clock.drive(work(), threshold=5.0)
    assert clock.now() == 0.0


async def test_a_cancelled_drive_ends_its_work() -> None:
    clock = FakeClock()
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    driving = asyncio.create_task(clock.drive(work()))
    await clock.settle()
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving

    assert ended.is_set()


async def test_a_callback_runs_on_the_loop_that_arranged_it() -> None:
    clock = FakeClock(now=0.0)
    armed = threading.Event()
    seen: list[tuple[str, float]] = []

    async def other() -> None:
        armed.set()
        await clock.sleep(10)
        seen.append((threading.current_thread().name, clock.now()))
        await clock.sleep(10)
        seen.append((threading.current_thread().name, clock.now()))

    thread = threading.Thread(target=lambda: asyncio.run(other()), name="elsewhere")
    thread.start()
    await asyncio.to_thread(armed.wait, 10)
    while not clock.pending:
        await SYSTEM_CLOCK.sleep(0.001)

    await clock.advance_and_settle(25)
    await asyncio.to_thread(thread.join, 10)

    assert seen == [("elsewhere", 10.0), ("elsewhere", 20.0)]
    clock.advance(100)


async def test_a_loop_that_never_rests_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerwq.testing.clock._MAX_TURNS", 50)

    async def spin() -> None:
        while True:
            await SYSTEM_CLOCK.sleep(0)

    async with anyio.create_task_group() as group:
        group.start_soon(spin)
        with pytest.raises(RuntimeError, match="spins"):
            await FakeClock().settle()
        group.cancel_scope.cancel()


async def test_system_clock_calls_back_on_the_running_loop() -> None:
    rung = asyncio.Event()

    SYSTEM_CLOCK.call_at(SYSTEM_CLOCK.now() + 0.001, rung.set)

    with anyio.fail_after(10):
        await rung.wait()


async def test_system_clock_does_not_call_what_was_taken_back() -> None:
    rung = asyncio.Event()

    SYSTEM_CLOCK.call_at(SYSTEM_CLOCK.now(), rung.set).cancel()
    await SYSTEM_CLOCK.sleep(0.01)

    assert not rung.is_set()


def test_system_wall_clock_is_aware() -> None:
    assert SYSTEM_CLOCK.utcnow().utcoffset() == timedelta(0)


async def test_move_on_after_none_never_cancels() -> None:
    with move_on_after(SYSTEM_CLOCK, None) as scope:
        await SYSTEM_CLOCK.sleep(0)

    assert not scope.cancelled_caught

from __future__ import annotations

import asyncio

import pytest

from brokerwq._runtime.execution import Work
from brokerwq._runtime.route import Route
from brokerwq._runtime.slots import Slots
from brokerwq.testing import FakeClock
from tests.unit.runtime.fakes import route


class Bench:
    """Works end when the test says so."""

    def __init__(self, total: int, *, read_ahead: bool = True) -> None:
        self.clock = FakeClock()
        self.started: list[Work] = []
        self.gates: dict[Work, asyncio.Event] = {}
        self.stale: list[Work] = []
        self.crashes: list[BaseException] = []
        self.slots = Slots(
            total,
            self._run,
            clock=self.clock,
            read_ahead=read_ahead,
            stale=self.stale.extend,
            crashed=self.crashes.append,
        )

    async def _run(self, work: Work) -> None:
        self.started.append(work)
        gate = self.gates[work] = asyncio.Event()
        await gate.wait()

    def put(self, of: Route) -> Work:
        work = Work(of, [])
        self.slots.put(work)
        return work

    async def end(self, work: Work) -> None:
        self.gates[work].set()
        await self.clock.settle()


async def test_no_more_run_than_there_are_slots() -> None:
    bench = Bench(2)
    works = [bench.put(route()) for _ in range(5)]
    await bench.clock.settle()
    assert bench.started == works[:2]

    await bench.end(works[0])

    assert bench.started == works[:3]


async def test_works_run_in_the_order_in_which_they_came() -> None:
    bench = Bench(1)
    works = [bench.put(route()) for _ in range(4)]
    for work in works:
        await bench.clock.settle()
        await bench.end(work)

    assert bench.started == works
    assert bench.slots.is_at_rest


async def test_worker_with_a_limit_of_its_own_leaves_slots_to_the_others() -> None:
    bench = Bench(4)
    narrow, wide = route(slots=1), route()
    first, second = bench.put(narrow), bench.put(narrow)
    other = bench.put(wide)
    await bench.clock.settle()
    assert bench.started == [first, other]

    await bench.end(first)

    assert bench.started == [first, other, second]


async def test_demand_is_what_is_free() -> None:
    bench = Bench(3)
    assert bench.slots.free == 3
    work = bench.put(route())
    bench.slots.reserved = 1
    assert bench.slots.free == 1
    bench.slots.reserved = 0
    await bench.clock.settle()
    await bench.clock.advance_and_settle(60)

    await bench.end(work)

    assert bench.slots.free == 3  # a job of a minute: no read-ahead


async def test_short_jobs_are_read_ahead_of() -> None:
    bench = Bench(2)
    for _ in range(5):
        work = bench.put(route())
        await bench.clock.settle()
        await bench.clock.advance_and_settle(0.01)
        await bench.end(work)

    assert bench.slots.free == 2 + 10  # two slots begin ten jobs of 10 ms within 50 ms


async def test_nothing_is_read_ahead_where_a_return_would_count() -> None:
    bench = Bench(2, read_ahead=False)
    work = bench.put(route())
    await bench.clock.settle()
    await bench.end(work)

    assert bench.slots.free == 2


async def test_what_waits_too_long_is_handed_back() -> None:
    bench = Bench(1)
    running, waiting = bench.put(route()), bench.put(route())
    await bench.clock.settle()

    await bench.clock.advance_and_settle(1.01)

    assert bench.stale == [waiting]
    await bench.end(running)
    assert bench.started == [running]
    assert bench.slots.is_at_rest


async def test_limited_worker_goes_on_after_its_waiting_job_was_handed_back() -> None:
    bench = Bench(1)
    other, narrow = bench.put(route()), route(slots=1)
    bench.put(narrow)
    capped = bench.put(narrow)
    await bench.clock.settle()
    await bench.clock.advance_and_settle(1.01)

    await bench.end(other)

    assert bench.started == [other, capped]


async def test_unstarted_work_can_be_taken_back_whole() -> None:
    bench = Bench(1)
    narrow = route(slots=1)
    running = bench.put(narrow)
    waiting = [bench.put(narrow), bench.put(route())]
    await bench.clock.settle()

    assert sorted(map(id, bench.slots.take_unstarted())) == sorted(map(id, waiting))
    await bench.end(running)
    assert bench.slots.is_at_rest


async def test_those_who_wait_for_room_are_served_in_turn() -> None:
    bench = Bench(1)
    work = bench.put(route())
    await bench.clock.settle()
    served: list[str] = []

    async def wait(name: str) -> None:
        await bench.slots.wait_until_free()
        served.append(name)
        bench.slots.reserved += 1

    tasks = [asyncio.ensure_future(wait(name)) for name in "ab"]
    await bench.clock.settle()
    assert served == []
    await bench.clock.advance_and_settle(60)
    await bench.end(work)
    assert served == ["a"]
    bench.slots.reserved -= 1
    bench.slots.freed()
    await bench.clock.settle()

    assert served == ["a", "b"]
    await asyncio.gather(*tasks)


async def test_slot_that_fails_is_reported() -> None:
    bench = Bench(1)

    async def broken(_work: Work) -> None:
        raise ZeroDivisionError

    slots = Slots(
        1,
        broken,
        clock=bench.clock,
        read_ahead=False,
        stale=bench.stale.extend,
        crashed=bench.crashes.append,
    )
    slots.put(Work(route(), []))
    await bench.clock.settle()

    assert [type(error) for error in bench.crashes] == [ZeroDivisionError]


@pytest.mark.slow
@pytest.mark.parametrize("patience", [0.05])
async def test_closing_counts_the_handlers_that_do_not_end(patience: float) -> None:
    clock = FakeClock()
    release = asyncio.Event()

    async def stubborn(_work: Work) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    slots = Slots(
        1, stubborn, clock=clock, read_ahead=False, stale=lambda _: None, crashed=lambda _: None
    )
    slots.put(Work(route(), []))
    await clock.settle()

    assert await slots.aclose(patience) == 1
    release.set()
    await clock.settle()

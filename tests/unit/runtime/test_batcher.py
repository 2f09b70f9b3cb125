from __future__ import annotations

import asyncio

from brokerwq._runtime.batcher import Batcher


class Calls:
    """Collects batches; each call ends when the test opens its gate."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gates: list[asyncio.Event] = []
        self.most_at_once = 0
        self._now = 0

    async def __call__(self, batch: list[int]) -> None:
        gate = asyncio.Event()
        self.batches.append(batch)
        self.gates.append(gate)
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await gate.wait()
        self._now -= 1


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_lone_item_is_sent_at_once() -> None:
    calls = Calls()
    batcher = Batcher(calls, max_items=10, max_calls=1)

    batcher.put(1)
    await turn()

    assert calls.batches == [[1]]


async def test_items_of_one_turn_ride_one_call() -> None:
    calls = Calls()
    batcher = Batcher(calls, max_items=10, max_calls=4)

    for n in range(5):
        batcher.put(n)
    await turn()

    assert calls.batches == [[0, 1, 2, 3, 4]]


async def test_what_arrives_during_the_calls_rides_the_next_one() -> None:
    calls = Calls()
    batcher = Batcher(calls, max_items=10, max_calls=1)
    batcher.put(1)
    await turn()

    batcher.put(2)
    batcher.put(3)
    await turn()
    assert calls.batches == [[1]]
    calls.gates[0].set()
    await turn()

    assert calls.batches == [[1], [2, 3]]


async def test_more_than_fits_one_call_is_spread_over_several() -> None:
    calls = Calls()
    batcher = Batcher(calls, max_items=2, max_calls=3)

    for n in range(9):
        batcher.put(n)
    await turn()
    assert calls.batches == [[0, 1], [2, 3], [4, 5]]
    for _ in range(3):
        for gate in calls.gates:
            gate.set()
        await turn()

    assert sorted(n for batch in calls.batches for n in batch) == list(range(9))
    assert calls.most_at_once == 3
    assert batcher.is_idle


async def test_item_put_just_as_a_call_ends_is_not_forgotten() -> None:
    calls = Calls()
    batcher = Batcher(calls, max_items=10, max_calls=1)
    batcher.put(1)
    await turn()

    calls.gates[0].set()
    await asyncio.sleep(0)
    batcher.put(2)
    await turn()

    assert calls.batches == [[1], [2]]


async def test_closing_cancels_what_is_under_way() -> None:
    calls = Calls()
    batcher = Batcher(calls, max_items=10, max_calls=1)
    batcher.put(1)
    await turn()

    await batcher.aclose()

    assert batcher.is_idle

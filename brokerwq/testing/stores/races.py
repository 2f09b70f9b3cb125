"""Many at once: other objects, event loops and threads, on one key."""

from __future__ import annotations

import asyncio
import threading

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.idempotency.record import Busy, Claimed, Completed, State
from brokerwq.idempotency.store import Store
from brokerwq.testing.stores.bench import StoreBench
from brokerwq.testing.stores.catalogue import check
from brokerwq.testing.stores.records import KEEP, LONG, record_of

ROUNDS = 200


@check()
async def of_many_claims_at_once_one_is_granted(bench: StoreBench) -> None:
    """From several processes, as it were."""
    stores = [bench.store, *(bench.again() for _ in range(3))]

    answers = await asyncio.gather(
        *(store.claim(bench.claim(lease=LONG)) for store in stores for _ in range(5))
    )

    assert sum(isinstance(answer, Claimed) for answer in answers) == 1, answers
    assert sum(isinstance(answer, Busy) for answer in answers) == 19, answers


@check()
async def of_two_that_take_over_at_once_one_succeeds(bench: StoreBench) -> None:
    """Every time of many: no reading first and writing after."""
    other = bench.again()
    for key in range(ROUNDS):
        claim, _ = await bench.claimed(key, lease=LONG)
        await bench.store.extend(claim.key, claim.owner, 0.0)
    await bench.passes(0.02)

    async def race(key: int) -> None:
        both = await asyncio.gather(
            *(store.claim(bench.claim(key, lease=LONG)) for store in (bench.store, other))
        )
        winners = [answer for answer in both if isinstance(answer, Claimed)]
        assert len(winners) == 1, both
        assert winners[0].takeover, both

    for start in range(0, ROUNDS, 10):
        await asyncio.gather(*(race(key) for key in range(start, start + 10)))


@check()
async def a_completion_and_a_takeover_cannot_both_succeed(bench: StoreBench) -> None:
    """Whichever comes first, the other one is refused, and a finished result stands."""
    other = bench.again()

    async def race(key: int) -> None:
        claim, _ = await bench.claimed(key, lease=LONG)
        await bench.store.extend(claim.key, claim.owner, 0.0)
        await bench.passes(0.005)
        is_done, answer = await asyncio.gather(
            bench.store.complete(claim.key, claim.owner, KEEP, '"first"'),
            other.claim(bench.claim(key, lease=LONG)),
        )
        assert is_done != isinstance(answer, Claimed), (is_done, answer)
        record = await record_of(bench, claim.key)
        if is_done:
            assert (record.state, record.result) == (State.COMPLETED, '"first"')
            assert await other.claim(bench.claim(key)) == Completed(result='"first"')

    for start in range(0, 40, 10):
        await asyncio.gather(*(race(key) for key in range(start, start + 10)))


@check()
async def an_owner_that_extends_is_never_taken_over(bench: StoreBench) -> None:
    """Copies that come while it works are told that it is busy, however long it takes."""
    claim, _ = await bench.claimed()
    for _ in range(8):
        await bench.passes(bench.lease / 2)
        assert await bench.store.extend(claim.key, claim.owner, bench.lease)
        answer = await bench.store.claim(bench.claim(message_id="m2"))
        assert isinstance(answer, Busy), answer

    assert await bench.store.complete(claim.key, claim.owner, KEEP, None)


@check()
async def it_serves_several_event_loops(bench: StoreBench) -> None:
    """One object, used from the loops of two threads."""
    claim, _ = await bench.claimed(lease=LONG)
    answers: list[object] = []

    async def elsewhere() -> None:
        answers.append(await bench.store.extend(claim.key, claim.owner, LONG))
        answers.append(isinstance(await bench.store.claim(bench.claim()), Busy))
        await bench.store.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(thread.join)

    assert answers == [True, True], answers
    assert await bench.store.complete(claim.key, claim.owner, KEEP, None)


@check()
async def many_keys_at_once_are_claimed_and_completed(bench: StoreBench) -> None:
    """More jobs than connections take their turns."""

    async def work(key: int) -> None:
        claim, _ = await bench.claimed(key, lease=LONG)
        assert await bench.store.complete(claim.key, claim.owner, KEEP, str(key))

    await asyncio.gather(*(work(key) for key in range(60)))

    done = await bench.store.list(100, state=State.COMPLETED, worker=None)
    assert sorted(int(record.result or "") for record in done) == list(range(60))


@check()
async def it_can_be_used_again_after_it_was_closed(bench: StoreBench) -> None:
    """``aclose`` frees; the next call opens."""
    await bench.claimed(lease=LONG)
    await bench.store.aclose()

    await bench.store.check()

    assert isinstance(await bench.store.claim(bench.claim()), Busy)


@check()
async def a_call_that_is_cancelled_spoils_nothing(bench: StoreBench) -> None:
    """What comes after a cancelled call is answered as ever."""
    store: Store = bench.store
    tasks = [asyncio.ensure_future(store.claim(bench.claim(key))) for key in range(20)]
    await SYSTEM_CLOCK.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    for key in range(100, 120):
        await bench.claimed(key, lease=LONG)

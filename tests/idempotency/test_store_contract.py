"""What every store promises about records; see ``brokerwq.idempotency.store``."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from brokerwq.idempotency import State
from brokerwq.idempotency.record import Busy, Claimed, Completed, Failed, Mismatch, OwnerLost
from tests.idempotency.stores import Bench, a_claim


async def claimed(bench: Bench, **values: Any) -> Claimed:
    answer = await bench.store.claim(a_claim(**values))
    assert isinstance(answer, Claimed)
    return answer


async def test_the_first_claim_is_granted_and_the_second_hears_how_long_to_wait(
    bench: Bench,
) -> None:
    first = await claimed(bench)

    second = await bench.store.claim(a_claim())

    assert (first.attempt, first.takeover) == (1, False)
    assert isinstance(second, Busy)
    assert 0.0 < second.remaining <= 0.3


async def test_of_many_claims_at_once_one_is_granted(bench: Bench) -> None:
    others = [bench.again() for _ in range(3)]

    answers = await asyncio.gather(
        *(store.claim(a_claim(lease=30.0)) for store in [bench.store, *others] for _ in range(10))
    )

    assert sum(isinstance(answer, Claimed) for answer in answers) == 1
    assert sum(isinstance(answer, Busy) for answer in answers) == 39


async def test_keys_have_nothing_to_do_with_each_other(bench: Bench) -> None:
    await claimed(bench, key=1)
    await claimed(bench, key=2)


async def test_a_repeated_claim_of_one_owner_is_the_same_claim(bench: Bench) -> None:
    claim = a_claim()
    first = await bench.store.claim(claim)
    assert isinstance(first, Claimed)

    again = await bench.store.claim(claim)

    assert isinstance(again, Claimed)
    assert (again.fence, again.attempt) == (first.fence, first.attempt)


async def test_a_lease_that_is_over_is_taken_over_with_a_higher_fence(bench: Bench) -> None:
    first = await claimed(bench)
    await bench.passes(0.4)

    second = await claimed(bench)

    assert second.takeover
    assert second.attempt == 2
    assert second.fence > first.fence


async def test_extending_keeps_others_out(bench: Bench) -> None:
    claim = a_claim()
    await bench.store.claim(claim)
    await bench.passes(0.2)

    assert await bench.store.extend(claim.key, claim.owner, 30.0)

    await bench.passes(0.2)
    assert isinstance(await bench.store.claim(a_claim()), Busy)


async def test_nobody_but_the_owner_changes_a_record(bench: Bench) -> None:
    await claimed(bench, lease=30.0)
    store, key, stranger = bench.store, (1).to_bytes(16), b"s" * 16

    assert not await store.extend(key, stranger, 30.0)
    assert not await store.complete(key, stranger, 30.0, None)
    assert not await store.fail(key, stranger, 30.0, "failed")
    assert not await store.release(key, stranger)
    assert isinstance(await store.claim(a_claim()), Busy)


async def test_an_owner_that_was_taken_over_can_do_nothing_more(bench: Bench) -> None:
    early = a_claim()
    await bench.store.claim(early)
    await bench.passes(0.4)
    late = a_claim(lease=30.0)
    await bench.store.claim(late)

    assert not await bench.store.extend(early.key, early.owner, 30.0)
    assert not await bench.store.complete(early.key, early.owner, 30.0, "1")
    assert not await bench.store.fail(early.key, early.owner, 30.0, "failed")
    assert not await bench.store.release(early.key, early.owner)
    record = await bench.store.get(late.key)
    assert record is not None
    assert record.owner == late.owner
    assert record.state is State.IN_PROGRESS


async def test_a_late_completion_counts_while_nobody_took_over(bench: Bench) -> None:
    claim = a_claim()
    await bench.store.claim(claim)
    await bench.passes(0.4)

    assert await bench.store.complete(claim.key, claim.owner, 1000.0, None)


async def test_a_completion_may_be_repeated_by_its_owner(bench: Bench) -> None:
    claim = a_claim()
    await bench.store.claim(claim)
    await bench.store.complete(claim.key, claim.owner, 1000.0, "1")

    assert await bench.store.complete(claim.key, claim.owner, 1000.0, "1")
    assert not await bench.store.complete(claim.key, b"s" * 16, 1000.0, "2")


@pytest.mark.parametrize("result", [None, "null", '{"é":1}'])
async def test_what_is_completed_stays_so_and_hands_out_its_result(
    bench: Bench, result: str | None
) -> None:
    claim = a_claim()
    await bench.store.claim(claim)
    await bench.store.complete(claim.key, claim.owner, 1000.0, result)
    await bench.passes(0.4)

    answer = await bench.store.claim(a_claim(message_id="m2", generation=7))

    assert answer == Completed(result=result)
    assert not await bench.store.release(claim.key, claim.owner)
    assert not await bench.store.extend(claim.key, claim.owner, 30.0)
    assert not await bench.store.fail(claim.key, claim.owner, 30.0, "failed")


async def test_an_expired_record_is_none_even_before_it_is_pruned(bench: Bench) -> None:
    claim = a_claim()
    first = await bench.store.claim(claim)
    assert isinstance(first, Claimed)
    await bench.store.complete(claim.key, claim.owner, 0.2, None)
    await bench.passes(0.3)

    second = await claimed(bench, payload=b"q" * 16)

    assert (second.attempt, second.takeover) == (1, False)
    assert second.fence > first.fence


async def test_a_record_in_progress_does_not_expire_under_its_owner(bench: Bench) -> None:
    claim = a_claim(lease=1.0, retention=0.1)
    await bench.store.claim(claim)
    await bench.passes(0.3)
    assert isinstance(await bench.store.claim(a_claim()), Busy)

    await bench.store.extend(claim.key, claim.owner, 30.0)
    await bench.passes(0.9)

    assert isinstance(await bench.store.claim(a_claim()), Busy)
    assert await bench.store.prune(10) == 0


async def test_a_released_record_is_free_at_once_and_no_takeover(bench: Bench) -> None:
    claim = a_claim(lease=30.0)
    await bench.store.claim(claim)

    assert await bench.store.release(claim.key, claim.owner)

    again = await claimed(bench, takes_over=False)
    assert (again.attempt, again.takeover) == (2, False)


async def test_what_an_owner_left_is_for_people_where_nobody_takes_over(bench: Bench) -> None:
    await claimed(bench)
    await bench.passes(0.4)

    assert await bench.store.claim(a_claim(takes_over=False)) == OwnerLost()
    assert (await claimed(bench, takes_over=False, generation=1)).takeover


@pytest.mark.parametrize("state", ["in progress", "completed"])
async def test_another_payload_under_a_known_key_is_told_apart(bench: Bench, state: str) -> None:
    claim = a_claim(lease=30.0)
    await bench.store.claim(claim)
    if state == "completed":
        await bench.store.complete(claim.key, claim.owner, 1000.0, None)
    before = await bench.store.get(claim.key)

    answer = await bench.store.claim(a_claim(payload=b"q" * 16))

    assert isinstance(answer, Mismatch)
    assert answer.payload == claim.payload
    after = await bench.store.get(claim.key)
    assert before is not None
    assert after is not None
    assert replace(after, lease_left=0) == replace(before, lease_left=0)


async def test_a_failed_record_runs_again_for_a_redrive_and_for_another_message(
    bench: Bench,
) -> None:
    claim = a_claim(generation=1)
    await bench.store.claim(claim)
    assert await bench.store.fail(claim.key, claim.owner, 1000.0, "no-such-order")

    for generation in (0, 1):
        answer = await bench.store.claim(a_claim(generation=generation))
        assert answer == Failed(reason="no-such-order")

    redriven = await claimed(bench, generation=2)
    assert (redriven.attempt, redriven.takeover) == (1, False)
    assert isinstance(await bench.store.claim(a_claim(message_id="m2")), Busy)


async def test_a_failed_record_may_be_claimed_by_another_message(bench: Bench) -> None:
    claim = a_claim()
    await bench.store.claim(claim)
    await bench.store.fail(claim.key, claim.owner, 1000.0, "failed")

    await claimed(bench, message_id="m2")


async def test_the_fence_never_falls_behind_the_wall_clock(bench: Bench) -> None:
    first = await claimed(bench)

    await bench.store.forget((1).to_bytes(16))
    await bench.passes(0.05)

    assert (await claimed(bench)).fence > first.fence


async def test_records_can_be_looked_at(bench: Bench) -> None:
    claim = a_claim(1, generation=3)
    await bench.store.claim(claim)
    await bench.passes(0.01)
    await bench.store.claim(a_claim(2, worker="shop/refund"))
    await bench.store.complete(claim.key, claim.owner, 1000.0, "7")

    record = await bench.store.get(claim.key)

    assert record is not None
    assert (record.worker, record.state, record.result) == ("shop/charge", State.COMPLETED, "7")
    assert (record.message_id, record.generation) == ("m1", 3)
    assert record.expires_at - record.created_at == pytest.approx(1000.0, abs=1.0)
    assert await bench.store.get(b"x" * 16) is None
    every = await bench.store.list(10, state=None, worker=None)
    assert [each.worker for each in every] == ["shop/refund", "shop/charge"]
    some = await bench.store.list(10, state=State.COMPLETED, worker="shop/charge")
    assert [each.key for each in some] == [claim.key]
    assert len(await bench.store.list(1, state=None, worker=None)) == 1
    assert list(await bench.store.list(10, state=State.FAILED, worker=None)) == []


async def test_a_forgotten_key_may_be_claimed_anew(bench: Bench) -> None:
    claim = a_claim()
    await bench.store.claim(claim)
    await bench.store.complete(claim.key, claim.owner, 1000.0, None)

    assert await bench.store.forget(claim.key)
    assert not await bench.store.forget(claim.key)

    await claimed(bench)


async def test_pruning_removes_what_has_expired_in_batches(bench: Bench) -> None:
    for key in range(5):
        claim = a_claim(key)
        await bench.store.claim(claim)
        await bench.store.complete(claim.key, claim.owner, 1000.0 if key == 0 else 0.1, None)
    await bench.passes(0.2)

    pruned = [await bench.store.prune(3) for _ in range(3)]

    # Some stores remove what has expired by themselves.
    assert pruned in ([3, 1, 0], [0, 0, 0])
    left = [record.key for record in await bench.store.list(10, state=None, worker=None)]
    assert left == [(0).to_bytes(16)]


async def test_it_serves_several_event_loops(bench: Bench) -> None:
    claim = a_claim(lease=30.0)
    await bench.store.claim(claim)
    answers: list[object] = []

    async def elsewhere() -> None:
        answers.append(await bench.store.extend(claim.key, claim.owner, 30.0))
        answers.append(isinstance(await bench.store.claim(a_claim()), Busy))
        await bench.store.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(thread.join)

    assert answers == [True, True]
    assert await bench.store.complete(claim.key, claim.owner, 1000.0, None)


async def test_it_can_be_used_again_after_it_was_closed(bench: Bench) -> None:
    await claimed(bench)
    await bench.store.aclose()

    await bench.store.check()

    assert isinstance(await bench.store.claim(a_claim()), Busy)


async def test_making_it_ready_twice_keeps_what_is_there(bench: Bench) -> None:
    await claimed(bench, lease=30.0)

    await bench.store.init()

    assert isinstance(await bench.store.claim(a_claim()), Busy)
    assert bench.store.name

"""Claims and what follows them: rules 1 to 4 of ``brokerwq.idempotency.store``."""

from __future__ import annotations

from dataclasses import replace

from brokerwq.idempotency.record import (
    Busy,
    Claimed,
    Completed,
    Failed,
    Mismatch,
    OwnerLost,
    Record,
    State,
)
from brokerwq.testing.stores.bench import StoreBench
from brokerwq.testing.stores.catalogue import check

LONG = 30.0
KEEP = 1000.0


async def record_of(bench: StoreBench, key: bytes) -> Record:
    """The record of ``key``, which must be there."""
    record = await bench.store.get(key)
    assert record is not None, "there is no record"
    return record


@check()
async def the_first_claim_is_granted_and_the_second_hears_how_long_to_wait(
    bench: StoreBench,
) -> None:
    """One claim is granted; the next hears of the rest of the lease."""
    _, first = await bench.claimed()
    second = await bench.store.claim(bench.claim())

    assert (first.attempt, first.takeover) == (1, False), first
    assert isinstance(second, Busy), second
    assert 0.0 < second.remaining <= bench.lease, second


@check()
async def keys_have_nothing_to_do_with_each_other(bench: StoreBench) -> None:
    """A claim keeps nobody from another key."""
    await bench.claimed(1)
    await bench.claimed(2)


@check()
async def a_repeated_claim_of_one_owner_is_the_same_claim(bench: StoreBench) -> None:
    """A claim whose answer was lost can be repeated."""
    claim, first = await bench.claimed(lease=LONG)

    again = await bench.store.claim(claim)

    assert isinstance(again, Claimed), again
    assert (again.fence, again.attempt) == (first.fence, first.attempt), again


@check()
async def a_lease_that_is_over_is_taken_over_with_a_higher_fence(bench: StoreBench) -> None:
    """What an owner left behind is free when its lease is over."""
    _, first = await bench.claimed()
    await bench.over()

    _, second = await bench.claimed()

    assert second.takeover, second
    assert second.attempt == 2, second
    assert second.fence > first.fence, second


@check()
async def a_lease_that_ends_now_is_over(bench: StoreBench) -> None:
    """No seconds left is over, like any lease that has ended, and not "without end"."""
    claim, _ = await bench.claimed(lease=LONG)
    assert await bench.store.extend(claim.key, claim.owner, 0.0)
    await bench.passes(0.01)

    _, second = await bench.claimed()

    assert second.takeover, second


@check()
async def extending_keeps_others_out(bench: StoreBench) -> None:
    """An extended lease runs from now."""
    claim, _ = await bench.claimed()
    await bench.passes(bench.lease * 0.6)
    assert await bench.store.extend(claim.key, claim.owner, LONG)
    await bench.passes(bench.lease * 0.8)

    assert isinstance(await bench.store.claim(bench.claim()), Busy)


@check()
async def nobody_but_the_owner_changes_a_record(bench: StoreBench) -> None:
    """Extend, complete, fail and release are the owner's."""
    claim, _ = await bench.claimed(lease=LONG)
    store, key, stranger = bench.store, claim.key, b"s" * 16

    assert not await store.extend(key, stranger, LONG)
    assert not await store.complete(key, stranger, KEEP, None)
    assert not await store.fail(key, stranger, KEEP, "failed")
    assert not await store.release(key, stranger)
    assert isinstance(await store.claim(bench.claim()), Busy)


@check()
async def where_there_is_no_record_nothing_is_changed(bench: StoreBench) -> None:
    """Nothing but a claim makes a record."""
    store, key, owner = bench.store, b"k" * 16, b"s" * 16

    assert not await store.extend(key, owner, LONG)
    assert not await store.complete(key, owner, KEEP, None)
    assert not await store.fail(key, owner, KEEP, "failed")
    assert not await store.release(key, owner)
    assert await store.get(key) is None


@check()
async def an_owner_that_was_taken_over_can_do_nothing_more(bench: StoreBench) -> None:
    """Neither the success nor the failure of a late owner touches its successor's record."""
    early, _ = await bench.claimed()
    await bench.over()
    late, _ = await bench.claimed(lease=LONG)
    store = bench.store

    assert not await store.extend(early.key, early.owner, LONG)
    assert not await store.complete(early.key, early.owner, KEEP, "1")
    assert not await store.fail(early.key, early.owner, KEEP, "failed")
    assert not await store.release(early.key, early.owner)
    record = await record_of(bench, late.key)
    assert record.owner == late.owner
    assert record.state is State.IN_PROGRESS


@check()
async def a_late_completion_counts_while_nobody_took_over(bench: StoreBench) -> None:
    """Completion looks at the owner, never at the lease."""
    claim, _ = await bench.claimed()
    await bench.over()

    assert await bench.store.complete(claim.key, claim.owner, KEEP, None)
    assert await bench.store.claim(bench.claim()) == Completed(result=None)


@check()
async def a_completion_may_be_repeated_by_its_owner(bench: StoreBench) -> None:
    """A completion whose answer was lost can be repeated, by its owner alone."""
    claim, _ = await bench.claimed()
    await bench.store.complete(claim.key, claim.owner, KEEP, "1")

    assert await bench.store.complete(claim.key, claim.owner, KEEP, "1")
    assert not await bench.store.complete(claim.key, b"s" * 16, KEEP, "2")
    assert (await record_of(bench, claim.key)).result == "1"


@check()
async def a_failure_may_be_repeated_by_its_owner(bench: StoreBench) -> None:
    """So can a failure."""
    claim, _ = await bench.claimed()
    await bench.store.fail(claim.key, claim.owner, KEEP, "failed")

    assert await bench.store.fail(claim.key, claim.owner, KEEP, "failed")
    assert not await bench.store.complete(claim.key, claim.owner, KEEP, "2")


@check()
async def what_is_completed_stays_so_and_hands_out_its_result(bench: StoreBench) -> None:
    """A completed record never goes back to work; a result of None is not ``null``."""
    for key, result in ((1, None), (2, "null"), (3, '{"é":"\\u0000"}'), (4, "x" * 4096)):
        claim, _ = await bench.claimed(key, lease=LONG)
        await bench.store.complete(claim.key, claim.owner, KEEP, result)
        answer = await bench.store.claim(bench.claim(key, message_id="m2", generation=7))
        assert answer == Completed(result=result), answer
    await bench.over()

    claim, _ = await bench.claimed(9, lease=LONG)
    await bench.store.complete(claim.key, claim.owner, KEEP, None)
    assert await bench.store.claim(bench.claim()) == Completed(result=None)
    assert not await bench.store.release(claim.key, claim.owner)
    assert not await bench.store.extend(claim.key, claim.owner, LONG)
    assert not await bench.store.fail(claim.key, claim.owner, KEEP, "failed")


@check()
async def an_expired_record_is_none_even_before_it_is_pruned(bench: StoreBench) -> None:
    """The expiry belongs to the claim's condition, not to a sweeper."""
    claim, first = await bench.claimed()
    await bench.store.complete(claim.key, claim.owner, bench.lease, None)
    await bench.over()

    _, second = await bench.claimed(payload=b"q" * 16)

    assert (second.attempt, second.takeover) == (1, False), second
    assert second.fence > first.fence, second


@check()
async def a_record_in_progress_does_not_expire_under_its_owner(bench: StoreBench) -> None:
    """A retention shorter than a lease ends no lease."""
    short = bench.lease / 3
    claim, _ = await bench.claimed(lease=bench.lease * 2, retention=short)
    await bench.passes(bench.lease)
    assert isinstance(await bench.store.claim(bench.claim()), Busy)

    assert await bench.store.extend(claim.key, claim.owner, LONG)
    await bench.passes(bench.lease * 2)

    assert isinstance(await bench.store.claim(bench.claim()), Busy)
    assert await bench.store.prune(10) == 0


@check()
async def a_released_record_is_free_at_once_and_no_takeover(bench: StoreBench) -> None:
    """A released record keeps its count, and is nobody's."""
    claim, first = await bench.claimed(lease=LONG)

    assert await bench.store.release(claim.key, claim.owner)

    _, again = await bench.claimed(takes_over=False)
    assert (again.attempt, again.takeover) == (2, False), again
    assert again.fence > first.fence, again


@check()
async def what_an_owner_left_is_for_people_where_nobody_takes_over(bench: StoreBench) -> None:
    """A claim that does not take over hears of it; a redriven message may."""
    await bench.claimed()
    await bench.over()

    assert await bench.store.claim(bench.claim(takes_over=False)) == OwnerLost()
    _, redriven = await bench.claimed(takes_over=False, generation=1)
    assert redriven.takeover, redriven


@check()
async def another_payload_under_a_known_key_is_told_apart(bench: StoreBench) -> None:
    """In progress or completed; and the record is left as it was."""
    for key in (1, 2):
        claim, _ = await bench.claimed(key, lease=LONG)
        if key == 2:
            await bench.store.complete(claim.key, claim.owner, KEEP, None)
        before = await record_of(bench, claim.key)

        answer = await bench.store.claim(bench.claim(key, payload=b"q" * 16))

        assert isinstance(answer, Mismatch), answer
        assert answer.payload == claim.payload
        after = await record_of(bench, claim.key)
        assert replace(after, lease_left=0) == replace(before, lease_left=0)


@check()
async def a_failed_record_runs_again_for_a_redrive_only(bench: StoreBench) -> None:
    """The message that was given up on is told so; redriven, it may be claimed."""
    claim, _ = await bench.claimed(generation=1)
    assert await bench.store.fail(claim.key, claim.owner, KEEP, "no-such-order")

    for generation in (0, 1):
        answer = await bench.store.claim(bench.claim(generation=generation))
        assert answer == Failed(reason="no-such-order"), answer

    _, redriven = await bench.claimed(generation=2, lease=LONG)
    assert (redriven.attempt, redriven.takeover) == (1, False), redriven
    assert isinstance(await bench.store.claim(bench.claim(message_id="m2")), Busy)


@check()
async def a_failed_record_may_be_claimed_by_another_message(bench: StoreBench) -> None:
    """Another message with the key is another chance."""
    claim, _ = await bench.claimed()
    await bench.store.fail(claim.key, claim.owner, KEEP, "failed")

    await bench.claimed(message_id="m2")


@check()
async def the_fence_never_falls_behind_the_wall_clock(bench: StoreBench) -> None:
    """A record that is gone leaves no lower fence to its successor."""
    claim, first = await bench.claimed()
    await bench.store.forget(claim.key)
    await bench.passes(0.05)

    _, second = await bench.claimed()

    assert second.fence > first.fence, second


@check()
async def records_can_be_looked_at(bench: StoreBench) -> None:
    """``get`` and ``list`` tell what was written."""
    claim, _ = await bench.claimed(1, generation=3)
    await bench.passes(0.01)
    await bench.claimed(2, worker="shop/refund")
    await bench.store.complete(claim.key, claim.owner, KEEP, "7")

    record = await record_of(bench, claim.key)

    assert (record.worker, record.state, record.result) == ("shop/charge", State.COMPLETED, "7")
    assert (record.message_id, record.generation) == ("m1", 3)
    assert (record.payload, record.owner) == (claim.payload, claim.owner)
    assert not record.is_expired
    assert abs(record.expires_at - record.created_at - KEEP) < 2.0
    assert await bench.store.get(b"x" * 16) is None
    every = await bench.store.list(10, state=None, worker=None)
    assert [each.worker for each in every] == ["shop/refund", "shop/charge"]
    some = await bench.store.list(10, state=State.COMPLETED, worker="shop/charge")
    assert [each.key for each in some] == [claim.key]
    assert len(await bench.store.list(1, state=None, worker=None)) == 1
    assert list(await bench.store.list(10, state=State.FAILED, worker=None)) == []


@check()
async def names_are_kept_as_they_are(bench: StoreBench) -> None:
    """Worker and message id may hold any text that a broker lets through."""
    name = "shop/Größe 'x' \"y\" %s $1 :a {}"
    claim, _ = await bench.claimed(worker=name, message_id=name * 3)

    record = await record_of(bench, claim.key)

    assert (record.worker, record.message_id) == (name, name * 3)


@check()
async def a_forgotten_key_may_be_claimed_anew(bench: StoreBench) -> None:
    """``forget`` removes a record, and says whether there was one."""
    claim, _ = await bench.claimed()
    await bench.store.complete(claim.key, claim.owner, KEEP, None)

    assert await bench.store.forget(claim.key)
    assert not await bench.store.forget(claim.key)

    await bench.claimed()


@check()
async def pruning_removes_what_has_expired_in_batches(bench: StoreBench) -> None:
    """At most so many at a time, all in the end, and nothing that is live."""
    for key in range(5):
        claim, _ = await bench.claimed(key)
        retention = KEEP if key == 0 else bench.lease / 3
        await bench.store.complete(claim.key, claim.owner, retention, None)
    await bench.claimed(9, lease=LONG)
    await bench.over()

    pruned = [await bench.store.prune(3) for _ in range(3)]

    # Some stores remove what has expired by themselves.
    assert pruned in ([3, 1, 0], [0, 0, 0]), pruned
    left = {record.key for record in await bench.store.list(10, state=None, worker=None)}
    assert left == {(0).to_bytes(16, "big"), (9).to_bytes(16, "big")}

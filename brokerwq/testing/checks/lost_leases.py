"""What happens to those who have lost their lease: rule 6, and rule 2 with it."""

from __future__ import annotations

from dataclasses import dataclass

from brokerwq.driver.protocol import Consumer, Delivery
from brokerwq.errors import LeaseLostError
from brokerwq.testing.bench import (
    Bench,
    a_message,
    expect,
    expect_done,
    expect_equal,
    expect_lost,
    some_messages,
)
from brokerwq.testing.catalogue import BATCHES, FENCED, TIMED, UNFENCED, check
from brokerwq.testing.checks.support import OPERATIONS


@dataclass(frozen=True)
class _Lost:
    """A message that one consumer held and another one holds now."""

    queue: str
    mine: Consumer
    stale: Delivery
    yours: Consumer
    held: Delivery


async def _lose_to_another(bench: Bench) -> _Lost:
    queue = await bench.queue()
    await bench.send(queue, a_message())
    mine = await bench.consumer(queue, lease=bench.lease)
    yours = await bench.consumer(queue, driver=await bench.another_driver())
    stale = await bench.claim_one(mine)
    await bench.lose(mine, stale)
    return _Lost(queue, mine, stale, yours, await bench.claim_one(yours))


async def _refused(bench: Bench, operation: str) -> None:
    lost = await _lose_to_another(bench)

    results = await OPERATIONS[operation](lost.mine, [lost.stale], bench.lease)

    expect_lost(results, operation)
    third = await bench.consumer(lost.queue, driver=await bench.another_driver())
    # An extend that reached the broker would have cut the holder's lease down to the shortest.
    wait = (1.3 if operation == "extend" else 0.2) * bench.lease
    await bench.expect_nothing(third, wait, f"a late {operation} changes nothing")
    expect_done(await lost.yours.ack([lost.held]), 1, f"ack by the holder after a late {operation}")
    await bench.expect_nothing(third, 0.0, "the holder's ack wins")
    dead = await bench.consumer(bench.dead(lost.queue))
    await bench.expect_nothing(dead, 0.0, f"a late {operation} changes nothing")


@check("fences", "rule 6", needs=(TIMED, FENCED))
async def a_late_ack_is_refused(bench: Bench) -> None:
    """An ack after another consumer has the message answers ``LeaseLostError``; theirs wins."""
    await _refused(bench, "ack")


@check("fences", "rule 6", needs=(TIMED, FENCED))
async def a_late_extend_is_refused(bench: Bench) -> None:
    """An extend after another consumer has the message leaves the other's lease alone."""
    await _refused(bench, "extend")


@check("fences", "rule 6", needs=(TIMED, FENCED))
async def a_late_release_is_refused(bench: Bench) -> None:
    """A release after another consumer has the message does not take it from them."""
    await _refused(bench, "release")


@check("fences", "rule 6", needs=(TIMED, FENCED))
async def a_late_put_back_is_refused(bench: Bench) -> None:
    """A put_back after another consumer has the message makes no copy of it."""
    await _refused(bench, "put_back")


@check("fences", "rule 6", needs=(TIMED, FENCED))
async def a_late_dead_letter_is_refused(bench: Bench) -> None:
    """A dead_letter after another consumer has the message buries nothing."""
    await _refused(bench, "dead_letter")


@check("fences", "rule 6", needs=(TIMED, FENCED))
async def nothing_is_settled_after_its_lease(bench: Bench) -> None:
    """When a lease has ended and nobody has claimed since, a settle is refused all the same."""
    stale: dict[str, tuple[str, Consumer, Delivery]] = {}
    for name in OPERATIONS:
        queue = await bench.queue()
        await bench.send(queue, a_message())
        mine = await bench.consumer(queue, lease=bench.lease)
        stale[name] = queue, mine, await bench.claim_one(mine)
    for _, mine, delivery in stale.values():
        await bench.lose(mine, delivery)

    for name, (queue, mine, delivery) in stale.items():
        results = await OPERATIONS[name](mine, [delivery], bench.calm_lease)

        expect_lost(results, name)
        await bench.claim_one(await bench.consumer(queue))


@check("fences", "rule 6", needs=(TIMED, UNFENCED))
async def a_late_ack_is_owned_up_to(bench: Bench) -> None:
    """Where acks are not fenced, a late one is sent and says so: ``LeaseLostError(sent=True)``."""
    lost = await _lose_to_another(bench)

    error = expect_lost(await lost.mine.ack([lost.stale]), "ack")

    expect(error.sent, "a late ack is sent, since the work is done, and says sent=True")


@check("fences", "rule 6", needs=(TIMED, UNFENCED))
async def late_settles_are_not_sent(bench: Bench) -> None:
    """Where settles are not fenced, none but an ack is sent after the local deadline."""
    lost = await _lose_to_another(bench)
    for name, call in OPERATIONS.items():
        if name != "ack":
            error = expect_lost(await call(lost.mine, [lost.stale], bench.lease), name)
            expect(not error.sent, f"a late {name} must not be sent")

    third = await bench.consumer(lost.queue, driver=await bench.another_driver())
    await bench.expect_nothing(third, 1.3 * bench.lease, "late settles change nothing")
    expect_done(await lost.yours.ack([lost.held]), 1, "ack by the holder")
    dead = await bench.consumer(bench.dead(lost.queue))
    await bench.expect_nothing(dead, 0.0, "late settles change nothing")


@check("rule 6", needs=(TIMED,))
async def an_extend_never_revives(bench: Bench) -> None:
    """An extend of a lease that has ended answers ``LeaseLostError``; others get the message."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    mine = await bench.consumer(queue, lease=bench.lease)
    stale = await bench.claim_one(mine)
    await bench.lose(mine, stale)

    expect_lost(await mine.extend([stale], bench.calm_lease), "extend")

    await bench.claim_one(await bench.consumer(queue, driver=await bench.another_driver()))


async def _mixed(bench: Bench, operation: str) -> None:
    queue = await bench.queue()
    await bench.send(queue, *some_messages(3))
    mine = await bench.consumer(queue)
    held = await bench.claim(mine, 3)
    expect_done(await mine.extend([held[1]], bench.lease), 1, "extend")
    if bench.harness.expire is not None:
        await bench.harness.expire(held[1])
    yours = await bench.consumer(queue, driver=await bench.another_driver())
    other = await bench.claim_one(yours, within=bench.lease + bench.patience)

    results = await OPERATIONS[operation](mine, held, bench.calm_lease)

    kinds = [type(result) for result in results]
    wanted = [type(None), LeaseLostError, type(None)]
    expect_equal(kinds, wanted, f"the answers of {operation} where the second lease is lost")
    expect_done(await yours.ack([other]), 1, "ack by the holder")
    if operation == "extend":
        await bench.ack(mine, [held[0], held[2]])
    where = bench.dead(queue) if operation == "dead_letter" else queue
    reader = await bench.consumer(where)
    back = 0 if operation in ("ack", "extend") else 2
    again = await bench.claim(reader, back)
    expect_equal(
        {delivery.message.id for delivery in again},
        {held[0].message.id, held[2].message.id} if back else set[str](),
        f"what {operation} did to the others",
    )
    await bench.expect_nothing(reader, 0.0, f"{operation} did its work on two messages")


@check("rule 2", needs=(TIMED, BATCHES))
async def an_ack_answers_for_each(bench: Bench) -> None:
    """In one ack a lost lease fails alone, at its own place."""
    await _mixed(bench, "ack")


@check("rule 2", needs=(TIMED, BATCHES))
async def an_extend_answers_for_each(bench: Bench) -> None:
    """In one extend a lost lease fails alone, at its own place."""
    await _mixed(bench, "extend")


@check("rule 2", needs=(TIMED, BATCHES))
async def a_release_answers_for_each(bench: Bench) -> None:
    """In one release a lost lease fails alone, at its own place."""
    await _mixed(bench, "release")


@check("rule 2", needs=(TIMED, BATCHES))
async def a_put_back_answers_for_each(bench: Bench) -> None:
    """In one put_back a lost lease fails alone, at its own place."""
    await _mixed(bench, "put_back")


@check("rule 2", needs=(TIMED, BATCHES))
async def a_dead_letter_answers_for_each(bench: Bench) -> None:
    """In one dead_letter a lost lease fails alone, at its own place."""
    await _mixed(bench, "dead_letter")

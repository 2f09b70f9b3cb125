"""What release and put_back promise: a message returns, counted or with its mark."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from brokerwq.driver.capabilities import UncountedReturn
from brokerwq.driver.protocol import Consumer, Delivery, Mark
from brokerwq.testing.bench import (
    Bench,
    CheckFailedError,
    a_message,
    expect_done,
    expect_equal,
    some_messages,
)
from brokerwq.testing.catalogue import COUNTED, COUNTING, UNCOUNTED, UNCOUNTING, Need, check
from brokerwq.testing.checks.support import cancelled, exact_milliseconds, full_message

EXACT = Need(
    words="uncounted_return EXACT",
    holds=lambda can: can.uncounted_return is UncountedReturn.EXACT,
)


async def _receives(bench: Bench) -> list[int]:
    """Of one message that is released twice."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    receives: list[int] = []
    for _ in range(3):
        delivery = await bench.claim_one(consumer)
        receives.append(delivery.receives)
        expect_done(await consumer.release([delivery], [0.0]), 1, "release")
    return receives


@check("counts_receives", needs=(COUNTING,))
async def a_release_counts(bench: Bench) -> None:
    """A message that is released again and again is received for the 1st, 2nd, 3rd time."""
    expect_equal(await _receives(bench), [1, 2, 3], "the receives of three deliveries")


@check("counts_receives", needs=(UNCOUNTING,))
async def a_released_message_says_it_is_not_new(bench: Bench) -> None:
    """Where receives are not counted, they are 1 for a new message and 2 for any other."""
    expect_equal(await _receives(bench), [1, 2, 2], "the receives of three deliveries")


@check()
async def a_released_message_is_unchanged(bench: Bench) -> None:
    """A release returns the message as it was, to any consumer, at once and in one copy."""
    queue = await bench.queue()
    await bench.send(queue, full_message(bench))
    consumer = await bench.consumer(queue)
    other = await bench.consumer(queue, driver=await bench.another_driver())
    first = await bench.claim_one(consumer)
    await consumer.quiesce()

    expect_done(await consumer.release([first], [0.0]), 1, "release")

    again = await _first_of(bench, other, consumer)
    expect_equal(again.message, first.message, "the message that came back")
    for each in (consumer, other):
        await bench.expect_nothing(each, 0.0, "a release makes no second copy")


async def _first_of(bench: Bench, *consumers: Consumer) -> Delivery:
    """What one of ``consumers`` gets; a broker that pushes chooses which."""
    deadline = bench.clock.now() + bench.patience
    while bench.clock.now() < deadline:
        for consumer in consumers:
            if got := await consumer.claim(1, 0.0):
                return got[0]
        await bench.breathe()
    raise CheckFailedError("a released message must come back, but did not")


@check("uncounted_return", needs=(UNCOUNTED,))
async def a_put_back_does_not_count(bench: Bench) -> None:
    """A message that is put back counts its receives anew, however often it was released."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    expect_done(await consumer.release([await bench.claim_one(consumer)], [0.0]), 1, "release")
    for nth in range(2):
        delivery = await bench.claim_one(consumer)
        expect_done(
            await consumer.put_back([delivery], [0.0], [Mark(attempts=nth + 1)]), 1, "put_back"
        )

    again = await bench.claim_one(consumer)

    expect_equal(again.receives, 1, "the receives after a put_back")
    expect_equal(again.message.attempts, 2, "the attempts that the last put_back wrote")
    await bench.expect_nothing(consumer, 0.0, "a put_back leaves one copy")


@check("uncounted_return", needs=(UNCOUNTED,))
async def a_put_back_writes_its_mark_and_nothing_else(bench: Bench) -> None:
    """The copy carries every field of its mark; whatever else the message had is as before."""
    queue = await bench.queue()
    sent = full_message(bench)
    await bench.send(queue, sent)
    consumer = await bench.consumer(queue)
    moment = exact_milliseconds(bench)
    mark = Mark(
        attempts=7,
        suspect=True,
        unknown_since=moment - timedelta(hours=1),
        not_before=moment + timedelta(days=400),
        snoozed=12.5,
    )
    before = await bench.claim_one(consumer)

    expect_done(await consumer.put_back([before], [0.0], [mark]), 1, "put_back")

    wanted = replace(
        before.message,
        attempts=7,
        suspect=True,
        unknown_since=mark.unknown_since,
        not_before=mark.not_before,
        snoozed=12.5,
    )
    marked = await bench.claim_one(consumer)
    expect_equal(marked.message, wanted, "the message that was put back with a mark")
    expect_done(await consumer.put_back([marked], [0.0], [Mark()]), 1, "put_back")
    cleared = await bench.claim_one(consumer)
    plain = replace(
        wanted, attempts=0, suspect=False, unknown_since=None, not_before=None, snoozed=0.0
    )
    expect_equal(cleared.message, plain, "the message that was put back with an empty mark")


@check("uncounted_return", needs=(UNCOUNTED,))
async def each_put_back_has_its_own_mark(bench: Bench) -> None:
    """In a batch every message gets the mark at its own place."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(3))
    consumer = await bench.consumer(queue)
    held = await bench.claim(consumer, 3)
    marks = [Mark(attempts=nth + 1) for nth in range(3)]
    size = bench.can.max_settle
    for at in range(0, 3, size):
        batch = held[at : at + size]
        results = await consumer.put_back(batch, [0.0] * len(batch), marks[at : at + size])
        expect_done(results, len(batch), "put_back")

    again = await bench.claim(consumer, 3)

    expect_equal(
        {delivery.message.id: delivery.message.attempts for delivery in again},
        {delivery.message.id: nth + 1 for nth, delivery in enumerate(held)},
        "the attempts of each message",
    )


@check("uncounted_return", needs=(COUNTED, COUNTING))
async def a_put_back_that_must_count_still_returns(bench: Bench) -> None:
    """Where every return counts, a put_back returns the message as a release does."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    first = await bench.claim_one(consumer)

    expect_done(await consumer.put_back([first], [0.0], [Mark(attempts=5)]), 1, "put_back")

    again = await bench.claim_one(consumer)
    expect_equal(again.receives, 2, "the receives of the second delivery")
    expect_equal(again.message, first.message, "the message, whose mark is lost")


async def _cancelled_put_backs(bench: Bench) -> Counter[str]:
    mark = Mark(attempts=1)
    return await cancelled(bench, lambda by, held: by.put_back([held], [0.0], [mark]))


@check("uncounted_return", "rule 8", needs=(UNCOUNTED,))
async def a_cancelled_put_back_loses_nothing(bench: Bench) -> None:
    """A put_back that is cancelled leaves the message there, in the old form or the new one."""
    await _cancelled_put_backs(bench)


@check("uncounted_return", "rule 8", needs=(EXACT,))
async def a_cancelled_put_back_copies_nothing(bench: Bench) -> None:
    """Where a put_back is one step, cancelling it never leaves two copies."""
    found = await _cancelled_put_backs(bench)

    expect_equal(set(found.values()), {1}, "the number of copies of each message")

"""What settling promises while the lease is held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from brokerwq.driver.protocol import Mark, Results
from brokerwq.errors import LeaseLostError
from brokerwq.message import DeadLetterNote
from brokerwq.testing.bench import (
    MOST_ITEMS,
    Bench,
    a_message,
    expect,
    expect_done,
    expect_equal,
    some_messages,
)
from brokerwq.testing.catalogue import BATCHES, FENCED, check
from brokerwq.testing.checks.support import OPERATIONS


@check()
async def an_acked_message_never_comes_back(bench: Bench) -> None:
    """After an ack nobody gets the message again, not even when its lease would have ended."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue, lease=bench.lease)
    other = await bench.consumer(queue, driver=await bench.another_driver())
    claimed_at = bench.clock.now()
    delivery = await bench.claim_one(consumer)

    results = await consumer.ack([delivery])

    bench.expect_in_time(claimed_at + bench.lease)
    expect_done(results, 1, "ack")
    await bench.expect_nothing(other, 1.3 * bench.lease, "the message was acked")


async def _full_batch(bench: Bench, operation: str) -> None:
    count = min(bench.can.max_settle, MOST_ITEMS)
    queue = await bench.queue()
    await bench.send(queue, *some_messages(count))
    consumer = await bench.consumer(queue, prefetch=count)
    held = await bench.claim(consumer, count)

    results = await OPERATIONS[operation](consumer, held, bench.calm_lease)

    expect_done(results, count, operation)
    if operation == "extend":
        await bench.ack(consumer, held)
    back = count if operation in ("release", "put_back") else 0
    again = await bench.claim(consumer, back)
    expect_equal(len({delivery.message.id for delivery in again}), back, "the messages that return")
    await bench.expect_nothing(consumer, 0.0, f"a full {operation} is done")


@check("max_settle")
async def a_full_batch_is_acked(bench: Bench) -> None:
    """``max_settle`` deliveries (500 at most are tried) fit in one ack."""
    await _full_batch(bench, "ack")


@check("max_settle")
async def a_full_batch_is_extended(bench: Bench) -> None:
    """``max_settle`` deliveries fit in one extend."""
    await _full_batch(bench, "extend")


@check("max_settle")
async def a_full_batch_is_released(bench: Bench) -> None:
    """``max_settle`` deliveries fit in one release."""
    await _full_batch(bench, "release")


@check("max_settle")
async def a_full_batch_is_put_back(bench: Bench) -> None:
    """``max_settle`` deliveries fit in one put_back."""
    await _full_batch(bench, "put_back")


@check("max_settle")
async def a_full_batch_is_dead_lettered(bench: Bench) -> None:
    """``max_settle`` deliveries fit in one dead_letter."""
    await _full_batch(bench, "dead_letter")


@check("rule 2")
async def an_empty_batch_is_no_settle(bench: Bench) -> None:
    """Settling nothing answers nothing."""
    consumer = await bench.consumer(await bench.queue())
    for name, call in OPERATIONS.items():
        expect_equal(len(await call(consumer, [], bench.calm_lease)), 0, f"answers of {name}")


async def _repeat(bench: Bench, operation: str) -> None:
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    held = await bench.claim(consumer)
    call = OPERATIONS[operation]
    expect_done(await call(consumer, held, bench.calm_lease), 1, operation)

    results = await call(consumer, held, bench.calm_lease)

    expect(
        len(results) == 1 and (results[0] is None or isinstance(results[0], LeaseLostError)),
        f"a second {operation} must answer None or LeaseLostError, not {results!r:.300}",
    )
    await consumer.quiesce()
    where = bench.dead(queue) if operation == "dead_letter" else queue
    reader = await bench.consumer(where)
    await bench.claim(reader, 0 if operation == "ack" else 1)
    await bench.expect_nothing(reader, 0.0, f"a second {operation} changes nothing")


@check("rule 5")
async def a_repeated_ack_is_harmless(bench: Bench) -> None:
    """A second ack answers None or ``LeaseLostError`` and changes nothing."""
    await _repeat(bench, "ack")


@check("rule 5")
async def a_repeated_release_is_harmless(bench: Bench) -> None:
    """A second release answers None or ``LeaseLostError`` and makes no second copy."""
    await _repeat(bench, "release")


@check("rule 5")
async def a_repeated_put_back_is_harmless(bench: Bench) -> None:
    """A second put_back answers None or ``LeaseLostError`` and makes no second copy."""
    await _repeat(bench, "put_back")


@check("rule 5")
async def a_repeated_dead_letter_is_harmless(bench: Bench) -> None:
    """A second dead_letter answers None or ``LeaseLostError`` and makes no second copy."""
    await _repeat(bench, "dead_letter")


@check("rule 2", needs=(BATCHES,))
async def a_settled_item_spoils_nothing(bench: Bench) -> None:
    """In a batch that holds an acked delivery, every other one is acked, and there is no more."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(3))
    consumer = await bench.consumer(queue)
    held = await bench.claim(consumer, 3)
    await bench.ack(consumer, [held[1]])

    results = await consumer.ack(held)

    expect_equal(len(results), 3, "the number of answers of ack")
    expect_done([results[0], results[2]], 2, "ack beside one that was acked before")
    expect(
        results[1] is None or isinstance(results[1], LeaseLostError),
        f"a second ack must answer None or LeaseLostError, not {results[1]!r:.300}",
    )
    await bench.send(queue, a_message(b"next"))
    expect_equal((await bench.claim_one(consumer)).message.body, b"next", "the next message")


@check("rule 5", "fences", needs=(FENCED,))
async def a_settled_message_cannot_be_settled_otherwise(bench: Bench) -> None:
    """After a release an ack changes nothing; after an ack a release does not revive."""
    queue = await bench.queue()
    await bench.send(queue, a_message(b"released"))
    consumer = await bench.consumer(queue, prefetch=1)
    held = await bench.claim(consumer)
    expect_done(await consumer.release(held, [0.0]), 1, "release")

    results = await consumer.ack(held)

    expect(
        len(results) == 1 and results[0] is not None,
        "an ack after a release must not answer that it is done",
    )
    again = await bench.claim(consumer)
    expect_done(await consumer.ack(again), 1, "ack")
    for name, call in OPERATIONS.items():
        results = await call(consumer, again, bench.calm_lease)
        expect(
            len(results) == 1 and (results[0] is None or isinstance(results[0], LeaseLostError)),
            f"{name} after an ack must answer None or LeaseLostError, not {results!r:.300}",
        )
    reader = await bench.consumer(queue, driver=await bench.another_driver())
    await bench.expect_nothing(reader, 0.0, "an acked message is not revived")
    dead = await bench.consumer(bench.dead(queue))
    await bench.expect_nothing(dead, 0.0, "an acked message is not dead-lettered")


@check("rule 7")
async def settles_may_run_at_the_same_time(bench: Bench) -> None:
    """Every settle may run beside every other, a claim and a send; each does its own work."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(20))
    consumer = await bench.consumer(queue, prefetch=20)
    held = await bench.claim(consumer, 20)
    acked, extended, released, put, dead = (held[at : at + 4] for at in range(0, 20, 4))

    calls: list[Awaitable[Results]] = []
    for nth in range(4):
        calls += [
            consumer.ack([acked[nth]]),
            consumer.extend([extended[nth]], bench.calm_lease),
            consumer.release([released[nth]], [0.0]),
            consumer.put_back([put[nth]], [0.0], [Mark()]),
            consumer.dead_letter([dead[nth]], [DeadLetterNote(reason="failed")]),
        ]
    sending = bench.driver.send(queue, [a_message(b"beside")], [0.0])
    answers = await asyncio.gather(sending, *calls)

    for results in answers:
        expect_done(results, 1, "a settle beside others")
    again = await bench.claim(consumer, 9)
    bodies = sorted(delivery.message.body for delivery in again)
    wanted = sorted([*(item.message.body for item in (*released, *put)), b"beside"])
    expect_equal(bodies, wanted, "what returned")
    buried = await bench.claim(await bench.consumer(bench.dead(queue)), 4)
    expect_equal(
        sorted(delivery.message.body for delivery in buried),
        sorted(delivery.message.body for delivery in dead),
        "what is dead",
    )
    await bench.ack(consumer, extended)

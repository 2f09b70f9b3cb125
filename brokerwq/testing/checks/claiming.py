"""What ``Consumer.claim`` promises."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

from brokerwq.driver.protocol import Consumer, Delivery
from brokerwq.errors import QueueNotFoundError
from brokerwq.testing.bench import (
    MOST_ITEMS,
    Bench,
    a_message,
    expect,
    expect_done,
    expect_equal,
    expect_error,
    some_messages,
)
from brokerwq.testing.catalogue import ORDERED, UNORDERED, Need, check


@check()
async def an_empty_queue_brings_nothing(bench: Bench) -> None:
    """A claim on an empty queue that need not wait answers nothing, at once."""
    consumer = await bench.consumer(await bench.queue())
    started = bench.clock.now()

    got = await consumer.claim(10, 0.0)

    expect_equal(len(got), 0, "the number of messages")
    expect(bench.clock.now() - started < bench.patience, "a claim without wait must not wait")


@check()
async def a_claim_waits_as_long_as_it_may(bench: Bench) -> None:
    """A claim on an empty queue answers nothing when its wait is over, and not at once."""
    consumer = await bench.consumer(await bench.queue())
    wait = min(bench.lease, bench.can.max_wait)
    started = bench.clock.now()

    got = await consumer.claim(1, wait)

    waited = bench.clock.now() - started
    expect_equal(len(got), 0, "the number of messages")
    expect(
        wait / 2 <= waited <= wait + bench.patience,
        f"a claim that may wait {wait:g} s must not answer after {waited:g} s",
    )


async def _woken(bench: Bench, queue: str, consumer: Consumer, wait: float) -> None:
    driver = await bench.another_driver()
    async with bench.background(consumer.claim(10, wait)) as claiming:
        await bench.send(queue, a_message(), driver=driver)
        got = await bench.finish(claiming, "a claim that waits while a message is sent")
    expect_equal(len(got), 1, "the number of messages")


@check()
async def a_waiting_claim_is_woken_by_a_send(bench: Bench) -> None:
    """A claim that waits answers as soon as another connection has sent a message."""
    queue = await bench.queue()
    consumer = await bench.consumer(queue)

    await _woken(bench, queue, consumer, min(6 * bench.patience, bench.can.max_wait))


@check("max_wait")
async def a_wait_beyond_the_longest_is_taken(bench: Bench) -> None:
    """A claim may be asked to wait longer than ``max_wait``, and is woken as usual."""
    queue = await bench.queue()
    limit = bench.can.max_wait

    await _woken(bench, queue, await bench.consumer(queue), 1e6 if limit > 1e6 else 2 * limit + 1)


@check("max_wait", needs=(Need(words="a max_wait", holds=lambda can: can.max_wait < math.inf),))
async def no_claim_waits_beyond_the_longest(bench: Bench) -> None:
    """A claim on an empty queue answers within ``max_wait``, whatever it was asked for."""
    limit = bench.can.max_wait
    consumer = await bench.consumer(await bench.queue())
    started = bench.clock.now()

    got = await consumer.claim(1, limit + 10 * bench.patience)

    expect_equal(len(got), 0, "the number of messages")
    expect(
        bench.clock.now() - started <= limit + bench.patience,
        f"a claim must answer within max_wait, {limit:g} s",
    )


@check()
async def a_claim_does_not_wait_for_more_than_one(bench: Bench) -> None:
    """A claim for many answers at once with the few that are there."""
    queue = await bench.queue()
    consumer = await bench.consumer(queue)
    await bench.send(queue, a_message())

    claim = consumer.claim(min(10, bench.can.max_claim), min(60.0, bench.can.max_wait))
    async with bench.background(claim) as claiming:
        got = await bench.finish(claiming, "a claim for ten where there is one")

    expect_equal(len(got), 1, "the number of messages")


@check("max_claim")
async def no_claim_brings_more_than_asked(bench: Bench) -> None:
    """A claim brings as many as it was asked for, or fewer."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(5))
    consumer = await bench.consumer(queue)

    got = list(await consumer.claim(2, min(bench.patience, bench.can.max_wait)))

    expect(1 <= len(got) <= 2, f"claim(2) must bring one or two messages, not {len(got)}")
    await bench.claim(consumer, 5 - len(got))


@check("max_claim")
async def a_full_claim_is_taken(bench: Bench) -> None:
    """``max_claim`` messages may be asked for at once, and all of them arrive once."""
    count = min(bench.can.max_claim, MOST_ITEMS)
    queue = await bench.queue()
    messages = some_messages(count)
    await bench.send(queue, *messages)
    consumer = await bench.consumer(queue, prefetch=count)

    got = list(await consumer.claim(bench.can.max_claim, min(bench.patience, bench.can.max_wait)))
    got += await bench.claim(consumer, count - len(got))

    expect_equal(
        sorted(delivery.message.id for delivery in got),
        sorted(message.id for message in messages),
        "the ids of the messages",
    )


@check()
async def a_claimed_message_is_nobody_elses(bench: Bench) -> None:
    """While a message is leased, no other consumer gets it."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    mine = await bench.consumer(queue)
    yours = await bench.consumer(queue, driver=await bench.another_driver())
    delivery = await bench.claim_one(mine)

    await bench.expect_nothing(yours, bench.delay, "the message is leased")

    expect_done(await mine.ack([delivery]), 1, "ack")


@check()
async def two_consumers_never_get_the_same_message(bench: Bench) -> None:
    """Consumers that claim at the same time, over one connection or two, share the messages."""
    queue = await bench.queue()
    messages = some_messages(40)
    await bench.send(queue, *messages)
    other = await bench.another_driver()
    consumers = [
        await bench.consumer(queue, prefetch=4),
        await bench.consumer(queue, prefetch=4),
        await bench.consumer(queue, prefetch=4, driver=other),
    ]
    seen: Counter[str] = Counter()
    deadline = bench.clock.now() + bench.patience

    async def claim(consumer: Consumer) -> None:
        while seen.total() < len(messages) and bench.clock.now() < deadline:
            got = await consumer.claim(min(4, bench.can.max_claim), 0.0)
            seen.update(delivery.message.id for delivery in got)
            if got:
                # What is done makes room for what a broker pushes.
                await bench.ack(consumer, got)
            await bench.clock.sleep(0 if got else min(0.02, bench.lease / 10))

    await asyncio.gather(*(claim(consumer) for consumer in consumers))

    expect_equal(seen, Counter(message.id for message in messages), "what was claimed")


@check()
async def a_first_delivery_says_what_it_is(bench: Bench) -> None:
    """A message's first delivery has one receive, no defect, its queue, and time left."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)

    delivery = await bench.claim_one(consumer)

    expect_equal(delivery.receives, 1, "the receives of a first delivery")
    expect_equal(delivery.defect, "", "the defect of a sound message")
    expect_equal(delivery.queue, queue, "the queue of the delivery")
    expect(
        0 < delivery.lease_left <= consumer.lease + 0.001,
        f"lease_left must be above 0 and within the lease, not {delivery.lease_left:g}",
    )


@check("rule 8")
async def a_cancelled_claim_strands_nothing(bench: Bench) -> None:
    """What arrives for a claim that is cancelled can be claimed by others at once."""
    queue = await bench.queue()
    mine = await bench.consumer(queue)
    driver = await bench.another_driver()
    messages = some_messages(8)
    got: list[Delivery] = []
    for turns, message in enumerate(messages):
        async with bench.background(mine.claim(1, min(60.0, bench.can.max_wait))) as claiming:
            sending = asyncio.ensure_future(bench.send(queue, message, driver=driver))
            for _ in range(2 * turns):
                await bench.clock.sleep(0)
            claiming.cancel()
            await asyncio.wait({claiming, sending})
            sending.result()
        if not claiming.cancelled():
            got.extend(claiming.result())
    await mine.quiesce()

    yours = await bench.consumer(queue, driver=driver)
    left = await bench.claim(yours, len(messages) - len(got))

    ids = {delivery.message.id for delivery in (*got, *left)}
    expect_equal(len(ids), len(messages), "the number of messages found again")


@check("rule 8")
async def a_claim_cancelled_before_it_starts_takes_nothing(bench: Bench) -> None:
    """A claim that is cancelled while messages are there leaves them to others at once."""
    queue = await bench.queue()
    messages = some_messages(10)
    await bench.send(queue, *messages)
    mine = await bench.consumer(queue, prefetch=1)
    got: list[Delivery] = []
    for turns in range(len(messages)):
        claiming = asyncio.ensure_future(mine.claim(1, 0.0))
        for _ in range(turns):
            await bench.clock.sleep(0)
        claiming.cancel()
        await asyncio.wait({claiming})
        if not claiming.cancelled():
            got.extend(claiming.result())
    await mine.quiesce()

    yours = await bench.consumer(queue, driver=await bench.another_driver())
    left = await bench.claim(yours, len(messages) - len(got))

    ids = {delivery.message.id for delivery in (*got, *left)}
    expect_equal(len(ids), len(messages), "the number of messages found again")


@check("rule 3")
async def a_missing_queue_cannot_be_consumed(bench: Bench) -> None:
    """Consuming a queue that does not exist raises ``QueueNotFoundError``."""
    missing = bench.fresh_spec().name

    await expect_error(
        QueueNotFoundError,
        bench.driver.consume(missing, lease=bench.calm_lease, prefetch=1),
        "consume of a queue that does not exist",
    )


@check("ordered_groups", needs=(ORDERED,))
async def a_group_is_claimed_in_order(bench: Bench) -> None:
    """Messages of one group come one after another in the order sent; other groups do not wait."""
    queue = await bench.queue(ordered=True)
    sent = [a_message(str(nth).encode(), group="ab"[nth % 2]) for nth in range(6)]
    for message in sent:
        await bench.send(queue, message)
    consumer = await bench.consumer(queue)
    other = await bench.consumer(queue, driver=await bench.another_driver())

    held = await bench.claim(consumer, 2)
    expect_equal({item.message.group for item in held}, {"a", "b"}, "the groups of the first two")
    await bench.expect_nothing(other, bench.delay, "both groups have a message in work")
    bodies: dict[str | None, list[bytes]] = {"a": [], "b": []}
    while held:
        for delivery in held:
            bodies[delivery.message.group].append(delivery.message.body)
        await bench.ack(consumer, held)
        done = sum(map(len, bodies.values()))
        held = await bench.claim(consumer, min(2, len(sent) - done)) if done < len(sent) else []

    expect_equal(bodies, {"a": [b"0", b"2", b"4"], "b": [b"1", b"3", b"5"]}, "the order")


@check("ordered_groups", needs=(ORDERED,))
async def a_returned_message_keeps_its_place(bench: Bench) -> None:
    """A message that is released is claimed again before the rest of its group."""
    queue = await bench.queue(ordered=True)
    sent = [a_message(str(nth).encode(), group="a") for nth in range(3)]
    for message in sent:
        await bench.send(queue, message)
    consumer = await bench.consumer(queue)

    first = await bench.claim_one(consumer)
    expect_done(await consumer.release([first], [0.0]), 1, "release")
    again = await bench.claim_one(consumer)

    expect_equal(again.message.id, first.message.id, "the id of what comes next")


@check("ordered_groups", needs=(UNORDERED,))
async def an_ordered_queue_is_not_promised(bench: Bench) -> None:
    """Where groups are not kept in order, declaring an ordered queue reports a difference."""
    spec = bench.fresh_spec(ordered=True)

    differences = await bench.driver.declare(spec)

    expect(
        any(difference.property == "ordered" for difference in differences),
        f"declare must report the property 'ordered', not {[*map(str, differences)]}",
    )
    await expect_error(
        QueueNotFoundError, bench.driver.inspect(spec.name), "inspect of a queue not declared"
    )

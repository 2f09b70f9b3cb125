"""What several modules of checks share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from brokerwq.driver.protocol import Consumer, Delivery, Mark, Results
from brokerwq.message import DeadLetterNote, Message
from brokerwq.testing.bench import Bench, a_message, expect, some_messages

Settle: TypeAlias = Callable[[Consumer, Sequence[Delivery], float], Awaitable[Results]]
"""A settle of all deliveries; the number is the lease that ``extend`` asks for."""


async def _ack(consumer: Consumer, held: Sequence[Delivery], _: float) -> Results:
    return await consumer.ack(held)


async def _extend(consumer: Consumer, held: Sequence[Delivery], seconds: float) -> Results:
    return await consumer.extend(held, seconds)


async def _release(consumer: Consumer, held: Sequence[Delivery], _: float) -> Results:
    return await consumer.release(held, [0.0] * len(held))


async def _put_back(consumer: Consumer, held: Sequence[Delivery], _: float) -> Results:
    return await consumer.put_back(held, [0.0] * len(held), [Mark()] * len(held))


async def _dead_letter(consumer: Consumer, held: Sequence[Delivery], _: float) -> Results:
    return await consumer.dead_letter(held, [DeadLetterNote(reason="failed")] * len(held))


OPERATIONS: Final[Mapping[str, Settle]] = {
    "ack": _ack,
    "extend": _extend,
    "release": _release,
    "put_back": _put_back,
    "dead_letter": _dead_letter,
}


def exact_milliseconds(bench: Bench) -> datetime:
    """The wall clock, cut to what the wire carries exactly."""
    now = bench.clock.utcnow()
    return now - timedelta(microseconds=now.microsecond % 1000)


def full_message(bench: Bench) -> Message:
    """A message with every field set that a sender may set."""
    return a_message(
        b"\x00\xffbody",
        type="thumbnail",
        content_type="application/octet-stream",
        headers={"traceparent": "00-1-2-01", "X-Colour": "grün"},
        created_at=exact_milliseconds(bench) - timedelta(seconds=90),
        attempts=3,
        redrives=2,
        key="a key",
        group="a group",
        cause="0190-parent",
    )


async def cancelled(
    bench: Bench,
    settle: Callable[[Consumer, Delivery], Awaitable[Results]],
    *,
    moves: bool = False,
) -> Counter[str]:
    """Cancel eight settles at different moments; how often each message is there afterwards.

    Args:
        bench: Where.
        settle: The settle.
        moves: It may have moved the message to the dead-letter queue.
    """
    queue = await bench.queue()
    messages = some_messages(8)
    await bench.send(queue, *messages)
    driver = await bench.another_driver()
    consumer = await bench.consumer(queue, driver=driver, lease=bench.lease, prefetch=len(messages))
    for turns in range(len(messages)):
        delivery = await bench.claim_one(consumer)
        task = asyncio.ensure_future(settle(consumer, delivery))
        for _ in range(turns):
            await bench.clock.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    await consumer.aclose()
    await driver.aclose()
    await bench.clock.sleep(1.02 * bench.lease)
    return await find_all(bench, [queue, bench.dead(queue)] if moves else [queue], messages)


async def find_all(
    bench: Bench, queues: Sequence[str], messages: Sequence[Message]
) -> Counter[str]:
    """Expect each of ``messages`` in at least one of ``queues``; how often each id is there."""
    missing = {message.id for message in messages}
    readers = [await bench.consumer(queue) for queue in queues]
    deadline = bench.clock.now() + bench.patience
    found: Counter[str] = Counter()
    some = True
    while some or (missing and bench.clock.now() < deadline):
        some = False
        for reader in readers:
            got = await reader.claim(min(10, bench.can.max_claim), 0.0)
            some |= bool(got)
            found.update(delivery.message.id for delivery in got)
            await bench.ack(reader, got)
        missing -= found.keys()
        await bench.breathe()
    expect(not missing, f"no message may get lost, but {len(missing)} cannot be found")
    return found

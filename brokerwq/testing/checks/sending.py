"""What ``Driver.send`` promises."""

from __future__ import annotations

import asyncio

from brokerwq.errors import MessageTooLargeError, QueueNotFoundError
from brokerwq.message import Message
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
from brokerwq.testing.catalogue import MEASURABLE_BYTES, UNORDERED, boundless, check, finite

_HEADER_ROOM = 4096  # what an adapter's own headers may take of max_message_bytes
_LARGE_BODY = 2**20


def _body(size: int) -> bytes:
    return b"x" * size


def _largest(bench: Bench, limit: float) -> int:
    return int(min(bench.can.max_message_bytes - _HEADER_ROOM, limit))


@check("rule 4")
async def what_send_confirmed_is_there(bench: Bench) -> None:
    """A message whose send is done can be claimed by another connection."""
    queue = await bench.queue()
    sent = a_message()
    await bench.send(queue, sent)
    consumer = await bench.consumer(queue, driver=await bench.another_driver())

    delivery = await bench.claim_one(consumer)

    expect_equal(delivery.message.id, sent.id, "the id of the message")


@check("rule 4")
async def what_send_confirmed_outlives_its_connection(bench: Bench) -> None:
    """A message whose send is done stays when the connection that sent it is closed at once."""
    queue = await bench.queue()
    async with bench.harness.connect() as driver:
        await bench.send(queue, a_message(), driver=driver)

    await bench.claim_one(await bench.consumer(queue))


@check("max_send")
async def a_full_batch_is_sent(bench: Bench) -> None:
    """``max_send`` messages (500 at most are tried) fit in one send, and all of them arrive."""
    count = min(bench.can.max_send, MOST_ITEMS)
    queue = await bench.queue()
    messages = some_messages(count)

    expect_done(await bench.driver.send(queue, messages, [0.0] * count), count, "send")

    found = await bench.claim(await bench.consumer(queue, prefetch=count), count)
    expect_equal(
        {delivery.message.id for delivery in found},
        {message.id for message in messages},
        "the ids of the messages",
    )


@check()
async def an_empty_batch_is_no_call(bench: Bench) -> None:
    """Sending nothing answers nothing."""
    expect_equal(len(await bench.driver.send(await bench.queue(), [], [])), 0, "answers")


@check("max_message_bytes", needs=(finite("max_message_bytes"),))
async def the_largest_message_arrives_whole(bench: Bench) -> None:
    """A body of ``max_message_bytes``, less 4 KiB for headers, is sent and comes back whole."""
    queue = await bench.queue()
    body = _body(_largest(bench, MEASURABLE_BYTES))
    await bench.send(queue, a_message(body))

    delivery = await bench.claim_one(await bench.consumer(queue))

    expect(delivery.message.body == body, "the body must come back whole")


@check("max_message_bytes", needs=(boundless("max_message_bytes"),))
async def a_large_message_arrives_whole(bench: Bench) -> None:
    """Where no limit can be reached, a body of 8 MiB comes back whole."""
    queue = await bench.queue()
    body = _body(8 * _LARGE_BODY)
    await bench.send(queue, a_message(body))

    delivery = await bench.claim_one(await bench.consumer(queue))

    expect(delivery.message.body == body, "the body must come back whole")


@check("max_message_bytes", "rule 2", needs=(finite("max_message_bytes"),))
async def a_message_too_large_is_refused_alone(bench: Bench) -> None:
    """A message above ``max_message_bytes`` answers ``MessageTooLargeError`` in its slot only."""
    queue = await bench.queue()
    too_large = a_message(_body(int(bench.can.max_message_bytes) + 1))
    good = some_messages(2)
    batch = [good[0], too_large, good[1]]
    if bench.can.max_send >= len(batch):
        results = list(await bench.driver.send(queue, batch, [0.0] * len(batch)))
    else:
        results = [(await bench.driver.send(queue, [item], [0.0]))[0] for item in batch]

    kinds = [type(result) for result in results]
    expect_equal(kinds, [type(None), MessageTooLargeError, type(None)], "the answers of send")
    found = await bench.claim(await bench.consumer(queue), 2)
    expect_equal(
        {delivery.message.id for delivery in found},
        {message.id for message in good},
        "what was stored",
    )


async def _large_batch(bench: Bench, size: float) -> None:
    queue = await bench.queue()
    each = _largest(bench, min(size, _LARGE_BODY))
    count = max(1, min(int(size // (each + _HEADER_ROOM)), bench.can.max_send))
    messages = [a_message(_body(each)) for _ in range(count)]

    expect_done(await bench.driver.send(queue, messages, [0.0] * count), count, "send")

    found = await bench.claim(await bench.consumer(queue, prefetch=count), count)
    expect(
        all(len(delivery.message.body) == each for delivery in found),
        "every body of a large batch must come back whole",
    )


@check("max_batch_bytes", needs=(finite("max_batch_bytes"),))
async def a_batch_of_the_largest_size_is_sent(bench: Bench) -> None:
    """Messages of ``max_batch_bytes`` together, headers included, fit in one send."""
    await _large_batch(bench, bench.can.max_batch_bytes)


@check("max_batch_bytes", needs=(boundless("max_batch_bytes"),))
async def a_large_batch_is_sent(bench: Bench) -> None:
    """Where no limit can be reached, 4 MiB fit in one send."""
    await _large_batch(bench, 4 * _LARGE_BODY)


@check("rule 3")
async def a_missing_queue_is_refused_and_not_made(bench: Bench) -> None:
    """A send to a queue that does not exist raises ``QueueNotFoundError`` and creates nothing."""
    missing = bench.fresh_spec().name

    await expect_error(
        QueueNotFoundError,
        bench.driver.send(missing, [a_message()], [0.0]),
        "send to a queue that does not exist",
    )

    await expect_error(
        QueueNotFoundError,
        bench.driver.inspect(missing),
        "inspect of a queue that was only sent to",
    )


@check(needs=(UNORDERED,))
async def one_id_may_be_stored_twice(bench: Bench) -> None:
    """Two messages of one id are two messages, save where order is bought with deduplication."""
    queue = await bench.queue()
    message = a_message()
    await bench.send(queue, message)
    await bench.send(queue, message)

    found = await bench.claim(await bench.consumer(queue), 2)

    expect_equal([found[0].message.id, found[1].message.id], [message.id] * 2, "the ids")


@check("rule 7")
async def sends_may_run_at_the_same_time(bench: Bench) -> None:
    """Many sends at once over one driver all arrive, once each."""
    queue = await bench.queue()
    messages = some_messages(24)

    async def send(message: Message) -> None:
        await bench.send(queue, message)

    await asyncio.gather(*(send(message) for message in messages))

    consumer = await bench.consumer(queue, prefetch=len(messages))
    found = await bench.claim(consumer, len(messages))
    expect_equal(
        sorted(delivery.message.id for delivery in found),
        sorted(message.id for message in messages),
        "the ids of the messages",
    )
    await bench.expect_nothing(consumer, 0.0, "each message was sent once")


@check()
async def a_cancelled_send_leaves_whole_messages(bench: Bench) -> None:
    """A send that is cancelled has stored each message once or not at all; the driver goes on."""
    queue = await bench.queue()
    cancelled = some_messages(6)
    for turns, message in enumerate(cancelled):
        task = asyncio.ensure_future(bench.driver.send(queue, [message], [0.0]))
        for _ in range(turns):
            await bench.clock.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    last = a_message(b"last")
    await bench.send(queue, last)
    # What was cancelled may still be on its way to a broker that is far away.
    await bench.clock.sleep(bench.delay)

    consumer = await bench.consumer(queue)
    ids: list[str] = []
    while last.id not in ids or (await bench.driver.inspect(queue)).ready.value:
        ids.extend(delivery.message.id for delivery in await bench.claim(consumer))

    expect(len(ids) == len(set(ids)), "a cancelled send must not store a message twice")
    expect(set(ids) <= {item.id for item in (*cancelled, last)}, "only what was sent may come")

"""What quiesce and closing promise, and what a driver leaves behind."""

from __future__ import annotations

import asyncio

from brokerwq.driver.protocol import Mark
from brokerwq.errors import ClosedError, DriverError, QueueNotFoundError
from brokerwq.message import DeadLetterNote
from brokerwq.testing.bench import (
    Bench,
    a_message,
    expect,
    expect_done,
    expect_equal,
    expect_error,
    expect_lost,
    some_messages,
)
from brokerwq.testing.catalogue import BATCHES, TIMED, check
from brokerwq.testing.checks.support import OPERATIONS, find_all
from brokerwq.testing.clock import FakeClock

_SOME_DAY = 365 * 86_400.0


@check("rule 8")
async def quiesce_ends_a_waiting_claim(bench: Bench) -> None:
    """A claim that waits answers nothing, soon after quiesce was called."""
    consumer = await bench.consumer(await bench.queue())

    async with bench.background(consumer.claim(1, min(60.0, bench.can.max_wait))) as claiming:
        await consumer.quiesce()
        got = await bench.finish(claiming, "a claim on a quiesced consumer")

    expect_equal(len(got), 0, "the number of messages")


@check("rule 8")
async def a_quiesced_consumer_claims_nothing(bench: Bench) -> None:
    """After quiesce, claims answer nothing without waiting; a second quiesce is harmless."""
    queue = await bench.queue()
    consumer = await bench.consumer(queue)
    await consumer.quiesce()
    await consumer.quiesce()
    await bench.send(queue, a_message())
    started = bench.clock.now()

    got = await consumer.claim(1, min(60.0, bench.can.max_wait))

    expect_equal(len(got), 0, "the number of messages")
    expect(bench.clock.now() - started < bench.patience, "a claim after quiesce must not wait")


@check("rule 8")
async def quiesce_strands_nothing(bench: Bench) -> None:
    """What had arrived but was not handed out can be claimed by others once quiesce returns."""
    queue = await bench.queue()
    messages = some_messages(10)
    await bench.send(queue, *messages)
    mine = await bench.consumer(queue, prefetch=10)
    held = await bench.claim(mine, 2)

    await mine.quiesce()

    yours = await bench.consumer(queue, driver=await bench.another_driver())
    left = await bench.claim(yours, len(messages) - len(held))
    ids = {delivery.message.id for delivery in (*held, *left)}
    expect_equal(len(ids), len(messages), "the number of messages found again")
    await bench.expect_nothing(yours, 0.0, "the rest is held")
    await bench.ack(mine, held)


@check("rule 8")
async def quiesce_strands_nothing_that_just_arrives(bench: Bench) -> None:
    """A message that is sent while a consumer quiesces is claimed by it or stays claimable."""
    queue = await bench.queue()
    driver = await bench.another_driver()
    messages = some_messages(6)
    count = 0
    for turns, message in enumerate(messages):
        mine = await bench.consumer(queue)
        async with bench.background(mine.claim(1, min(60.0, bench.can.max_wait))) as claiming:
            sending = asyncio.ensure_future(bench.send(queue, message, driver=driver))
            for _ in range(2 * turns):
                await bench.clock.sleep(0)
            await mine.quiesce()
            await sending
            got = await bench.finish(claiming, "a claim on a quiesced consumer")
        await bench.ack(mine, got)
        count += len(got)

    await bench.claim(await bench.consumer(queue, driver=driver), len(messages) - count)


@check("rule 8")
async def settling_works_after_quiesce(bench: Bench) -> None:
    """A quiesced consumer still settles what it claimed, in every way."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(4))
    consumer = await bench.consumer(queue)
    held = await bench.claim(consumer, 4)

    await consumer.quiesce()

    expect_done(await consumer.extend([held[0]], bench.calm_lease), 1, "extend")
    expect_done(await consumer.ack([held[0]]), 1, "ack")
    expect_done(await consumer.release([held[1]], [0.0]), 1, "release")
    expect_done(await consumer.put_back([held[2]], [0.0], [Mark()]), 1, "put_back")
    note = DeadLetterNote(reason="failed")
    expect_done(await consumer.dead_letter([held[3]], [note]), 1, "dead_letter")
    reader = await bench.consumer(queue)
    await bench.claim(reader, 2)
    await bench.expect_nothing(reader, 0.0, "two messages were returned")
    await bench.claim(await bench.consumer(bench.dead(queue)))


@check()
async def closing_ends_a_waiting_claim(bench: Bench) -> None:
    """A claim that waits when its consumer is closed ends: empty, or with a ``DriverError``."""
    consumer = await bench.consumer(await bench.queue())

    async with bench.background(consumer.claim(1, min(60.0, bench.can.max_wait))) as claiming:
        await consumer.aclose()
        try:
            got = await bench.finish(claiming, "a claim on a closed consumer")
        except DriverError:
            return

    expect_equal(len(got), 0, "the number of messages")


@check("rule 3")
async def a_closed_consumer_refuses(bench: Bench) -> None:
    """A closed consumer may be closed again; it claims and settles nothing any more."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    held = await bench.claim(consumer)

    await consumer.aclose()
    await consumer.aclose()

    await expect_error(ClosedError, consumer.claim(1, 0.0), "a claim on a closed consumer")
    for name, call in OPERATIONS.items():
        try:
            results = await call(consumer, held, bench.calm_lease)
        except ClosedError:
            continue
        expect_lost(results, f"{name} on a closed consumer, unless it raises ClosedError,")


@check("rule 3")
async def a_closed_driver_refuses(bench: Bench) -> None:
    """A closed driver may be closed again; every call on it raises ``ClosedError``."""
    queue = await bench.queue()
    driver = await bench.another_driver()
    await driver.inspect(queue)

    await driver.aclose()
    await driver.aclose()

    await expect_error(ClosedError, driver.send(queue, [a_message()], [0.0]), "send")
    await expect_error(
        ClosedError, driver.consume(queue, lease=bench.calm_lease, prefetch=1), "consume"
    )
    await expect_error(ClosedError, driver.inspect(queue), "inspect")
    await expect_error(ClosedError, driver.purge(queue), "purge")
    await expect_error(ClosedError, driver.declare(bench.fresh_spec()), "declare")


@check()
async def closing_a_driver_gives_back_what_it_held(bench: Bench) -> None:
    """What a closed driver's consumers had not settled comes back, at the latest after a lease."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(3))
    driver = await bench.another_driver()
    await bench.claim(await bench.consumer(queue, driver=driver, lease=bench.lease), 3)

    await driver.aclose()

    yours = await bench.consumer(queue)
    await bench.claim(yours, 3, within=bench.lease + bench.patience)


@check("rule 1")
async def closing_leaves_no_task_behind(bench: Bench) -> None:
    """A driver that was used and closed leaves no task running on the loop."""
    queue = await bench.queue()
    before = asyncio.all_tasks()
    async with bench.harness.connect() as driver:
        await driver.send(queue, [a_message()], [0.0])
        consumer = await driver.consume(queue, lease=bench.calm_lease, prefetch=1)
        await bench.ack(consumer, await bench.claim(consumer))
        async with bench.background(consumer.claim(1, min(60.0, bench.can.max_wait))):
            await bench.breathe()
        await consumer.aclose()
    deadline = bench.clock.now() + bench.patience
    while (left := asyncio.all_tasks() - before) and bench.clock.now() < deadline:
        await bench.breathe()

    expect(not left, f"a closed driver must leave no task behind, but left {left!r:.400}")


@check("rule 1")
async def an_idle_driver_sets_no_timer(bench: Bench) -> None:
    """A driver on which nothing is called has no timer; seen on a fake clock only."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    await bench.claim(consumer)
    await bench.expect_nothing(consumer, bench.delay, "one message was sent")

    if isinstance(bench.clock, FakeClock):
        next_at = bench.clock.next_at
        expect(
            next_at is None or next_at > bench.clock.now() + _SOME_DAY,
            f"an idle driver must not set a timer for {next_at} on a clock that shows "
            f"{bench.clock.now()}",
        )


@check("rule 12")
async def a_tour_is_silent(bench: Bench) -> None:
    """Every call, done or refused, is made without logging above DEBUG; the runner listens."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(4))
    consumer = await bench.consumer(queue)
    for call in OPERATIONS.values():
        held = await bench.claim(consumer)
        await call(consumer, held, bench.calm_lease)
        await call(consumer, held, bench.calm_lease)
        await consumer.ack(held)
    await bench.driver.inspect(queue)
    await bench.driver.purge(queue)
    missing = bench.fresh_spec().name
    await expect_error(QueueNotFoundError, bench.driver.inspect(missing), "inspect")
    await consumer.quiesce()
    await consumer.aclose()


@check(needs=(TIMED, BATCHES))
async def a_crash_in_a_batch_loses_nothing(bench: Bench) -> None:
    """Messages of a consumer that is dropped in the middle of settling are there or done."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(6))
    driver = await bench.another_driver()
    mine = await bench.consumer(queue, driver=driver, lease=bench.lease)
    held_until = bench.clock.now() + bench.lease
    held = await bench.claim(mine, 6)
    first = await mine.ack(held[:2])
    bench.expect_in_time(held_until)
    expect_done(first, 2, "ack")
    settling = asyncio.ensure_future(mine.ack(held[2:4]))
    await bench.clock.sleep(0)
    await driver.aclose()
    await asyncio.wait({settling})
    acked = {delivery.message.id for delivery in held[:2]}
    if not settling.cancelled() and settling.exception() is None:
        answers = zip(held[2:4], settling.result(), strict=True)
        acked |= {delivery.message.id for delivery, answer in answers if answer is None}

    await bench.clock.sleep(1.02 * bench.lease)
    found = await find_all(bench, [queue], [delivery.message for delivery in held[4:]])
    expect(found.keys().isdisjoint(acked), "what was acked must not come back")

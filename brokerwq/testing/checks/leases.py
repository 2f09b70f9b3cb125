"""What a lease promises while it lasts, and when it ends."""

from __future__ import annotations

from brokerwq.errors import CannotExtendError, UnsupportedError
from brokerwq.testing.bench import (
    Bench,
    a_message,
    expect,
    expect_done,
    expect_equal,
    expect_error,
    some_messages,
)
from brokerwq.testing.catalogue import (
    CONNECTION,
    COUNTING,
    TIMED,
    boundless,
    check,
    finite,
)

_TEN_YEARS = 10 * 365 * 86_400.0


@check("lease", needs=(TIMED,))
async def a_message_comes_back_when_its_lease_ends(bench: Bench) -> None:
    """An unsettled message is hidden for its lease, and is claimable after it."""
    queue = await bench.queue()
    sent = a_message()
    await bench.send(queue, sent)
    mine = await bench.consumer(queue, lease=bench.lease)
    yours = await bench.consumer(queue, driver=await bench.another_driver())
    held_until = bench.clock.now() + bench.lease
    held = await bench.claim_one(mine)

    await bench.expect_nothing(
        yours, bench.lease / 2, "half of the lease is left", held_until=held_until
    )
    await bench.lose(mine, held)

    again = await bench.claim_one(yours)
    expect_equal(again.message.id, sent.id, "the id of what comes back")


@check("lease", needs=(TIMED,))
async def the_end_of_a_lease_wakes_a_waiting_claim(bench: Bench) -> None:
    """A claim that waits gets a message whose lease ends meanwhile."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    mine = await bench.consumer(queue, lease=bench.lease)
    yours = await bench.consumer(queue, driver=await bench.another_driver())
    await bench.claim_one(mine)

    wait = min(bench.lease + 6 * bench.patience, bench.can.max_wait)
    async with bench.background(yours.claim(1, wait)) as claiming:
        await bench.clock.sleep(1.02 * bench.lease)
        got = await bench.finish(claiming, "a claim that waits for the end of a lease")

    expect_equal(len(got), 1, "the number of messages")


@check("lease", needs=(CONNECTION,))
async def a_held_message_stays_with_its_connection(bench: Bench) -> None:
    """Where the connection is the lease, a message stays with it beyond any time."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    mine = await bench.consumer(queue, lease=bench.lease)
    yours = await bench.consumer(queue, driver=await bench.another_driver())
    held = await bench.claim_one(mine)

    await bench.expect_nothing(yours, 1.5 * bench.lease, "its connection lives")

    expect_done(await mine.ack([held]), 1, "ack")


@check("lease")
async def a_closed_consumer_gives_back_what_it_held(bench: Bench) -> None:
    """What a closed consumer has not settled comes back, at once or when its lease ends."""
    queue = await bench.queue()
    sent = some_messages(3)
    await bench.send(queue, *sent)
    mine = await bench.consumer(queue, lease=bench.lease)
    yours = await bench.consumer(queue, driver=await bench.another_driver())
    await bench.claim(mine, 3)

    await mine.aclose()

    again = await bench.claim(yours, 3, within=bench.lease + bench.patience)
    expect_equal(
        {delivery.message.id for delivery in again},
        {message.id for message in sent},
        "what comes back",
    )


@check("counts_receives", needs=(COUNTING,))
async def receives_survive_a_crash(bench: Bench) -> None:
    """A message that was held by a connection that closed has been received twice."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    async with bench.harness.connect() as driver:
        mine = await driver.consume(queue, lease=bench.lease, prefetch=1)
        await bench.claim_one(mine)

    yours = await bench.consumer(queue)
    again = await bench.claim_one(yours, within=bench.lease + bench.patience)

    expect_equal(again.receives, 2, "the receives of the second delivery")


@check("lease", needs=(TIMED,))
async def an_extended_lease_lasts_longer(bench: Bench) -> None:
    """After an extend a message stays hidden beyond its first lease, and can be settled."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    mine = await bench.consumer(queue, lease=bench.lease)
    yours = await bench.consumer(queue, driver=await bench.another_driver())
    claimed_at = bench.clock.now()
    held = await bench.claim_one(mine)

    results = await mine.extend([held], bench.calm_lease)

    bench.expect_in_time(claimed_at + bench.lease)
    expect_done(results, 1, "extend")
    await bench.expect_nothing(yours, 1.5 * bench.lease, "the lease was extended")
    expect_done(await mine.ack([held]), 1, "ack")


@check("lease", needs=(TIMED,))
async def an_extend_counts_from_now(bench: Bench) -> None:
    """An extend sets the end of the lease to so many seconds from now, also if that is sooner."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    mine = await bench.consumer(queue)
    yours = await bench.consumer(queue, driver=await bench.another_driver())
    held = await bench.claim_one(mine)

    expect_done(await mine.extend([held], bench.lease), 1, "extend")

    await bench.claim_one(yours, within=bench.lease + bench.patience)


@check("lease", needs=(CONNECTION,))
async def an_extend_within_the_longest_lease_is_granted(bench: Bench) -> None:
    """Where the connection is the lease, an extend is done as long as ``max_lease`` allows."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    mine = await bench.consumer(queue, lease=bench.lease)
    held = await bench.claim_one(mine)

    expect_done(
        await mine.extend([held], min(bench.calm_lease, bench.can.max_lease / 2)), 1, "extend"
    )

    expect_done(await mine.ack([held]), 1, "ack")


@check("max_lease", needs=(finite("max_lease"),))
async def a_lease_above_the_longest_is_refused(bench: Bench) -> None:
    """Consuming with a lease above ``max_lease`` raises ``UnsupportedError``."""
    queue = await bench.queue()

    await expect_error(
        UnsupportedError,
        bench.driver.consume(queue, lease=2 * bench.can.max_lease, prefetch=1),
        "consume with a lease above max_lease",
    )


@check("max_lease", needs=(finite("max_lease"),))
async def an_extend_above_the_longest_keeps_the_lease(bench: Bench) -> None:
    """An extend that nobody can grant answers ``CannotExtendError``; the lease is as before."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    mine = await bench.consumer(queue)
    yours = await bench.consumer(queue, driver=await bench.another_driver())
    held = await bench.claim_one(mine)

    results = await mine.extend([held], 2 * bench.can.max_lease)

    expect(
        len(results) == 1 and isinstance(results[0], CannotExtendError),
        f"extend beyond max_lease must answer CannotExtendError, not {results!r:.300}",
    )
    await bench.expect_nothing(yours, bench.delay, "the lease still runs")
    expect_done(await mine.ack([held]), 1, "ack")


@check("max_lease", needs=(boundless("max_lease"),))
async def a_lease_of_ten_years_is_granted(bench: Bench) -> None:
    """Where leases have no limit, ten years are granted, at the claim and by extend."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    mine = await bench.consumer(queue, lease=_TEN_YEARS)
    expect(mine.lease >= _TEN_YEARS, f"the lease must be ten years, not {mine.lease:g} s")
    held = await bench.claim_one(mine)

    expect_done(await mine.extend([held], 2 * _TEN_YEARS), 1, "extend")

    expect_done(await mine.ack([held]), 1, "ack")


@check()
async def a_consumer_tells_its_lease(bench: Bench) -> None:
    """``Consumer.lease`` is what was asked for, rounded up to what the broker can keep."""
    queue = await bench.queue()
    asked = bench.lease

    consumer = await bench.consumer(queue, lease=asked)

    expect(
        asked <= consumer.lease <= asked + 1.0,
        f"the lease must be {asked:g} s or a little more, not {consumer.lease:g}",
    )


@check(needs=(TIMED,))
async def a_queues_own_lease_is_taken(bench: Bench) -> None:
    """A consumer that names no lease gets the one its queue was declared with."""
    queue = await bench.queue(lease=bench.calm_lease / 2)

    consumer = await bench.driver.consume(queue, lease=None, prefetch=1)

    expect_equal(consumer.lease, bench.calm_lease / 2, "the lease of a consumer that named none")
    await consumer.aclose()

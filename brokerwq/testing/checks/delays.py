"""What delays promise: each message its own, never early."""

from __future__ import annotations

from collections.abc import Sequence

from brokerwq.driver.protocol import Consumer, Delivery, Mark
from brokerwq.errors import DriverError, UnsupportedError
from brokerwq.testing.bench import (
    Bench,
    a_message,
    expect,
    expect_done,
    expect_equal,
    some_messages,
)
from brokerwq.testing.catalogue import (
    RELEASE_DELAY,
    SEND_DELAY,
    UNCOUNTED,
    boundless,
    check,
    finite,
)

_TEN_YEARS = 10 * 365 * 86_400.0
_STEPS = (2.0, 0.0, 1.0)  # not in order, so that one delay for all cannot pass


async def _in_their_time(bench: Bench, consumer: Consumer, started: float) -> None:
    """Expect messages 0, 1, 2, delayed by ``_STEPS`` from some moment since ``started``."""
    held_until = started + bench.delay
    first = await bench.claim_one(consumer)
    bench.expect_in_time(held_until)
    expect_equal(first.message.body, b"1", "the body of the message without delay")
    # The others are looked for before their time: one delay for all would show.
    await bench.expect_nothing(
        consumer,
        (held_until - bench.clock.now()) / 2,
        "the others are delayed",
        held_until=held_until,
    )
    seen = [first.message.body]
    for _ in range(2):
        delivery = await bench.claim_one(consumer, within=2 * bench.delay + bench.patience)
        seen.append(delivery.message.body)
        delay = _STEPS[int(delivery.message.body)] * bench.delay
        came_after = bench.clock.now() - started
        expect(
            came_after >= delay - 0.02 * bench.delay,
            f"a message with a delay of {delay:g} s must not come after {came_after:g} s",
        )
    expect_equal(sorted(seen), [b"0", b"1", b"2"], "what came")
    await bench.expect_nothing(consumer, 0.0, "there were three messages")


@check("max_send_delay", needs=(SEND_DELAY,))
async def each_sent_message_has_its_own_delay(bench: Bench) -> None:
    """Messages of one send become claimable each after its own delay, and not before."""
    queue = await bench.queue()
    consumer = await bench.consumer(queue)
    started = bench.clock.now()

    await bench.send(
        queue, *some_messages(len(_STEPS)), delays=[step * bench.delay for step in _STEPS]
    )

    await _in_their_time(bench, consumer, started)


async def _held(bench: Bench) -> tuple[Consumer, list[Delivery]]:
    queue = await bench.queue()
    await bench.send(queue, *some_messages(len(_STEPS)))
    consumer = await bench.consumer(queue)
    held = await bench.claim(consumer, len(_STEPS))
    return consumer, sorted(held, key=lambda delivery: delivery.message.body)


def _batches(bench: Bench, items: Sequence[Delivery]) -> list[tuple[list[Delivery], list[float]]]:
    size = bench.can.max_settle
    delays = [step * bench.delay for step in _STEPS]
    return [
        (list(items[at : at + size]), delays[at : at + size]) for at in range(0, len(items), size)
    ]


@check("max_release_delay", needs=(RELEASE_DELAY,))
async def each_released_message_has_its_own_delay(bench: Bench) -> None:
    """Messages of one release become claimable each after its own delay, and not before."""
    consumer, held = await _held(bench)
    started = bench.clock.now()

    for batch, delays in _batches(bench, held):
        expect_done(await consumer.release(batch, delays), len(batch), "release")

    await _in_their_time(bench, consumer, started)


@check("max_release_delay", needs=(RELEASE_DELAY,))
async def each_message_put_back_has_its_own_delay(bench: Bench) -> None:
    """Messages of one put_back become claimable each after its own delay, and not before."""
    consumer, held = await _held(bench)
    started = bench.clock.now()

    for batch, delays in _batches(bench, held):
        marks = [Mark()] * len(batch)
        expect_done(await consumer.put_back(batch, delays, marks), len(batch), "put_back")

    await _in_their_time(bench, consumer, started)


@check("max_release_delay", needs=(RELEASE_DELAY, UNCOUNTED))
async def a_delay_keeps_the_mark(bench: Bench) -> None:
    """A message that is put back with a delay comes back with its mark and one receive."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    held = await bench.claim_one(consumer)
    mark = Mark(attempts=4, suspect=True)

    expect_done(await consumer.put_back([held], [bench.delay], [mark]), 1, "put_back")

    again = await bench.claim_one(consumer, within=bench.delay + bench.patience)
    expect_equal(again.message.attempts, 4, "the attempts")
    expect(again.message.suspect, "the suspect mark must be kept")
    expect_equal(again.receives, 1, "the receives")


@check("max_send_delay", needs=(SEND_DELAY,))
async def a_delayed_message_wakes_a_waiting_claim(bench: Bench) -> None:
    """A claim that waits gets a message when its delay is over, without another event."""
    queue = await bench.queue()
    consumer = await bench.consumer(queue)
    await bench.send(queue, a_message(), delays=[bench.delay])

    wait = min(bench.delay + 6 * bench.patience, bench.can.max_wait)
    async with bench.background(consumer.claim(1, wait)) as claiming:
        await bench.clock.sleep(bench.delay)
        got = await bench.finish(claiming, "a claim that waits for a delayed message")

    expect_equal(len(got), 1, "the number of messages")


@check("max_send_delay", needs=(finite("max_send_delay"),))
async def a_send_delay_above_the_limit_is_refused(bench: Bench) -> None:
    """A delay above ``max_send_delay`` answers ``UnsupportedError``, and nothing is sent early."""
    queue = await bench.queue()
    delay = 2 * bench.can.max_send_delay + 60
    try:
        answer: DriverError | None = (await bench.driver.send(queue, [a_message()], [delay]))[0]
    except UnsupportedError as exc:
        answer = exc

    expect(
        isinstance(answer, UnsupportedError),
        f"a send with a delay of {delay:g} s must answer UnsupportedError, not {answer!r:.300}",
    )
    await bench.expect_nothing(await bench.consumer(queue), bench.delay, "nothing was sent")


@check("max_release_delay", needs=(finite("max_release_delay"),))
async def a_release_delay_above_the_limit_is_refused(bench: Bench) -> None:
    """A delay above ``max_release_delay`` answers ``UnsupportedError``; the lease is kept."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    held = await bench.claim_one(consumer)
    delay = 2 * bench.can.max_release_delay + 60
    try:
        answer: DriverError | None = (await consumer.release([held], [delay]))[0]
    except UnsupportedError as exc:
        answer = exc

    expect(
        isinstance(answer, UnsupportedError),
        f"a release with a delay of {delay:g} s must answer UnsupportedError, not {answer!r:.300}",
    )
    expect_done(await consumer.ack([held]), 1, "ack after a release that was refused")


@check("max_send_delay", needs=(boundless("max_send_delay"),))
async def a_send_delay_of_ten_years_is_kept(bench: Bench) -> None:
    """Where send delays have no limit, ten years are accepted, and the message stays hidden."""
    queue = await bench.queue()
    await bench.send(queue, a_message(), delays=[_TEN_YEARS])

    await bench.expect_nothing(await bench.consumer(queue), bench.delay, "it is delayed")


@check("max_release_delay", needs=(boundless("max_release_delay"),))
async def a_release_delay_of_ten_years_is_kept(bench: Bench) -> None:
    """Where release delays have no limit, ten years are accepted; the message stays hidden."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    held = await bench.claim_one(consumer)

    expect_done(await consumer.release([held], [_TEN_YEARS]), 1, "release")

    await bench.expect_nothing(consumer, bench.delay, "it is delayed")

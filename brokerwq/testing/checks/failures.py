"""What a driver does when its broker cannot be reached. Every check here needs a hook."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from brokerwq.driver.protocol import Driver
from brokerwq.errors import DriverError, LeaseLostError
from brokerwq.testing.bench import (
    Bench,
    CheckFailedError,
    a_message,
    expect,
    expect_equal,
    some_messages,
)
from brokerwq.testing.catalogue import CONNECTION, DURABLE, NOT_DURABLE, check
from brokerwq.testing.checks.support import OPERATIONS


async def _cut(bench: Bench, driver: Driver) -> None:
    cut = bench.harness.cut_connection
    expect(cut is not None, "this check needs the hook cut_connection")
    if cut is not None:
        await cut(driver)


async def _recovers(bench: Bench, what: str, call: Callable[[], Awaitable[object]]) -> None:
    """Expect ``call`` to work within patience; what it raises until then must be retryable."""
    deadline = bench.clock.now() + bench.patience
    while True:
        try:
            await call()
        except DriverError as exc:
            expect(exc.retryable, f"{what} after an outage must be retryable, not {exc!r:.300}")
            if bench.clock.now() >= deadline:
                msg = f"{what} must work again after an outage, but: {exc!r:.300}"
                raise CheckFailedError(msg) from exc
        else:
            return
        await bench.breathe()


@check("rule 9", hooks=("cut_connection",))
async def a_lost_connection_is_made_again(bench: Bench) -> None:
    """After a lost connection the next calls connect again; nothing has to be opened anew."""
    queue = await bench.queue()
    driver = await bench.another_driver()
    await driver.inspect(queue)

    await _cut(bench, driver)

    await _recovers(bench, "inspect", lambda: driver.inspect(queue))
    await _recovers(bench, "send", lambda: driver.send(queue, [a_message()], [0.0]))
    await bench.claim_one(await bench.consumer(queue))


@check("rule 9", hooks=("cut_connection",))
async def a_consumer_outlives_its_connection(bench: Bench) -> None:
    """After a lost connection a consumer claims again, by itself or after one error."""
    queue = await bench.queue()
    driver = await bench.another_driver()
    consumer = await bench.consumer(queue, driver=driver)
    await bench.send(queue, a_message())
    await bench.ack(consumer, await bench.claim(consumer))

    await _cut(bench, driver)
    await bench.send(queue, a_message(b"after"))

    bodies: list[bytes] = []

    async def claim() -> None:
        got = await consumer.claim(1, min(bench.patience, bench.can.max_wait))
        bodies.extend(delivery.message.body for delivery in got)

    await _recovers(bench, "claim", claim)
    expect_equal(bodies, [b"after"], "what was claimed after the connection was lost")


@check("rule 9", "lease", needs=(CONNECTION,), hooks=("cut_connection",))
async def deliveries_of_a_lost_connection_are_lost(bench: Bench) -> None:
    """Where the connection is the lease, losing it returns the message and refuses its settles."""
    for name, call in OPERATIONS.items():
        queue = await bench.queue()
        await bench.send(queue, a_message())
        driver = await bench.another_driver()
        consumer = await bench.consumer(queue, driver=driver)
        held = await bench.claim(consumer)

        await _cut(bench, driver)

        try:
            results = await call(consumer, held, bench.lease)
        except DriverError as exc:
            expect(exc.retryable, f"{name} on a lost connection must be retryable: {exc!r:.300}")
            results = await call(consumer, held, bench.lease)
        expect(
            len(results) == 1 and isinstance(results[0], LeaseLostError),
            f"{name} after a lost connection must answer LeaseLostError, not {results!r:.300}",
        )
        with suppress(DriverError):
            await consumer.quiesce()
        again = await bench.claim_one(await bench.consumer(queue))
        expect_equal(again.message.id, held[0].message.id, "the id of what came back")


@check("rule 11", hooks=("cut_connection",))
async def a_cut_does_not_look_like_an_empty_queue(bench: Bench) -> None:
    """A claim that waits while its connection is cut gets the next message, or an error."""
    queue = await bench.queue()
    driver = await bench.another_driver()
    consumer = await bench.consumer(queue, driver=driver)
    wait = min(6 * bench.patience, bench.can.max_wait)

    async with bench.background(consumer.claim(1, wait)) as claiming:
        await _cut(bench, driver)
        await bench.send(queue, a_message())
        try:
            got = await bench.finish(claiming, "a claim whose connection was cut")
        except DriverError as exc:
            expect(exc.retryable, f"a cut connection must be retryable, not {exc!r:.300}")
            return

    expect_equal(len(got), 1, "the number of messages of a claim that raised nothing")


async def _fails(bench: Bench, what: str, call: Awaitable[object]) -> None:
    started = bench.clock.now()
    try:
        answer = await call
    except DriverError as exc:
        expect(exc.retryable, f"{what} in an outage must be retryable, not {exc!r:.300}")
        expect(
            exc.__cause__ is not None or exc.__context__ is None,
            f"{what} in an outage must raise ``from`` the broker's own error",
        )
    else:
        msg = f"{what} in an outage must raise, but answered {answer!r:.300}"
        raise CheckFailedError(msg)
    waited = bench.clock.now() - started
    expect(waited <= bench.patience, f"{what} in an outage must not take {waited:g} s to fail")


@check("rule 1", "rule 3", "rule 11", hooks=("outage",))
async def an_outage_is_an_error(bench: Bench) -> None:
    """While the broker cannot be reached every call raises a retryable error, after one try."""
    queue = await bench.queue()
    driver = await bench.another_driver()
    consumer = await bench.consumer(queue, driver=driver)
    outage = bench.harness.outage
    if outage is None:
        raise CheckFailedError("this check needs the hook outage")

    async with outage():
        await _fails(bench, "claim", consumer.claim(1, min(bench.lease, bench.can.max_wait)))
        await _fails(bench, "inspect", driver.inspect(queue))
        await _fails(bench, "purge", driver.purge(queue))
        await _fails(bench, "send", driver.send(queue, [a_message()], [0.0]))

    await _recovers(bench, "send", lambda: driver.send(queue, [a_message()], [0.0]))


@check("rule 11", hooks=("outage",))
async def an_outage_ends_a_waiting_claim(bench: Bench) -> None:
    """A claim that waits when the broker goes away raises; it does not answer nothing."""
    queue = await bench.queue()
    driver = await bench.another_driver()
    consumer = await bench.consumer(queue, driver=driver)
    outage = bench.harness.outage
    if outage is None:
        raise CheckFailedError("this check needs the hook outage")
    wait = min(bench.patience / 2, bench.can.max_wait)

    async with bench.background(consumer.claim(1, wait)) as claiming, outage():
        try:
            got = await bench.finish(claiming, "a claim whose broker went away")
        except DriverError as exc:
            expect(exc.retryable, f"an outage must be retryable, not {exc!r:.300}")
            return

    raise CheckFailedError(f"a claim whose broker went away must raise, not answer {got!r:.200}")


async def _restarted(bench: Bench) -> tuple[str, int]:
    """A queue whose broker was restarted, and how many messages it had before."""
    queue = await bench.queue()
    messages = some_messages(5)
    await bench.send(queue, *messages)
    restart = bench.harness.restart
    if restart is None:
        raise CheckFailedError("this check needs the hook restart")
    await restart()
    return queue, len(messages)


@check("durable", needs=(DURABLE,), hooks=("restart",))
async def what_was_sent_survives_a_restart(bench: Bench) -> None:
    """Messages whose send was done are there after the broker was restarted."""
    queue, count = await _restarted(bench)

    driver = await bench.another_driver()
    await bench.claim(await bench.consumer(queue, driver=driver), count)


@check("durable", needs=(NOT_DURABLE,), hooks=("restart",))
async def a_restart_begins_anew(bench: Bench) -> None:
    """Where messages are not kept, a restart loses them all; else ``durable`` is understated."""
    queue, _ = await _restarted(bench)

    driver = await bench.another_driver()
    spec = bench.harness.spec(queue)
    await driver.declare(spec)
    consumer = await bench.consumer(queue, driver=driver)
    await bench.expect_nothing(consumer, bench.delay, "the broker does not keep messages")

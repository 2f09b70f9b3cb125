"""What memory:// promises beyond the contract: spaces, threads, forks, bounded memory."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from brokerwq_memory import adapter
from brokerwq_memory.settings import MemorySettings

from brokerwq.driver import Driver, Mark, QueueSpec
from brokerwq.driver.registry import find_adapter
from brokerwq.errors import ClosedError, ConfigError, QueueNotFoundError
from brokerwq.message import DeadLetterNote, Message
from brokerwq.testing import FakeClock


def message(identifier: str = "1") -> Message:
    return Message(id=identifier, body=b"body")


@asynccontextmanager
async def opened(
    settings: MemorySettings, clock: FakeClock | None = None
) -> AsyncGenerator[Driver]:
    driver = adapter.build(settings, clock or FakeClock())
    await driver.open()
    try:
        yield driver
    finally:
        await driver.aclose()


def test_the_entry_point_names_the_adapter() -> None:
    assert find_adapter("memory://") is adapter


def test_an_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="colour"):
        adapter.parse_url("memory://?colour=red")


async def test_drivers_of_one_private_settings_value_share_its_queues() -> None:
    settings = adapter.parse_url("memory://")
    async with opened(settings) as one, opened(settings) as other:
        await one.declare(QueueSpec(name="q"))

        assert await other.queues() == ["q", "q-dead"]


async def test_two_private_spaces_are_apart() -> None:
    async with (
        opened(adapter.parse_url("memory://")) as one,
        opened(adapter.parse_url("memory://")) as other,
    ):
        await one.declare(QueueSpec(name="q"))

        assert await other.queues() == []


async def test_a_named_space_is_shared_and_outlives_its_drivers() -> None:
    url = f"memory://{uuid.uuid4()}"
    async with opened(adapter.parse_url(url)) as one:
        await one.declare(QueueSpec(name="q"))

    async with opened(adapter.parse_url(url)) as other:
        assert await other.queues() == ["q", "q-dead"]


async def test_a_claim_is_woken_from_another_thread_and_loop() -> None:
    settings = MemorySettings()
    clock = FakeClock()

    def send() -> None:
        async def main() -> None:
            async with opened(settings, clock) as driver:
                await driver.send("q", [message()], [0.0])

        asyncio.run(main())

    async with opened(settings, clock) as driver:
        await driver.declare(QueueSpec(name="q"))
        consumer = await driver.consume("q", lease=30, prefetch=1)
        claim = asyncio.create_task(consumer.claim(1, 60))
        await clock.settle()
        sender = threading.Thread(target=send)
        sender.start()

        deliveries = await claim

        sender.join()
        assert [delivery.message.id for delivery in deliveries] == ["1"]


async def test_many_threads_claim_every_message_once() -> None:
    settings = MemorySettings()
    count, threads = 400, 4
    claimed: list[str] = []

    def drain() -> None:
        async def main() -> None:
            async with opened(settings) as driver:
                consumer = await driver.consume("q", lease=30, prefetch=1)
                while deliveries := await consumer.claim(3, 0):
                    claimed.extend(delivery.message.id for delivery in deliveries)
                    assert await consumer.ack(deliveries) == [None] * len(deliveries)

        asyncio.run(main())

    async with opened(settings) as driver:
        await driver.declare(QueueSpec(name="q"))
        await driver.send("q", [message(str(nth)) for nth in range(count)], [0.0] * count)
        workers = [threading.Thread(target=drain) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            await asyncio.to_thread(worker.join)

        assert sorted(claimed, key=int) == [str(nth) for nth in range(count)]


async def test_a_delayed_message_ends_a_wait_when_it_is_due() -> None:
    clock = FakeClock()
    async with opened(MemorySettings(), clock) as driver:
        await driver.declare(QueueSpec(name="q"))
        await driver.send("q", [message()], [5.0])
        consumer = await driver.consume("q", lease=30, prefetch=1)

        deliveries = await clock.drive(consumer.claim(1, 60))

        assert len(deliveries) == 1
        assert clock.now() == 1005.0


async def test_stats_tell_when_the_first_delay_ends() -> None:
    clock = FakeClock()
    async with opened(MemorySettings(), clock) as driver:
        await driver.declare(QueueSpec(name="q"))
        await driver.send("q", [message("1"), message("2")], [7.0, 5.0])
        clock.advance(1)

        stats = await driver.inspect("q")

        assert stats.next_due == 4.0
        assert stats.delayed.value == 2


async def test_settled_messages_are_not_kept_until_their_lease_would_have_ended() -> None:
    settings = MemorySettings()
    async with opened(settings) as driver:
        await driver.declare(QueueSpec(name="q"))
        consumer = await driver.consume("q", lease=3600, prefetch=1)
        for _ in range(500):
            await driver.send("q", [message()], [0.0])
            await consumer.ack(await consumer.claim(1, 0))

        assert settings.space.queues["q"].timers < 100


async def test_a_message_is_kept_as_a_wire_would_carry_it() -> None:
    headers = {"colour": "red"}
    async with opened(MemorySettings()) as driver:
        await driver.declare(QueueSpec(name="q"))
        await driver.send("q", [Message(id="1", body=b"", headers=headers)], [0.0])
        headers["colour"] = "changed by the sender afterwards"
        consumer = await driver.consume("q", lease=30, prefetch=1)

        (delivery,) = await consumer.claim(1, 0)

        assert delivery.message.headers == {"colour": "red"}


async def test_an_unreadable_envelope_is_a_defect_and_survives_a_dead_letter() -> None:
    settings = MemorySettings()
    async with opened(settings) as driver:
        await driver.declare(QueueSpec(name="q"))
        await driver.send("q", [message()], [0.0])
        next(iter(settings.space.queues["q"].shelf)).headers["bwq-attempts"] = "many"
        consumer = await driver.consume("q", lease=30, prefetch=1)

        (delivery,) = await consumer.claim(1, 0)

        assert "bwq-attempts" in delivery.defect
        assert await consumer.dead_letter([delivery], [DeadLetterNote(reason="decode")]) == [None]


async def test_a_dead_letter_queue_has_no_dead_letter_queue_until_it_is_declared() -> None:
    async with opened(MemorySettings()) as driver:
        await driver.declare(QueueSpec(name="q"))
        await driver.send("q-dead", [message()], [0.0])
        consumer = await driver.consume("q-dead", lease=30, prefetch=1)
        deliveries = await consumer.claim(1, 0)

        (refused,) = await consumer.dead_letter(deliveries, [DeadLetterNote(reason="x")])
        await driver.declare(QueueSpec(name="q-dead"))
        (taken,) = await consumer.dead_letter(deliveries, [DeadLetterNote(reason="x")])

        assert isinstance(refused, QueueNotFoundError)
        assert taken is None
        assert (await driver.inspect("q-dead")).dead.value == 1


async def test_retention_and_order_are_named_as_what_cannot_be_had() -> None:
    async with opened(MemorySettings()) as driver:
        differences = await driver.declare(QueueSpec(name="q", retention=60, ordered=True))

        assert [difference.property for difference in differences] == ["ordered", "retention"]
        assert await driver.queues() == []


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800", "n" * 256])
async def test_an_impossible_queue_name_is_refused(name: str) -> None:
    async with opened(MemorySettings()) as driver:
        with pytest.raises(ConfigError):
            await driver.declare(QueueSpec(name=name))


async def test_closing_the_driver_ends_a_waiting_claim() -> None:
    clock = FakeClock()
    async with opened(MemorySettings(), clock) as driver:
        await driver.declare(QueueSpec(name="q"))
        consumer = await driver.consume("q", lease=30, prefetch=1)
        claim = asyncio.create_task(consumer.claim(1, 60))
        await clock.settle()
        await driver.aclose()

        with pytest.raises(ClosedError):
            await claim


async def test_put_back_counts_receives_anew() -> None:
    async with opened(MemorySettings()) as driver:
        await driver.declare(QueueSpec(name="q"))
        await driver.send("q", [message()], [0.0])
        consumer = await driver.consume("q", lease=30, prefetch=1)
        await consumer.release(await consumer.claim(1, 0), [0.0])
        (second,) = await consumer.claim(1, 0)
        await consumer.put_back([second], [0.0], [Mark(attempts=1)])

        (third,) = await consumer.claim(1, 0)

        assert (second.receives, third.receives, third.message.attempts) == (2, 1, 1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_that_its_copy_is_its_own() -> None:
    settings = MemorySettings()

    async def main() -> None:
        async with opened(settings) as driver:
            await driver.declare(QueueSpec(name="q"))

    asyncio.run(main())
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(main())
        except ClosedError as exc:
            os._exit(0 if "fork" in str(exc) else 2)
        os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

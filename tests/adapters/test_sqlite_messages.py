"""Order, clocks, large bodies, unreadable rows and counts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Self

import pytest
from brokerwq_sqlite.statements import PURGE_CHUNK
from brokerwq_sqlite.wire import INLINE_BODY_BYTES

from brokerwq.driver import Mark, QueueSpec
from brokerwq.errors import (
    ConfigError,
    LeaseLostError,
    MessageRefusedError,
    MessageTooLargeError,
    QueueNotFoundError,
)
from brokerwq.message import DeadLetterNote, Message
from brokerwq.testing import FakeClock
from tests.adapters.sqlite_lab import QUEUE, Lab, ids, messages, send, until_parked

DAY = 86_400.0


async def test_messages_are_claimed_in_the_order_in_which_they_became_due(lab: Lab) -> None:
    clock = FakeClock()
    async with lab.consumer(clock=clock) as (driver, consumer):
        await send(driver, "delayed", delay=2.0)
        await send(driver, "first")
        clock.advance(1)
        await send(driver, "second")
        clock.advance(3)
        await send(driver, "last")

        assert ids(await consumer.claim(10, 0)) == ["first", "second", "delayed", "last"]


async def test_a_released_message_queues_up_behind_those_that_are_ready(lab: Lab) -> None:
    clock = FakeClock()
    async with lab.consumer(clock=clock) as (driver, consumer):
        await send(driver, "1", "2", "3")
        held = await consumer.claim(1, 0)
        clock.advance(1)
        await consumer.release(held, [0.0])

        assert ids(await consumer.claim(10, 0)) == ["2", "3", "1"]


async def test_an_expired_lease_returns_the_message_as_of_its_end(lab: Lab) -> None:
    clock = FakeClock()
    async with lab.consumer(lease=10, clock=clock) as (driver, consumer):
        await send(driver, "expires")
        await consumer.claim(1, 0)
        clock.advance(9)
        await send(driver, "before its end")
        clock.advance(2)
        await send(driver, "after its end")
        clock.advance(1)

        deliveries = await consumer.claim(10, 0)

        assert ids(deliveries) == ["before its end", "expires", "after its end"]
        assert [delivery.receives for delivery in deliveries] == [1, 2, 1]


@pytest.mark.parametrize("jump", [600.0, -600.0, 10 * DAY, -10 * DAY])
async def test_a_set_clock_neither_ends_nor_prolongs_a_lease(lab: Lab, jump: float) -> None:
    clock = FakeClock()
    async with lab.consumer(lease=30, clock=clock) as (driver, consumer):
        await send(driver, "1")
        held = await consumer.claim(1, 0)
        clock.jump_wall(jump)
        clock.advance(29)
        stolen = await consumer.claim(1, 0)
        renewed = await consumer.extend(held, 30)
        clock.advance(31)

        assert not stolen
        assert renewed == [None]
        assert ids(await consumer.claim(1, 0)) == ["1"]


@pytest.mark.parametrize("jump", [600.0, -600.0])
async def test_a_set_clock_hides_no_message_that_is_ready(lab: Lab, jump: float) -> None:
    clock = FakeClock()
    async with lab.consumer(clock=clock) as (driver, consumer):
        await send(driver, "1")
        held = await consumer.claim(1, 0)
        clock.jump_wall(jump)
        await consumer.release(held, [0.0])
        await send(driver, "2")
        clock.jump_wall(-2 * jump)

        assert sorted(ids(await consumer.claim(10, 0))) == ["1", "2"]


async def test_a_delay_survives_a_reboot_to_the_second(lab: Lab) -> None:
    before = FakeClock(now=50_000.0)
    async with lab.consumer(clock=before) as (driver, _):
        await send(driver, "1", delay=100.0)
    after = FakeClock(now=5.0, utcnow=before.utcnow() + timedelta(seconds=60))

    async with lab.consumer(clock=after) as (driver, consumer):
        after.advance(39.9)
        early = await consumer.claim(1, 0)
        after.advance(0.1)

        assert not early
        assert ids(await consumer.claim(1, 0)) == ["1"]


async def test_a_reboot_ends_every_lease_and_keeps_the_count(lab: Lab) -> None:
    before = FakeClock(now=50_000.0)
    async with lab.consumer(lease=3600, clock=before) as (driver, consumer):
        await send(driver, "1")
        held = await consumer.claim(1, 0)

    async with lab.consumer(clock=FakeClock(now=5.0)) as (_, consumer):
        (delivery,) = await consumer.claim(1, 0)
        (late,) = await consumer.ack(held)

        assert delivery.receives == 2
        assert isinstance(late, LeaseLostError)


async def test_a_boot_of_another_name_ends_every_lease(lab: Lab) -> None:
    clock = FakeClock()
    async with lab.consumer(lease=3600, clock=clock) as (driver, consumer):
        await send(driver, "1")
        await consumer.claim(1, 0)
    lab.sql("UPDATE machine SET boot = 'the one before'")

    async with lab.consumer(clock=clock) as (_, consumer):
        assert ids(await consumer.claim(1, 0)) == ["1"]


async def test_a_boot_without_a_name_is_not_taken_for_another_one(lab: Lab) -> None:
    clock = FakeClock()
    async with lab.consumer(lease=3600, clock=clock) as (driver, consumer):
        await send(driver, "1")
        await consumer.claim(1, 0)
    lab.sql("UPDATE machine SET boot = ''")

    async with lab.consumer(clock=clock) as (_, consumer):
        assert not await consumer.claim(1, 0)


async def test_another_process_of_the_same_boot_respects_the_lease(lab: Lab) -> None:
    clock = FakeClock()
    async with (
        lab.consumer(lease=30, clock=clock) as (driver, consumer),
        lab.consumer(clock=clock) as (_, other),
    ):
        await send(driver, "1")
        await consumer.claim(1, 0)
        clock.advance(29.9)

        assert not await other.claim(1, 0)


async def test_a_lease_is_lost_at_its_end_though_nobody_claimed(lab: Lab) -> None:
    clock = FakeClock()
    async with lab.consumer(lease=30, clock=clock) as (driver, consumer):
        await send(driver, "1", "2")
        held = await consumer.claim(2, 0)
        clock.advance(30)

        results = [
            *await consumer.extend(held, 30),
            *await consumer.release(held, [0.0, 0.0]),
            *await consumer.put_back(held, [0.0, 0.0], [Mark(), Mark()]),
            *await consumer.dead_letter(held, [DeadLetterNote(reason="x")] * 2),
            *await consumer.ack(held),
        ]

        assert len(results) == 10
        assert all(isinstance(result, LeaseLostError) for result in results)
        assert (await driver.inspect(QUEUE)).ready.value == 2


async def test_a_late_batch_never_settles_what_somebody_else_has_claimed(lab: Lab) -> None:
    clock = FakeClock()
    async with lab.consumer(lease=30, clock=clock) as (driver, consumer):
        await send(driver, "1", "2")
        old = await consumer.claim(2, 0)
        clock.advance(31)
        new = await consumer.claim(2, 0)

        late = [*await consumer.ack(old), *await consumer.extend(old, 900)]
        clock.advance(29)

        assert all(isinstance(result, LeaseLostError) for result in late)
        assert await consumer.ack(new) == [None, None]


async def test_one_lost_lease_in_a_batch_does_not_keep_the_others_from_being_settled(
    lab: Lab,
) -> None:
    async with lab.consumer() as (driver, consumer):
        await send(driver, "1", "2", "3")
        held = await consumer.claim(3, 0)
        await consumer.ack(held[1:2])

        extended = await consumer.extend(held, 60)
        acked = await consumer.ack([*held, held[0]])

        assert [isinstance(result, LeaseLostError) for result in extended] == [False, True, False]
        assert [isinstance(result, LeaseLostError) for result in acked] == [
            False,
            True,
            False,
            True,
        ]
        assert lab.sql("SELECT count(*) FROM message") == [(0,)]


async def test_a_delivery_of_a_deleted_message_never_settles_its_successor_in_the_file(
    lab: Lab,
) -> None:
    async with lab.consumer() as (driver, consumer):
        await send(driver, "old")
        old = await consumer.claim(1, 0)
        await consumer.ack(old)
        await send(driver, "new")
        new = await consumer.claim(1, 0)

        (late,) = await consumer.ack(old)

        assert lab.sql("SELECT count(DISTINCT seq) FROM message") == [(1,)]
        assert isinstance(late, LeaseLostError)
        assert await consumer.ack(new) == [None]


async def test_a_large_body_comes_back_whole_through_every_return(lab: Lab) -> None:
    body = bytes(range(256)) * 4000
    async with lab.consumer() as (driver, consumer):
        small = Message(id="small", body=b"\0" * INLINE_BODY_BYTES)
        await driver.send(QUEUE, [Message(id="large", body=body), small], [0.0, 0.0])
        first, second = await consumer.claim(2, 0)
        await consumer.release([first], [0.0])
        (again,) = await consumer.claim(1, 0)
        await consumer.put_back([again], [0.0], [Mark(attempts=1)])
        (again,) = await consumer.claim(1, 0)
        await consumer.dead_letter([again], [DeadLetterNote(reason="x")])
        dead = await driver.consume(f"{QUEUE}-dead", lease=30, prefetch=1)
        (buried,) = await dead.claim(1, 0)

        assert first.message.body == again.message.body == buried.message.body == body
        assert second.message.body == small.body
        assert await dead.ack([buried]) == [None]
        assert await consumer.ack([second]) == [None]
        assert lab.sql("SELECT count(*) FROM large_body") == [(0,)]


async def test_claiming_a_large_message_does_not_write_it_again(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        await driver.send(QUEUE, [Message(id="1", body=b"x" * 3_000_000)], [0.0])
        lab.sql("PRAGMA wal_checkpoint(TRUNCATE)")
        held = await consumer.claim(1, 0)
        pages_of_claim = pages_in_log(lab)
        await consumer.extend(held, 60)

        assert 0 < pages_of_claim < 50
        assert 0 < pages_in_log(lab) < 50


def pages_in_log(lab: Lab) -> int:
    pages = lab.sql("PRAGMA wal_checkpoint(PASSIVE)")[0][1]
    assert isinstance(pages, int)
    return pages


async def test_one_message_that_is_too_large_is_refused_alone(lab: Lab) -> None:
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        limit = int(driver.capabilities.max_message_bytes)
        huge = Message(id="huge", body=_Pretended(limit + 1))

        results = await driver.send(QUEUE, [*messages("1"), huge, *messages("2")], [0.0, 0.0, 0.0])

        assert [type(result) for result in results] == [
            type(None),
            MessageTooLargeError,
            type(None),
        ]
        assert (await driver.inspect(QUEUE)).ready.value == 2


class _Pretended(bytes):
    """A body that claims a size without taking the room."""

    def __new__(cls, size: int) -> Self:
        made = super().__new__(cls, b"")
        made.size = size
        return made

    size: int

    def __len__(self) -> int:
        return self.size


async def test_one_message_that_sqlite_cannot_store_is_refused_alone(lab: Lab) -> None:
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        lone = Message(id="\ud800", body=b"")

        results = await driver.send(QUEUE, [*messages("1"), lone, *messages("2")], [0.0, 0.0, 0.0])

        assert [type(result) for result in results] == [
            type(None),
            MessageRefusedError,
            type(None),
        ]
        assert (await driver.inspect(QUEUE)).ready.value == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("headers = '{'", "headers"),
        ("headers = '[1]'", "headers"),
        ("headers = '{\"a\": 1}'", "headers holds what is not text"),
        (f"headers = '{'[' * 100_000}'", "headers"),
        ("envelope = 'nonsense'", "envelope"),
        ('envelope = \'{"bwq-attempts": "many"}\'', "bwq-attempts"),
        ('envelope = \'{"bwq-v": "9"}\'', "bwq-v"),
        ("envelope = CAST(x'ff' AS TEXT)", "envelope"),
        ("id = x'00'", "id"),
        ("type = CAST(x'ff' AS TEXT), envelope = '{'", "envelope"),
        ("content_type = x'00'", "content_type"),
        ("created = 9e18", "bwq-created"),
        ("created = 'soon'", "bwq-created"),
        ("body = NULL", "the body is missing"),
        ("body = 'text'", "body='text'"),
        ("body = 7", "body=7"),
    ],
)
async def test_a_row_that_cannot_be_read_is_a_defect_that_can_be_buried(
    lab: Lab, change: str, named: str
) -> None:
    async with lab.consumer() as (driver, consumer):
        await send(driver, "sound", "broken")
        lab.sql(f"UPDATE message SET {change} WHERE id = 'broken'")  # noqa: S608

        sound, broken = await consumer.claim(2, 0)

        assert not sound.defect
        assert named in broken.defect
        assert await consumer.dead_letter([broken], [DeadLetterNote(reason="decode")]) == [None]
        dead = await driver.consume(f"{QUEUE}-dead", lease=30, prefetch=1)
        (buried,) = await dead.claim(1, 0)
        assert buried.message.dead is not None
        assert buried.message.dead.reason == "decode"


async def test_the_whole_message_comes_back_as_it_was_sent(lab: Lab) -> None:
    moment = datetime(2026, 3, 1, 12, 30, 0, 123_000, tzinfo=UTC)
    sent = Message(
        id="1 \0 é",
        body=b"\0\xff",
        type="t",
        content_type="text/plain",
        headers={"a": 'quote " and \\ and \0 and \u2028 and 😀', "": "", "A": "case"},
        created_at=moment,
        not_before=moment + timedelta(days=1),
        attempts=3,
        redrives=2,
        key="k",
        group="g",
        cause="c",
        suspect=True,
        unknown_since=moment,
        snoozed=1.5,
        dead=DeadLetterNote(reason="failed", attempts=4, queue="q", first_at=moment),
    )
    async with lab.consumer() as (driver, consumer):
        await driver.send(QUEUE, [sent, Message(id="", body=b"")], [0.0, 0.0])

        whole, empty = await consumer.claim(2, 0)

        assert whole.message == sent
        assert empty.message == Message(id="", body=b"")
        assert not whole.defect
        assert not empty.defect


@pytest.mark.parametrize("count", [0, -1])
async def test_a_claim_of_no_messages_takes_none(lab: Lab, count: int) -> None:
    async with lab.consumer() as (driver, consumer):
        await send(driver, "1", "2")

        assert not await consumer.claim(count, 0)


async def test_a_cancelled_claim_gives_back_what_it_took_uncounted(
    lab: Lab,
) -> None:
    async with lab.consumer() as (driver, consumer):
        await send(driver, "1", "2")
        cancelled = 0
        for _ in range(40):
            claim = asyncio.ensure_future(consumer.claim(1, 0))
            for _ in range(cancelled % 4):
                await asyncio.sleep(0)
            claim.cancel()
            await asyncio.wait([claim])
            if claim.cancelled():
                cancelled += 1
            else:
                await consumer.put_back(claim.result(), [0.0], [Mark()])

        found = list(await consumer.claim(10, 5))
        found += await consumer.claim(10, 5) if len(found) < 2 else []

        assert cancelled
        assert sorted(ids(found)) == ["1", "2"]
        assert [delivery.receives for delivery in found] == [1, 1]


async def test_a_claim_cancelled_at_the_very_end_of_a_driver_is_given_back(lab: Lab) -> None:
    async with lab.consumer(lease=3600) as (driver, consumer):
        await send(driver, "1")
        claim = asyncio.ensure_future(consumer.claim(1, 0))
        await asyncio.sleep(0)
        claim.cancel()
        await asyncio.wait([claim])
        await driver.aclose()

        assert lab.sql("SELECT state, receives, token FROM message") == [(0, 0, None)]


@pytest.mark.slow
async def test_a_waiting_claim_sees_a_delay_end_and_a_lease_end(lab: Lab) -> None:
    async with (
        lab.consumer(lease=0.15) as (driver, consumer),
        lab.consumer() as (other_driver, other),
    ):
        await send(driver, "1")
        await consumer.claim(1, 0)
        waiting = asyncio.ensure_future(other.claim(1, 30))
        await until_parked(other_driver)
        await send(driver, "2", delay=0.05)

        assert ids(await waiting) == ["2"]
        assert ids(await other.claim(1, 30)) == ["1"]


@pytest.mark.slow
async def test_a_waiting_claim_sees_the_lease_end_that_its_own_driver_gave(lab: Lab) -> None:
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        holder = await driver.consume(QUEUE, lease=0.15, prefetch=1)
        waiter = await driver.consume(QUEUE, lease=30, prefetch=1)
        taken = asyncio.ensure_future(holder.claim(1, 30))
        await until_parked(driver)
        waiting = asyncio.ensure_future(waiter.claim(1, 30))
        await send(driver, "1")
        done, _ = await asyncio.wait([taken, waiting], return_when=asyncio.FIRST_COMPLETED)
        (first,) = done

        if first is taken:
            assert ids(await waiting) == ["1"]
        else:
            taken.cancel()
            await asyncio.wait([taken])


async def test_stats_are_exact_in_every_state(lab: Lab) -> None:
    clock = FakeClock()
    async with lab.consumer(lease=10, clock=clock) as (driver, consumer):
        await send(driver, "expired", "dead", "1", "2")
        held = await consumer.claim(2, 0)
        await consumer.dead_letter(held[1:], [DeadLetterNote(reason="x")])
        await send(driver, "due", delay=5)
        await send(driver, "delayed", delay=50)
        clock.advance(20)
        await send(driver, "young")
        leased = await driver.consume(QUEUE, lease=100, prefetch=1)

        before = await driver.inspect(QUEUE)
        await leased.claim(2, 0)
        after = await driver.inspect(QUEUE)

        assert (before.ready.value, before.leased.value) == (5, 0)
        assert (before.delayed.value, before.dead.value) == (1, 1)
        assert (before.oldest_age, before.next_due) == (20.0, 30.0)
        assert (after.ready.value, after.leased.value, after.delayed.value) == (3, 2, 1)


@pytest.mark.slow
async def test_a_purge_spares_what_is_leased_and_other_queues(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        await driver.declare(QueueSpec(name="other"))
        await driver.send("other", messages("1"), [0.0])
        await send(driver, "held")
        held = await consumer.claim(1, 0)
        await send(driver, "delayed", delay=60)
        many = messages(*map(str, range(500)))
        for _ in range(PURGE_CHUNK // 500 + 1):
            await driver.send(QUEUE, many, [0.0] * 500)

        await driver.purge(QUEUE)

        stats = await driver.inspect(QUEUE)
        assert (stats.ready.value, stats.delayed.value, stats.leased.value) == (0, 0, 1)
        assert (await driver.inspect("other")).ready.value == 1
        assert await consumer.ack(held) == [None]


async def test_a_later_declaration_sets_the_lease_that_unnamed_claims_get(lab: Lab) -> None:
    async with lab.driver() as driver:
        leases: list[float] = []
        for lease in (None, 30.0, None, 45.0):
            assert await driver.declare(QueueSpec(name=QUEUE, lease=lease)) == []
            leases.append((await driver.consume(QUEUE, lease=None, prefetch=1)).lease)

        assert leases == [60.0, 30.0, 30.0, 45.0]


async def test_another_dead_letter_queue_is_a_difference_and_nothing_is_made(lab: Lab) -> None:
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name=QUEUE))

        (difference,) = await driver.declare(QueueSpec(name=QUEUE, dead_letter="graveyard"))

        assert (difference.property, difference.found) == ("dead_letter", f"{QUEUE}-dead")
        assert await driver.queues() == [QUEUE, f"{QUEUE}-dead"]


async def test_a_dead_letter_queue_can_be_declared_later_in_its_own_right(lab: Lab) -> None:
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        await driver.send(f"{QUEUE}-dead", messages("1"), [0.0])
        consumer = await driver.consume(f"{QUEUE}-dead", lease=30, prefetch=1)
        held = await consumer.claim(1, 0)
        with pytest.raises(QueueNotFoundError, match="has no dead-letter queue"):
            await consumer.dead_letter(held, [DeadLetterNote(reason="x")])

        assert await driver.declare(QueueSpec(name=f"{QUEUE}-dead", lease=5)) == []
        assert await consumer.dead_letter(held, [DeadLetterNote(reason="x")]) == [None]
        assert (await driver.inspect(f"{QUEUE}-dead")).dead.value == 1


async def test_checking_never_writes(lab: Lab) -> None:
    async with lab.driver() as driver:
        with pytest.raises(QueueNotFoundError):
            await driver.declare(QueueSpec(name=QUEUE), check_only=True)
        await driver.declare(QueueSpec(name=QUEUE))

        assert await driver.declare(QueueSpec(name=QUEUE, lease=9), check_only=True) == []
        assert lab.sql("SELECT name, lease FROM queue ORDER BY id")[0] == (QUEUE, None)


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800", "n" * 256])
async def test_an_impossible_queue_name_is_refused(lab: Lab, name: str) -> None:
    async with lab.driver() as driver:
        with pytest.raises(ConfigError, match="queue name"):
            await driver.declare(QueueSpec(name=name))

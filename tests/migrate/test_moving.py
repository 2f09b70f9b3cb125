from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from brokerwq.driver import Mark, QueueSpec
from brokerwq.driver.moving import Hastening
from brokerwq.errors import ConfigError, QueueNotFoundError
from brokerwq.message import DeadLetterNote
from brokerwq.migrate import Ledger, MigrationRecord, MoveReport
from brokerwq.migrate.cargo import digest_of
from brokerwq.migrate.entry import Moved
from tests.migrate.lab import DEAD, QUEUE, Lab, made, opened


@pytest.mark.slow
async def test_every_message_arrives_as_it_was(lab: Lab) -> None:
    sent = [
        made(n, key=f"k{n}", cause="parent", group="g", headers={"ü": "ö", "n": str(n)})
        for n in range(250)
    ]
    await lab.declare()
    await lab.send(sent)

    report = await lab.run()

    assert (report.moved, report.refused, report.is_complete) == (250, 0, True)
    arrived = {d.message.id: d for d in await lab.take(lab.target)}
    assert arrived.keys() == {message.id for message in sent}
    for message in sent:
        found = arrived[message.id].message
        assert (found.body, found.headers, found.key, found.cause, found.group) == (
            message.body,
            message.headers,
            message.key,
            message.cause,
            message.group,
        )
        assert found.created_at is not None
        assert arrived[message.id].attempt == 1
    assert await lab.counts(lab.source) == (0, 0, 0)


@pytest.mark.slow
async def test_attempts_add_up(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(1, attempts=2)])
    async with opened(lab.source) as driver:
        consumer = await driver.consume(QUEUE, lease=60, prefetch=1)
        (delivery,) = await consumer.claim(1, 0)
        assert delivery.attempt == 3
        await consumer.release([delivery], [0.0])  # a third attempt that failed

    await lab.run()

    (arrived,) = await lab.take(lab.target)
    assert arrived.attempt == 4
    assert arrived.message.suspect  # as it was at the source: received, and not settled in peace


@pytest.mark.slow
async def test_what_is_put_back_for_now_is_no_suspect(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(1)])
    async with opened(lab.source) as driver:
        consumer = await driver.consume(QUEUE, lease=60, prefetch=1)
        (delivery,) = await consumer.claim(1, 0)
        await consumer.put_back([delivery], [0.0], [Mark.of(delivery.message)])

    await lab.run()

    (arrived,) = await lab.take(lab.target)
    assert (arrived.attempt, arrived.message.suspect) == (1, False)


@pytest.mark.slow
async def test_delayed_messages_keep_their_time(lab: Lab) -> None:
    await lab.declare()
    due = datetime.now(UTC) + timedelta(hours=2)
    await lab.send([made(1, not_before=due)])
    await lab.send([made(2)], delay=0.4)
    started = datetime.now(UTC)

    report = await lab.run()

    assert report.moved == 2
    assert datetime.now(UTC) - started >= timedelta(seconds=0.35)
    ready, _, delayed = await lab.counts(lab.target)
    assert (ready, delayed) == (1, 1)
    async with opened(lab.target) as driver:
        stats = await driver.inspect(QUEUE)
        assert stats.next_due is not None
        assert 7100 < stats.next_due <= 7200


@pytest.mark.slow
async def test_who_does_not_wait_leaves_what_is_delayed(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(1)])
    await lab.send([made(2)], delay=3600)

    report = await lab.run(waits=False)

    assert report.moved == 1
    assert await lab.counts(lab.source) == (0, 0, 1)


@pytest.mark.slow
async def test_dead_letters_and_their_notes_come_along(lab: Lab) -> None:
    note = DeadLetterNote(
        reason="failed",
        error_type="ValueError",
        error="no",
        digest="abc",
        attempts=5,
        queue=QUEUE,
        dead_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    await lab.declare()
    await lab.send([made(1, dead=note, redrives=2)], queue=DEAD)
    await lab.take(lab.source, DEAD)  # a look that was killed: no attempt of a dead letter
    async with opened(lab.source) as driver:
        await driver.purge(DEAD)
    await lab.send([made(1, dead=note, redrives=2)], queue=DEAD)

    await lab.run(waits=False)

    (arrived,) = await lab.take(lab.target, DEAD)
    assert arrived.message.dead == note
    assert (arrived.message.redrives, arrived.message.attempts) == (2, 0)
    assert await lab.take(lab.target) == []


@pytest.mark.slow
async def test_queues_can_be_renamed(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(1)])
    await lab.send([made(2)], queue=DEAD)

    async with lab.migration(queues={QUEUE: "new"}) as migration:
        await migration.run(settle=0)

    assert len(await lab.take(lab.target, "new")) == 1
    assert len(await lab.take(lab.target, "new-dead")) == 1


@pytest.mark.slow
async def test_a_rate_is_kept(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(60)])
    loop = asyncio.get_running_loop()
    started = loop.time()

    report = await lab.run(rate=100.0)

    assert report.moved == 60
    # The first message goes alone, and nothing waits after the last ones.
    assert loop.time() - started >= 0.2


@pytest.mark.slow
async def test_a_mover_that_is_stopped_leaves_nothing_claimed(lab: Lab) -> None:
    await lab.declare()
    sent = [made(n) for n in range(500)]
    await lab.send(sent)
    async with lab.migration() as migration:
        moved = asyncio.Event()

        def progressed(report: MoveReport) -> None:
            if report.moved > 20:
                moved.set()

        moving = asyncio.create_task(migration.run(rate=200.0, on_progress=progressed))
        await asyncio.wait_for(moved.wait(), 20)
        moving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await moving

    ready, leased, delayed = await lab.counts(lab.source)
    assert (leased, delayed) == (0, 0)
    arrived = await lab.counts(lab.target)
    assert ready + sum(arrived) == 500
    assert all(delivery.attempt == 1 for delivery in await lab.take(lab.source))


@pytest.mark.slow
async def test_two_movers_share_the_work(lab: Lab) -> None:
    sent = [made(n) for n in range(2000)]
    await lab.declare()
    await lab.send(sent)

    reports = await asyncio.gather(lab.run(), lab.run())

    assert sum(report.moved for report in reports) == 2000
    arrived = [delivery.message.id for delivery in await lab.take(lab.target)]
    assert sorted(arrived) == sorted(message.id for message in sent)


async def test_a_missing_source_queue_is_an_error_and_a_missing_dead_one_is_none(
    lab: Lab,
) -> None:
    with pytest.raises(Exception, match="there is no queue orders at memory"):
        await lab.run()


@pytest.mark.slow
async def test_a_ledger_of_another_migration_is_refused(lab: Lab) -> None:
    await lab.declare()
    await lab.run()
    other = Lab(lab.folder, target=f"sqlite:///{lab.folder}/other.db", source=lab.source)
    await lab.send([made(1)])

    with pytest.raises(ConfigError, match="belongs to another migration: memory://"):
        await other.run()
    with pytest.raises(ConfigError, match="the way back is: rollback memory://"):
        await lab.turned().run()

    assert await lab.counts(lab.source) == (1, 0, 0)


@pytest.mark.slow
async def test_what_is_delayed_for_days_in_a_file_is_not_waited_for(tmp_path: Path) -> None:
    lab = Lab(tmp_path, source=f"sqlite:///{tmp_path}/source.db")
    await lab.declare()
    await lab.send([made(1, key="k", attempts=2)], delay=86_400)
    due = datetime.now(UTC) + timedelta(days=30)
    await lab.send([made(2, not_before=due)], delay=86_400)

    report = await asyncio.wait_for(lab.run(), 20)

    assert report.moved == 2
    assert await lab.counts(lab.source) == (0, 0, 0)
    assert await lab.counts(lab.target) == (0, 0, 2)
    async with opened(lab.target) as driver:
        stats = await driver.inspect(QUEUE)
    assert stats.next_due is not None
    assert 86_300 < stats.next_due <= 86_400


@pytest.mark.slow
async def test_what_is_brought_out_says_itself_when_it_is_due(tmp_path: Path) -> None:
    lab = Lab(tmp_path, source=f"sqlite:///{tmp_path}/source.db")
    await lab.declare()
    soon, late = made(1), made(2, key="k", attempts=2)
    await lab.send([soon], delay=60)
    await lab.send([late], delay=3600)
    async with opened(lab.source) as driver:
        assert isinstance(driver, Hastening)
        assert await driver.hasten(QUEUE, 600.0) == 1
        assert await driver.hasten(QUEUE, 600.0) == 0

    (delivery,) = await lab.take(lab.source)
    message = delivery.message
    assert (message.id, message.key, message.attempts) == (late.id, "k", 2)
    assert message.not_before is not None
    rest = message.not_before - datetime.now(UTC)
    assert timedelta(seconds=3500) < rest <= timedelta(seconds=3601)


@pytest.mark.slow
async def test_groups_stay_in_order_where_the_target_keeps_them(tmp_path: Path) -> None:
    lab = Lab(tmp_path, target=f"memory://{tmp_path.name}?like=sqs")
    sent = [made(n, group=f"g{n % 3}") for n in range(120)]
    await lab.declare()
    await lab.send(sent)

    async with lab.migration(queues={QUEUE: "orders.fifo"}) as migration:
        report = await migration.run(settle=0)

    assert report.moved == 120
    found: dict[str | None, list[str]] = {}
    async with opened(lab.target) as driver:
        consumer = await driver.consume("orders.fifo", lease=60, prefetch=1)
        while claimed := await consumer.claim(10, 0):
            for delivery in claimed:
                found.setdefault(delivery.message.group, []).append(delivery.message.headers["n"])
            assert not any(await consumer.ack(claimed))
    assert found == {f"g{n}": [str(m) for m in range(n, 120, 3)] for n in range(3)}


@pytest.mark.slow
async def test_a_second_message_of_an_id_is_not_taken_for_the_first(lab: Lab) -> None:
    """Other programs give two messages one id; the first was sent, and its mover died."""
    await lab.declare()
    await lab.send([made(2, id="x")])
    ledger = Ledger(lab.ledger)
    record = MigrationRecord(source=lab.source, target=lab.target, queues={QUEUE: QUEUE})
    await ledger.open(record, create=True)
    await ledger.sent("forth", QUEUE, [Moved("x", digest_of(made(1, id="x")))])
    await ledger.aclose()

    report = await lab.run()

    assert (report.moved, report.lanes[0].repeated) == (1, 0)
    assert [found.message.body for found in await lab.take(lab.target)] == [b"body 2"]


@pytest.mark.slow
async def test_all_that_the_source_lists_is_moved(lab: Lab) -> None:
    """The dead letters of a dead-letter queue that has workers, too."""
    names = [QUEUE, DEAD, f"{DEAD}-dead"]
    await lab.declare()
    async with opened(lab.source) as driver:
        await driver.declare(QueueSpec(name=DEAD))
    for n, name in enumerate(names):
        await lab.send([made(n)], queue=name)

    async with lab.migration(queues=None) as migration:
        await migration.run(settle=0.0)

    assert [await lab.counts(lab.target, name) for name in names] == [(1, 0, 0)] * 3


@pytest.mark.slow
async def test_dead_letter_queues_have_the_names_that_the_app_says(lab: Lab) -> None:
    spec = QueueSpec(name=QUEUE, dead_letter="graves")
    async with opened(lab.source) as driver:
        await driver.declare(spec)

    async with lab.migration(queues=None, specs=[spec]) as migration:
        assert [pair.source for pair in migration.pairs] == [QUEUE, "graves"]


async def test_a_source_without_queues_has_nothing_to_move(lab: Lab) -> None:
    with pytest.raises(QueueNotFoundError, match="there are no queues at memory"):
        async with lab.migration(queues=None):
            pytest.fail("it was opened")


@pytest.mark.parametrize("queues", [{"a": "b", "b": "a"}, {"a": "b", "b": "c"}, {"a": "a-dead"}])
async def test_nothing_is_moved_to_where_more_is_moved_from(
    lab: Lab, queues: dict[str, str]
) -> None:
    lab.target = lab.source

    with pytest.raises(ConfigError, match=r"source and target are the same: .*: queue [ab]"):
        async with lab.migration(queues=queues):
            pytest.fail("it was opened")

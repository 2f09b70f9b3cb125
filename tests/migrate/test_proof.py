from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from brokerwq.clock import SystemClock
from brokerwq.driver.moving import Readable
from brokerwq.errors import ConfigError
from tests.migrate.lab import DEAD, QUEUE, Lab, made, opened

TOO_LARGE = b"x" * 1_100_000


async def take_and_ack(url: str, count: int, queue: str = QUEUE) -> None:
    async with opened(url) as driver:
        consumer = await driver.consume(queue, lease=60, prefetch=count)
        claimed = await consumer.claim(count, 0)
        assert len(claimed) == count
        assert not any(await consumer.ack(claimed))


@pytest.mark.slow
async def test_it_adds_up_when_everything_is_there(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(20)])
    await lab.send([made(n) for n in range(3)], queue=DEAD)
    await lab.run()

    async with lab.migration() as migration:
        found = await migration.verify()

    assert found.adds_up
    assert found.is_complete
    assert [(q.known, q.at_target, q.run) for q in found.queues] == [(20, 20, 0), (3, 3, 0)]
    assert await lab.counts(lab.target) == (20, 0, 0)


@pytest.mark.slow
async def test_what_is_gone_is_lost_unless_workers_run(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(20)])
    await lab.run()
    await take_and_ack(lab.target, 5)

    async with lab.migration() as migration:
        strict = await migration.verify()
        trusting = await migration.verify(workers_run=True)

    assert (strict.adds_up, strict.missing, len(strict.queues[0].missing)) == (False, 5, 5)
    assert (trusting.adds_up, trusting.queues[0].run) == (True, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "seen"), [("", (20, 0)), ("memory://{}", (16, 4))])
async def test_what_a_worker_holds_at_the_target_is_not_missing(
    tmp_path: Path, target: str, seen: tuple[int, int]
) -> None:
    """A file can be read; elsewhere what is held cannot be seen, but is counted."""
    lab = Lab(tmp_path, target=target.format(tmp_path.name))
    await lab.declare()
    await lab.send([made(n) for n in range(20)])
    await lab.run()
    async with opened(lab.target) as driver:
        consumer = await driver.consume(QUEUE, lease=60, prefetch=4)
        await consumer.claim(4, 0)

        async with lab.migration() as migration:
            found = await migration.verify()

    assert found.adds_up
    assert (found.queues[0].at_target, found.queues[0].hidden) == seen


@pytest.mark.slow
async def test_a_file_is_read_in_parts_and_nothing_in_it_is_claimed(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(1100)])
    await lab.run()
    await lab.send([made(n) for n in range(3)], url=lab.target)  # of somebody else
    async with opened(lab.target) as driver:
        assert isinstance(driver, Readable)
        places = [place for place, _ in await driver.read(QUEUE, "", 700)]
        rest = await driver.read(QUEUE, places[-1], 700)
        assert (len(places), len(rest), await driver.read(QUEUE, rest[-1][0], 1)) == (700, 403, [])

    async with lab.migration() as migration:
        found = await migration.verify()

    assert found.adds_up
    assert (found.queues[0].known, found.queues[0].at_target) == (1100, 1100)
    assert await lab.counts(lab.target) == (1103, 0, 0)
    assert all(delivery.attempt == 1 for delivery in await lab.take(lab.target))


@pytest.mark.slow
async def test_two_messages_of_one_id_are_no_alteration(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(1, id="x"), made(2, id="x"), made(3)])
    await lab.run()

    async with lab.migration() as migration:
        found = await migration.verify()

    assert found.adds_up
    assert found.queues[0].altered == []


@pytest.mark.slow
async def test_an_altered_message_is_named(lab: Lab) -> None:
    message = made(1)
    await lab.declare()
    await lab.send([message])
    await lab.run()
    await take_and_ack(lab.target, 1)
    await lab.send([made(1, id=message.id, body=b"forged")], url=lab.target)

    async with lab.migration() as migration:
        found = await migration.verify()

    assert not found.adds_up
    assert found.queues[0].altered == [message.id]


@pytest.mark.slow
async def test_a_way_back(lab: Lab) -> None:
    sent = [made(n) for n in range(50)]
    await lab.declare()
    await lab.send(sent)
    await lab.send([made(n) for n in range(3)], queue=DEAD)
    await lab.run()

    report = await lab.run(back=True)

    assert report.moved == 53
    assert await lab.counts(lab.target) == (0, 0, 0)
    async with lab.migration() as migration:
        found = await migration.verify()
    assert found.adds_up
    assert [(q.at_source, q.at_target) for q in found.queues] == [(50, 0), (3, 0)]
    back = await lab.take(lab.source)
    assert sorted(d.message.id for d in back) == sorted(message.id for message in sent)


@pytest.mark.slow
async def test_forth_again_after_a_way_back(lab: Lab) -> None:
    """The ledger remembers the first move, and must not take the second for done."""
    await lab.declare()
    await lab.send([made(n) for n in range(50)])
    await lab.run()
    await lab.run(back=True)

    report = await lab.run()

    assert (report.moved, report.lanes[0].repeated) == (50, 0)
    assert await lab.counts(lab.target) == (50, 0, 0)


class _Later(SystemClock):
    """The wall clock of somebody who comes later."""

    def __init__(self, seconds: float) -> None:
        self._ahead = timedelta(seconds=seconds)

    def utcnow(self) -> datetime:
        return datetime.now(UTC) + self._ahead


@pytest.mark.slow
async def test_the_old_side_must_stay_empty(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(1)])
    await lab.run()

    async with lab.migration() as migration:
        first = await migration.status()
        assert not first.is_empty(60)
        assert await migration.finish() == [
            f"{name} is known to be empty for 0 s, not yet for 60 s: look again later"
            for name in (QUEUE, DEAD)
        ]
    await lab.send([made(2)])  # a producer that nobody had switched
    async with lab.migration(clock=_Later(30)) as migration:
        assert not (await migration.status()).is_empty(0)
        assert f"{QUEUE} is not empty at the source" in await migration.finish()
    await lab.run()
    async with lab.migration(clock=_Later(40)) as migration:
        await migration.status()
    async with lab.migration(clock=_Later(120)) as migration:
        assert (await migration.status()).is_empty(60)
        assert await migration.finish(dry_run=True) == []
        assert await migration.finish() == []
        assert (await migration.status()).is_finished
    with pytest.raises(ConfigError, match="was finished at"):
        await lab.run()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 3600])
async def test_a_late_message_does_not_pass_for_a_misfit_that_workers_finished(
    tmp_path: Path, delay: float
) -> None:
    lab = Lab(tmp_path, target=f"memory://{tmp_path.name}-sqs?like=sqs")
    await lab.declare()
    await lab.send([made(1, body=TOO_LARGE)])
    assert (await lab.run()).refused == 1
    async with opened(lab.source) as driver:
        await driver.purge(QUEUE)

    async with lab.migration(clock=_Later(60)) as migration:
        gone = (await migration.status()).queues[0]
        assert (gone.empty_for is not None, gone.counts.refused) == (True, 0)
        assert await migration.finish(settle=0, dry_run=True) == []
        await lab.send([made(2)], delay=delay)
        late = await migration.status()
        assert not late.is_empty(0)
        assert await migration.finish(settle=0, leave_refused=True) == [
            f"{QUEUE} is not empty at the source"
        ]
    assert sum(await lab.counts(lab.source)) == 1


@pytest.mark.slow
async def test_a_misfit_is_known_by_its_id_whether_a_look_can_meet_it_or_not(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path, target=f"memory://{tmp_path.name}-sqs?like=sqs")
    await lab.declare()
    misfit = made(1, body=TOO_LARGE)
    await lab.send([misfit])
    await lab.run()

    async with lab.migration() as migration:
        parked = (await migration.status()).queues[0]
        assert (parked.empty_for is not None, parked.counts.refused) == (True, 1)
    async with opened(lab.source) as driver:
        await driver.purge(QUEUE)
    await lab.send([misfit])
    async with lab.migration(clock=_Later(60)) as migration:
        back = (await migration.status()).queues[0]
        assert (back.empty_for is not None, back.counts.refused) == (True, 1)
        await lab.send([made(2)])
        assert not (await migration.status()).is_empty(0)


@pytest.mark.slow
async def test_misfits_speak_against_finishing(tmp_path: Path) -> None:
    lab = Lab(tmp_path, target=f"memory://{tmp_path.name}-sqs?like=sqs")
    await lab.declare()
    await lab.send([made(1), made(2, body=TOO_LARGE)])
    await lab.run()

    async with lab.migration() as migration:
        assert await migration.finish(settle=0) == [f"{QUEUE} keeps 1 messages that do not fit"]
        assert await migration.finish(settle=0, leave_refused=True) == []

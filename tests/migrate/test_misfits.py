from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from brokerwq.dead_letters.sweep import Sweep
from brokerwq.driver.moving import Foresight, Identified, NativeRaw
from brokerwq.driver.protocol import QueueSpec
from brokerwq.errors import PermissionDeniedError, ThrottledError
from brokerwq.message import Message
from brokerwq.testing.faults import Fail, Faults, FaultyDriver, Partly
from tests.migrate.lab import DEAD, QUEUE, Lab, made, opened

TOO_LARGE = b"x" * 1_100_000


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A target that takes what Amazon SQS takes."""
    return Lab(tmp_path, target=f"memory://{uuid.uuid4().hex}?like=sqs")


def mixed(count: int, misfits: int) -> tuple[list[Message], set[str]]:
    messages = [made(n) for n in range(count)]
    too_large = [made(n, body=TOO_LARGE) for n in range(misfits)]
    return [*messages[: count // 2], *too_large, *messages[count // 2 :]], {
        message.id for message in too_large
    }


@pytest.mark.slow
async def test_the_plan_names_what_does_not_fit_before_anything_moves(lab: Lab) -> None:
    messages, misfits = mixed(300, 20)
    await lab.declare()
    await lab.send(messages)
    await lab.send([made(1, body=TOO_LARGE)], queue=DEAD)

    async with lab.migration() as migration:
        plan = await migration.plan(sample=50_000)

    assert {misfit.id for misfit in plan.misfits if misfit.queue == QUEUE} == misfits
    assert sum(misfit.queue == DEAD for misfit in plan.misfits) == 1
    assert all("takes 1048576" in misfit.reason for misfit in plan.misfits)
    assert (plan.fits, plan.certainty) == (False, "all")
    assert [(q.sampled, q.target_exists) for q in plan.queues] == [(320, False), (1, False)]
    assert {d.subject for d in plan.differences if d.loses} >= {"size", "delay", "lease", "counts"}
    assert await lab.counts(lab.source) == (320, 0, 0)


@pytest.mark.slow
async def test_the_plan_knows_a_queue_that_is_unlike_its_drivers_others(tmp_path: Path) -> None:
    lab = Lab(tmp_path, source=f"memory://{uuid.uuid4().hex}?like=sqs")
    async with opened(lab.source) as driver:
        for name in (QUEUE, "orders.fifo"):
            await driver.declare(QueueSpec(name=name))

    async with lab.migration(queues={QUEUE: QUEUE, "orders.fifo": "fifo"}) as migration:
        both = await migration.plan()
    async with lab.migration(queues={"orders.fifo": "fifo"}) as migration:
        alone = await migration.plan()

    text = "messages of a group are no longer kept in order"
    assert [d.text for d in both.differences if "group" in d.text] == [f"orders.fifo: {text}"]
    assert text in [d.text for d in alone.differences]
    assert any(d.text.startswith(f"{QUEUE}: ") for d in both.differences)


async def test_a_sweep_claims_as_its_queue_allows(lab: Lab) -> None:
    async with opened(lab.target) as driver:
        await driver.declare(QueueSpec(name="q.fifo"))
        async with Sweep(driver, "q.fifo") as sweep:
            assert sweep.capabilities.ordered_groups
            assert not driver.capabilities.ordered_groups


async def test_a_sample_says_that_it_is_one(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(100)])

    async with lab.migration() as migration:
        plan = await migration.plan(sample=10)

    assert (plan.queues[0].sampled, plan.certainty) == (10, "sample")


async def test_looking_costs_no_attempt_and_forgets_none(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(1, attempts=1)])
    async with opened(lab.source) as driver:
        consumer = await driver.consume(QUEUE, lease=60, prefetch=1)
        await consumer.release(await consumer.claim(1, 0), [0.0])

    async with lab.migration() as migration:
        await migration.plan()
        await migration.plan()

    (delivery,) = await lab.take(lab.source)
    assert delivery.attempt == 3


@pytest.mark.slow
async def test_misfits_stay_with_their_reason_and_everything_else_moves(lab: Lab) -> None:
    messages, misfits = mixed(300, 20)
    await lab.declare()
    await lab.send(messages)

    report = await lab.run()

    lane = report.lanes[0]
    assert (report.moved, report.refused, report.is_complete) == (300, 20, True)
    assert lane.refused.keys() == misfits
    assert all("takes 1048576" in reason for reason in lane.refused.values())
    # Out of the way for a while, so that they are not claimed over and over.
    assert await lab.counts(lab.source) == (0, 0, 20)
    async with lab.migration() as migration:
        (state, _) = (await migration.status()).queues
    assert (state.counts.moved, state.counts.refused) == (300, 20)
    assert state.empty_for is not None


@pytest.mark.slow
async def test_two_movers_whose_misfits_are_apart_both_end(lab: Lab) -> None:
    """Each has put some out of the way, and waits for no message of the other's."""
    messages, misfits = mixed(20, 20)
    await lab.declare()
    await lab.send(messages)

    reports = await asyncio.wait_for(asyncio.gather(lab.run(), lab.run()), 10)

    assert sum(report.moved for report in reports) == 20
    assert {id_ for report in reports for id_ in report.lanes[0].refused} == misfits
    assert all(report.is_complete for report in reports)


@pytest.mark.slow
async def test_misfits_that_a_mover_before_put_out_of_the_way_are_not_waited_for(lab: Lab) -> None:
    messages, _ = mixed(20, 5)
    await lab.declare()
    await lab.send(messages)
    await lab.run()

    report = await asyncio.wait_for(lab.run(), 5)

    assert (report.moved, report.waiting, report.is_complete) == (0, 0, True)


@pytest.mark.slow
async def test_the_plan_and_the_run_agree(lab: Lab) -> None:
    bodies = [b"", b"\xff" * 800_000, b"x" * 1_048_000, TOO_LARGE, b"a\x07b", b"fine"]
    await lab.declare()
    await lab.send([made(n, body=body) for n, body in enumerate(bodies)])

    async with lab.migration() as migration:
        plan = await migration.plan()
    report = await lab.run()

    foretold = {misfit.id for misfit in plan.misfits}
    assert foretold == report.lanes[0].refused.keys()
    assert len(foretold) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("like", "name"), [("sqs", "orders.fifo"), ("sqs-fifo", "orders"), ("sqs", "orders")]
)
async def test_two_messages_of_one_id_are_not_sent_where_one_would_hide_the_other(
    tmp_path: Path, like: str, name: str
) -> None:
    """Other programs mean two messages by one id; a FIFO queue takes the second for a repeat."""
    lab = Lab(tmp_path, target=f"memory://{uuid.uuid4().hex}?like={like}")
    hides = (like, name) != ("sqs", "orders")
    await lab.declare()
    await lab.send([made(1, id="x"), made(2, id="x"), made(3, id="y"), made(3, id="y")])

    async with lab.migration(queues={QUEUE: name}) as migration:
        plan = await migration.plan()
        reports = [await migration.run(settle=0.0, waits=False) for _ in range(2)]

    reason = "another message of its id was sent to the target, which would drop this one"
    expected = {"x": reason} if hides else {}
    assert {misfit.id: misfit.reason for misfit in plan.misfits} == expected
    assert reports[0].lanes[0].refused == expected
    assert reports[1].moved == 0
    arrived = [found.message.body for found in await lab.take(lab.target, name)]
    left, _, parked = await lab.counts(lab.source)
    assert (left, parked) == (0, 1 if hides else 0)
    assert set(arrived) == ({b"body 1", b"body 3"} if hides else {b"body 1", b"body 2", b"body 3"})


@pytest.mark.slow
async def test_the_plan_knows_a_target_queue_that_is_unlike_its_drivers_others(
    tmp_path: Path,
) -> None:
    """It need not be there yet: the name says what it will be."""
    lab = Lab(
        tmp_path,
        source=f"memory://{uuid.uuid4().hex}?like=rabbitmq",
        target=f"memory://{uuid.uuid4().hex}?like=sqs",
    )
    due = datetime.now(UTC) + timedelta(hours=1)
    await lab.declare()
    await lab.send([made(1), made(2, not_before=due)])

    async with lab.migration(queues={QUEUE: "orders.fifo"}) as migration:
        plan = await migration.plan()

    said = {d.subject: d.text for d in plan.differences if d.loses}
    assert "wait for one another" in said["order"]
    assert "window" in said["order"]
    assert said["delay"] == "no message can be delayed: what is delayed goes when it is due"
    assert said["put back"] == "every return counts as an attempt"
    assert "1,048,576 bytes" in said["size"]
    assert [misfit.reason for misfit in plan.misfits] == [
        "it is delayed, and the target delays no message; it goes when due"
    ]


async def test_messages_from_a_wrong_clock_are_counted(lab: Lab) -> None:
    await lab.declare()
    ahead = datetime.now(UTC) + timedelta(minutes=5)
    await lab.send([made(1), made(2, created_at=ahead)])

    async with lab.migration() as migration:
        plan = await migration.plan()

    assert plan.queues[0].made_in_future == 1
    assert 290 < plan.queues[0].skew <= 300


@pytest.mark.slow
async def test_a_message_that_cannot_be_read_stays(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    await lab.declare()
    broken = made(1, headers={"bwq-attempts": "many"})
    await lab.send([broken, made(2)])

    report = await lab.run()

    assert report.moved == 1
    assert list(report.lanes[0].refused.values()) == ["it cannot be read: bwq-attempts='many'"]


class _Native(dict[str, object]):
    def untranslatable(self) -> list[str]:
        return ["x-number", "reply_to"]


async def test_the_adapters_offer_what_a_move_can_use(lab: Lab) -> None:
    for url in (lab.source, lab.target):
        async with opened(url) as driver:
            assert isinstance(driver, Foresight)
            assert isinstance(driver, Identified)
    assert isinstance(_Native(), NativeRaw)


@pytest.mark.slow
async def test_a_look_puts_back_what_the_broker_was_too_busy_to_take(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(30)])
    faults = Faults()
    faults.add("put_back", Partly(ThrottledError("slow down"), share=0.5), times=3)
    async with opened(lab.source) as driver:
        async with Sweep(FaultyDriver(driver, faults), QUEUE) as sweep:
            while await sweep.claim(10):
                pass

        stats = await driver.inspect(QUEUE)

    assert (stats.ready.value, stats.leased.value) == (30, 0)


@pytest.mark.slow
async def test_a_look_that_may_not_delete_leaves_one_copy_at_most(tmp_path: Path) -> None:
    """At SQS what is put back is copied, and the original deleted; nothing foretold it here."""
    async with opened(f"memory://{tmp_path.name}?like=sqs") as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        for n in range(30):
            await driver.send(QUEUE, [made(n)], [0.0])
        faults = Faults()
        faults.add("put_back", Fail(PermissionDeniedError("delete is not allowed")), times=None)
        async with Sweep(FaultyDriver(driver, faults), QUEUE) as sweep:
            while await sweep.claim(10):
                pass

        stats = await driver.inspect(QUEUE)

    assert sum(call.items for call in faults.calls if call.operation == "put_back") == 1
    assert stats.ready.value == 29  # the other one comes back when its lease ends

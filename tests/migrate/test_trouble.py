"""What goes wrong on one side: one clear error, and everything is where it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import Delivery
from brokerwq.errors import (
    ConnectionLostError,
    DriverError,
    PermissionDeniedError,
    StorageFullError,
    ThrottledError,
)
from brokerwq.migrate import Ledger, MigrationRecord, MoveReport, Pair, Side
from brokerwq.migrate.fitting import misfit
from brokerwq.migrate.mover import Mover
from brokerwq.testing.faults import Fail, Faults, FaultyDriver, LoseAnswer, Partly
from tests.migrate.lab import QUEUE, Lab, made, opened

pytestmark = pytest.mark.slow

PAIRS = [Pair(source=QUEUE, target=QUEUE)]


@asynccontextmanager
async def mover_with(
    lab: Lab, source: Faults | None = None, target: Faults | None = None, *, patience: float = 1.0
) -> AsyncGenerator[Mover]:
    ledger = Ledger(lab.ledger)
    record = MigrationRecord(source=lab.source, target=lab.target, queues={QUEUE: QUEUE})
    await lab.declare(lab.source, lab.target)
    async with opened(lab.source) as old, opened(lab.target) as new:
        await ledger.open(record, create=True)
        try:
            yield Mover(
                Side(role="source", url="old", driver=FaultyDriver(old, source)),
                Side(role="target", url="new", driver=FaultyDriver(new, target)),
                PAIRS,
                ledger,
                direction="forth",
                keeps_raw=False,
                clock=SYSTEM_CLOCK,
                settle=0.0,
                patience=patience,
            )
        finally:
            await ledger.aclose()


def failing(operation: str, error: DriverError, *, times: int | None = None) -> Faults:
    faults = Faults()
    faults.add(operation, Fail(error), times=times)  # type: ignore[arg-type]
    return faults


@pytest.mark.parametrize(
    ("error", "patience"),
    [
        (PermissionDeniedError("send is not allowed"), 60.0),
        (StorageFullError("the queue is full"), 0.5),
        (ThrottledError("slow down"), 0.5),
        (ConnectionLostError("no route"), 0.5),
    ],
)
async def test_a_target_that_takes_nothing_gets_nothing(
    lab: Lab, error: DriverError, patience: float
) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(50)])

    async with mover_with(lab, target=failing("send", error), patience=patience) as mover:
        with pytest.raises(type(error), match=str(error)):
            await asyncio.wait_for(mover.run(), 20)

    assert await lab.counts(lab.source) == (50, 0, 0)
    assert await lab.counts(lab.target) == (0, 0, 0)
    assert all(delivery.attempt == 1 for delivery in await lab.take(lab.source))


@pytest.mark.slow
async def test_a_source_that_gives_nothing(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(1)])
    refused = failing("claim", PermissionDeniedError("receive is not allowed"))

    async with mover_with(lab, source=refused) as mover:
        with pytest.raises(PermissionDeniedError, match="receive is not allowed"):
            await asyncio.wait_for(mover.run(), 20)

    assert await lab.counts(lab.source) == (1, 0, 0)


@pytest.mark.slow
async def test_a_source_that_does_not_let_delete_costs_one_message_a_copy(lab: Lab) -> None:
    """Nothing tells beforehand whether that is allowed, so it is tried with one."""
    await lab.declare()
    await lab.send([made(n) for n in range(50)])
    refused = failing("ack", PermissionDeniedError("delete is not allowed"))

    async with mover_with(lab, source=refused) as mover:
        with pytest.raises(PermissionDeniedError, match="is on both sides: delete is not allowed"):
            await asyncio.wait_for(mover.run(), 20)

    assert await lab.counts(lab.target) == (1, 0, 0)


@pytest.mark.slow
async def test_throttling_is_waited_for(lab: Lab) -> None:
    sent = [made(n) for n in range(300)]
    await lab.declare()
    await lab.send(sent)
    faults = Faults(seed=2)
    faults.add("send", Partly(ThrottledError("slow down"), share=0.4), times=4)
    faults.add("send", Fail(ThrottledError("slow down", retry_after=0.2)), times=2)

    async with mover_with(lab, target=faults, patience=30) as mover:
        report = await asyncio.wait_for(mover.run(), 30)

    assert (report.moved, report.is_complete) == (300, True)
    assert report.throttled > 0
    arrived = [delivery.message.id for delivery in await lab.take(lab.target)]
    assert sorted(arrived) == sorted(message.id for message in sent)


@pytest.mark.slow
async def test_a_lost_answer_makes_a_copy_of_the_same_id_and_loses_nothing(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(100)])
    faults = Faults()
    faults.add("send", LoseAnswer(ConnectionLostError("gone")), times=1)

    async with mover_with(lab, target=faults, patience=30) as mover:
        await asyncio.wait_for(mover.run(), 30)

    arrived = [delivery.message.id for delivery in await lab.take(lab.target)]
    assert len(set(arrived)) == 100
    assert 100 < len(arrived) <= 300


@pytest.mark.slow
async def test_what_could_not_be_deleted_is_only_deleted_when_met_again(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(20)])
    refused = failing("ack", DriverError("not now"), times=2)

    async with mover_with(lab, source=refused) as mover:
        mover_report = await asyncio.wait_for(_first_batches(mover), 30)
    assert mover_report.lanes[0].left_open >= 1
    async with opened(lab.source) as driver:  # its lease ends, or its holder comes back
        consumer = await driver.consume(QUEUE, lease=60, prefetch=1)
        assert await consumer.claim(1, 0) == []


async def _first_batches(mover: Mover) -> MoveReport:
    async def stop_soon() -> None:
        while not mover.report.lanes[0].left_open:
            await asyncio.sleep(0.01)
        mover.stop()

    stopping = asyncio.create_task(stop_soon())
    report = await mover.run()
    await stopping
    return report


async def _killed(lab: Lab, times: int) -> None:
    """So many movers have begun, held everything, and never ended."""
    for _ in range(times):
        ledger = Ledger(lab.ledger)
        record = MigrationRecord(source=lab.source, target=lab.target, queues={QUEUE: QUEUE})
        await ledger.open(record, create=True)
        await ledger.begin("forth")
        await ledger.aclose()
        async with opened(lab.source) as driver:
            consumer = await driver.consume(QUEUE, lease=60, prefetch=1000)
            claimed = await consumer.claim(1000, 0)
            assert claimed
            await consumer.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2, 7])
async def test_what_killed_movers_held_is_put_right_before_the_target_is_asked(
    tmp_path: Path, times: int
) -> None:
    """However often movers are killed, workers at the source must not give it up for that."""
    lab = Lab(tmp_path, source=f"memory://{tmp_path.name}?like=rabbitmq")
    sent = [made(n) for n in range(50)]
    await lab.declare()
    await lab.send(sent)
    await _killed(lab, times)
    source, target = Faults(), Faults()

    async with mover_with(lab, source=source, target=target) as mover:
        await asyncio.wait_for(mover.run(), 30)

    # Put back as new where it was lost several times.
    renewed = sum(call.items for call in source.calls if call.operation == "put_back")
    assert renewed == (0 if times < 2 else 50)
    arrived = await lab.take(lab.target)
    assert sorted(d.message.id for d in arrived) == sorted(message.id for message in sent)
    assert {(d.attempt, d.message.suspect) for d in arrived} == {(1, False)}


class _Native(dict[str, object]):
    def untranslatable(self) -> Sequence[str]:
        return ["x-number", "reply_to"]


def _foreign(raw: dict[str, object], defect: str = "") -> Delivery:
    message = made(1, type="", raw=raw)
    return Delivery(
        message=message, queue=QUEUE, handle=0, receives=1, lease_left=60, defect=defect
    )


def test_a_header_that_only_its_own_broker_can_carry_is_named() -> None:
    delivery = _foreign(_Native({"headers": {}}))

    assert str(misfit(delivery, keeps_raw=False)) == (
        "no other broker can carry its 'x-number', 'reply_to'"
    )
    assert misfit(delivery, keeps_raw=True) is None


def test_a_foreign_message_that_nobody_knows_stays() -> None:
    assert "only its broker can carry" in str(misfit(_foreign({"a": 1}), keeps_raw=False))
    assert misfit(_foreign({}), keeps_raw=False) is None


def test_what_cannot_be_read_stays() -> None:
    assert "cannot be read" in str(misfit(_foreign({}, defect="bwq-v=9"), keeps_raw=True))


async def test_a_ledger_that_cannot_be_written_stops_the_mover(lab: Lab, tmp_path: Path) -> None:
    await lab.declare()
    lab.ledger = f"sqlite:///{tmp_path}/missing/ledger.db"

    with pytest.raises(Exception, match=r"ledger .*missing/ledger\.db cannot be used"):
        await lab.run()

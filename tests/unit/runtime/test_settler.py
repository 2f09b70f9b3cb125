from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from brokerwq._runtime.bridge import InlineBridge
from brokerwq._runtime.leases import Held, LeaseKeeper
from brokerwq._runtime.settler import Settle, Settler
from brokerwq._runtime.verdict import Verdict
from brokerwq.driver import Capabilities, Lease, Mark
from brokerwq.errors import (
    ClosedError,
    DriverError,
    LeaseLostError,
    PermissionDeniedError,
    QueueNotFoundError,
    TransientError,
)
from brokerwq.events import Event, SettleFailed
from brokerwq.message import DeadLetterNote
from brokerwq.telemetry import fan_out
from brokerwq.testing import FakeClock
from tests.unit.runtime.fakes import FakeConsumer, delivery, keeper

DEAD = Verdict("dead_letter", "dead-lettered", note=DeadLetterNote(reason="failed"))
BACK = Verdict("put_back", "put-back", counted=False, delay=2.0, mark=Mark(attempts=1))


@dataclass
class Bench:
    count: int = 1
    capabilities: Capabilities | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    consumer: FakeConsumer = field(default_factory=FakeConsumer)
    events: list[Event] = field(default_factory=list[Event])
    troubles: list[str] = field(default_factory=list[str])
    answers: dict[object, DriverError | None] = field(
        default_factory=dict[object, DriverError | None]
    )

    async def open(self) -> list[Held]:
        self.consumer.waiting = [delivery(f"m{n}") for n in range(self.count)]
        self.keeper: LeaseKeeper = keeper(self.consumer, self.clock, capabilities=self.capabilities)
        self.settler = Settler(
            self.keeper,
            InlineBridge(),
            clock=self.clock,
            instrumentation=fan_out(self.events.append),
            troubled=self.troubles.append,
        )
        return await self.keeper.claim(self.count, 0)

    def concluded(self, request: Settle, error: DriverError | None) -> None:
        assert request.held.delivery.handle not in self.answers
        self.answers[request.held.delivery.handle] = error

    def settle(self, held: Held, verdict: Verdict) -> None:
        self.settler.settle(held, verdict, self.concluded)

    def failures(self) -> list[SettleFailed]:
        return [event for event in self.events if isinstance(event, SettleFailed)]


async def test_settles_of_one_turn_share_a_call() -> None:
    bench = Bench(count=5)
    for held in await bench.open():
        bench.settle(held, Verdict("ack", "done"))

    await bench.settler.flush()

    assert bench.consumer.calls == [("ack", (["m0", "m1", "m2", "m3", "m4"],))]
    assert set(bench.answers.values()) == {None}


async def test_each_item_of_a_batch_has_its_own_fate() -> None:
    bench = Bench(count=3)
    fates: dict[object, DriverError] = {"m1": PermissionDeniedError("no")}
    bench.consumer.answer = lambda operation, each: (
        fates.get(each.handle) if operation == "ack" else None
    )
    for held in await bench.open():
        bench.settle(held, Verdict("ack", "done"))

    await bench.settler.flush()

    assert bench.answers["m0"] is None
    assert isinstance(bench.answers["m1"], PermissionDeniedError)
    assert bench.answers["m2"] is None
    assert [(failure.id, failure.operation) for failure in bench.failures()] == [("m1", "ack")]


async def test_ack_that_fails_in_passing_is_tried_again_while_the_lease_is_kept() -> None:
    bench = Bench()
    tries = 0

    def answer(operation: str, _each: object) -> DriverError | None:
        nonlocal tries
        tries += operation == "ack"
        return TransientError("busy") if operation == "ack" and tries < 4 else None

    bench.consumer.answer = answer
    (held,) = await bench.open()
    bench.settle(held, Verdict("ack", "done"))

    await bench.clock.advance_and_settle(30)

    assert bench.answers == {"m0": None}
    assert tries == 4


async def test_late_settle_is_refused_without_asking_the_broker() -> None:
    bench = Bench(count=4)
    helds = await bench.open()
    bench.consumer.answer = lambda operation, _each: (
        TransientError("cut") if operation == "extend" else None
    )
    await bench.clock.advance_and_settle(20)
    bench.consumer.calls.clear()

    for held, verdict in zip(
        helds, (Verdict("ack", "done"), Verdict("release", "failed"), BACK, DEAD), strict=True
    ):
        bench.settle(held, verdict)
    await bench.settler.flush()

    assert bench.consumer.calls == []
    assert all(isinstance(error, LeaseLostError) for error in bench.answers.values())


async def test_heartbeats_stop_before_a_release_and_go_on_during_an_ack() -> None:
    bench = Bench(count=2)
    gate = asyncio.Event()
    bench.consumer.before = {"release": gate.wait, "ack": gate.wait}
    released, acked = await bench.open()
    bench.settle(released, Verdict("release", "failed"))
    bench.settle(acked, Verdict("ack", "done"))

    await bench.clock.advance_and_settle(7)
    gate.set()
    await bench.clock.settle()

    extended = [handles for op, (handles, *_) in bench.consumer.calls if op == "extend"]
    assert extended == [["m1"], ["m1"]]


async def test_release_waits_for_a_heartbeat_under_way() -> None:
    bench = Bench()
    gate = asyncio.Event()
    bench.consumer.before = {"extend": gate.wait}
    (held,) = await bench.open()
    await bench.clock.advance_and_settle(3.4)
    assert bench.consumer.operations() == ["extend"]

    bench.settle(held, Verdict("release", "failed"))
    await bench.clock.settle()
    assert bench.consumer.operations() == ["extend"]
    gate.set()
    await bench.clock.settle()

    assert bench.consumer.operations() == ["extend", "release"]


async def test_dead_letter_that_cannot_be_moved_is_put_back_and_reported() -> None:
    bench = Bench()
    bench.consumer.answer = lambda operation, _each: (
        QueueNotFoundError("no dead-letter queue") if operation == "dead_letter" else None
    )
    (held,) = await bench.open()

    bench.settle(held, DEAD)
    await bench.settler.flush()

    assert bench.consumer.operations() == ["dead_letter", "put_back"]
    _, (_, delays, marks) = bench.consumer.calls[-1]
    assert delays == [5.0]
    assert marks == [Mark(attempts=1)]  # all attempts stay spent: the handler runs no more
    assert bench.troubles
    assert [failure.operation for failure in bench.failures()] == ["dead_letter"]
    assert bench.answers == {"m0": None}


async def test_put_back_that_is_not_confirmed_ends_as_the_counted_return() -> None:
    bench = Bench()
    bench.consumer.answer = lambda operation, _each: (
        TransientError("no confirm") if operation == "put_back" else None
    )
    (held,) = await bench.open()

    bench.settle(held, BACK)
    await bench.clock.advance_and_settle(9)

    operations = bench.consumer.operations()
    assert operations.count("put_back") > 2
    assert operations[-1] == "release"
    assert [failure.operation for failure in bench.failures()] == ["put_back"]
    assert bench.answers == {"m0": None}


async def test_whole_call_that_raises_fails_every_item_of_it() -> None:
    bench = Bench(count=2)

    def refuse() -> None:
        msg = "all of it"
        raise PermissionDeniedError(msg)

    bench.consumer.before = {"ack": refuse}
    for held in await bench.open():
        bench.settle(held, Verdict("ack", "done"))

    await bench.settler.flush()

    assert [type(error) for error in bench.answers.values()] == [PermissionDeniedError] * 2


async def test_bug_in_an_adapter_does_not_kill_the_settler() -> None:
    bench = Bench()

    def crash() -> None:
        raise ZeroDivisionError

    bench.consumer.before = {"ack": crash}
    (held,) = await bench.open()
    bench.settle(held, Verdict("ack", "done"))

    await bench.settler.flush()

    assert "ZeroDivisionError" in str(bench.answers["m0"])


async def test_call_that_never_answers_is_bounded() -> None:
    bench = Bench()
    bench.consumer.before = {"release": lambda: asyncio.Event().wait()}
    (held,) = await bench.open()
    bench.settle(held, Verdict("release", "failed"))

    await bench.clock.advance_and_settle(31)

    assert isinstance(bench.answers["m0"], TransientError)


@pytest.mark.parametrize("verdict", [Verdict("ack", "done"), Verdict("release", "failed")])
async def test_lease_the_broker_calls_lost_is_reported_once(verdict: Verdict) -> None:
    bench = Bench()
    bench.consumer.answer = lambda _operation, _each: LeaseLostError("taken")
    (held,) = await bench.open()

    bench.settle(held, verdict)
    await bench.settler.flush()
    await bench.clock.advance_and_settle(60)

    assert isinstance(bench.answers["m0"], LeaseLostError)
    assert held.is_reported_lost
    assert bench.consumer.operations() == [verdict.operation]


async def test_what_is_closed_under_way_is_concluded() -> None:
    bench = Bench(count=2)
    bench.consumer.before["ack"] = asyncio.Event().wait
    bench.consumer.answer = lambda _operation, _delivery: TransientError("busy")
    acked, waiting = await bench.open()
    bench.settle(acked, Verdict("ack", "done"))
    bench.settle(waiting, BACK)
    await bench.clock.settle()

    await bench.settler.aclose()
    await bench.clock.advance_and_settle(10)

    assert [type(error) for error in bench.answers.values()] == [ClosedError] * 2
    assert bench.settler.pending == 0
    assert [each for each in bench.consumer.operations() if each != "extend"] == ["ack", "put_back"]


async def test_message_that_a_connection_holds_is_released_once_its_time_is_up() -> None:
    bench = Bench(capabilities=Capabilities(lease=Lease.CONNECTION, max_lease=10))
    (held,) = await bench.open()
    await bench.clock.advance_and_settle(20)
    bench.settle(held, BACK)

    await bench.settler.flush()

    assert bench.consumer.calls[-1] == ("release", (["m0"], [0.0]))
    assert isinstance(bench.answers["m0"], LeaseLostError)

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import pytest

from brokerwq._runtime.leases import margin_of
from brokerwq.driver import Capabilities, Lease
from brokerwq.errors import (
    CannotExtendError,
    ConnectionLostError,
    LeaseLostError,
    TransientError,
)
from brokerwq.events import Event, LeaseLost, LeasesExtended
from brokerwq.testing import FakeClock
from tests.unit.runtime.fakes import FakeConsumer, delivery, keeper


@pytest.mark.parametrize("lease", [0.05, 0.5, 1.0, 2.0, 5.0, 60.0, 43_140.0])
def test_trust_outlasts_a_heartbeat_and_ends_before_the_lease(lease: float) -> None:
    trusted = lease - margin_of(lease)

    assert lease / 3 < trusted < lease


async def test_heartbeat_keeps_a_lease_for_as_long_as_it_is_held() -> None:
    clock, consumer = FakeClock(), FakeConsumer(waiting=[delivery()])
    leases = keeper(consumer, clock)
    (held,) = await leases.claim(1, 0)

    await clock.advance_and_settle(100)

    assert not held.lost
    assert held.remaining > 0
    assert consumer.operations().count("extend") == 30


async def test_one_heartbeat_extends_everything_in_one_call() -> None:
    clock = FakeClock()
    consumer = FakeConsumer(waiting=[delivery(f"m{n}") for n in range(7)])
    leases = keeper(consumer, clock)
    await leases.claim(10, 0)

    await clock.advance_and_settle(3.4)

    assert [len(handles) for _, (handles, _) in consumer.calls] == [7]  # type: ignore[arg-type]


async def test_alarm_is_raised_when_extensions_fail() -> None:
    clock, events = FakeClock(), list[Event]()
    consumer = FakeConsumer(waiting=[delivery()])
    consumer.answer = lambda _operation, _delivery: ConnectionLostError("gone")
    leases = keeper(consumer, clock, events=events)
    (held,) = await leases.claim(1, 0)
    told: list[object] = []
    held.on_lost = told.append

    await clock.advance_and_settle(8.9)
    assert told == []
    await clock.advance_and_settle(0.2)

    assert held.is_reported_lost
    assert told == [held]
    assert [type(event) for event in events] == [LeaseLost]


async def test_hung_broker_does_not_delay_the_alarm() -> None:
    clock = FakeClock()
    consumer = FakeConsumer(waiting=[delivery()])
    consumer.before["extend"] = lambda: asyncio.Event().wait()
    leases = keeper(consumer, clock)
    (held,) = await leases.claim(1, 0)

    await clock.advance_and_settle(9.0)

    assert held.is_reported_lost
    await leases.aclose()


async def test_slow_extension_is_counted_from_when_it_was_asked_for() -> None:
    clock = FakeClock()
    consumer = FakeConsumer(waiting=[delivery()])
    consumer.before["extend"] = lambda: clock.sleep(3.0)
    leases = keeper(consumer, clock)
    (held,) = await leases.claim(1, 0)

    await clock.advance_and_settle(10 / 3 + 3.0)

    assert held.trusted_until == pytest.approx(1000 + 10 / 3 + 10 - 1)
    await leases.aclose()


async def test_lease_that_the_broker_calls_lost_raises_the_alarm_at_once() -> None:
    clock = FakeClock()
    consumer = FakeConsumer(waiting=[delivery("good"), delivery("bad")])
    consumer.answer = lambda _operation, each: (
        LeaseLostError("taken") if each.handle == "bad" else None
    )
    leases = keeper(consumer, clock)
    good, bad = await leases.claim(2, 0)

    await clock.advance_and_settle(3.4)

    assert bad.is_reported_lost
    assert not good.lost


class WatchfulConsumer(FakeConsumer):
    def tell_losses(self, tell: Callable[[Collection[object]], object], /) -> None:
        self.tell = tell


async def test_a_loss_that_the_broker_tells_by_itself_raises_the_alarm_at_once() -> None:
    clock, events = FakeClock(), list[Event]()
    consumer = WatchfulConsumer(waiting=[delivery("good"), delivery("bad"), delivery("acked")])
    leases = keeper(consumer, clock, events=events)
    good, bad, acked = await leases.claim(3, 0)
    leases.let_go(acked)
    told: list[object] = []
    for held in (good, bad, acked):
        held.on_lost = told.append

    consumer.tell({"bad", "acked", "never claimed"})
    consumer.tell({"bad"})
    await asyncio.sleep(0)

    assert (told, bad.is_reported_lost, good.lost) == ([bad], True, False)
    assert [event.id for event in events if isinstance(event, LeaseLost)] == ["bad"]


async def test_without_heartbeat_a_lease_ends() -> None:
    clock, consumer = FakeClock(), FakeConsumer(waiting=[delivery()])
    leases = keeper(consumer, clock, heartbeat=False)
    (held,) = await leases.claim(1, 0)

    await clock.advance_and_settle(9.1)

    assert held.lost
    assert consumer.calls == []


async def test_lease_longer_than_usual_is_not_shortened_by_a_heartbeat() -> None:
    clock, consumer = FakeClock(), FakeConsumer(waiting=[delivery()])
    leases = keeper(consumer, clock)
    (held,) = await leases.claim(1, 0)

    assert await leases.extend(held, 100.0) == pytest.approx(99)
    await clock.advance_and_settle(80)

    assert consumer.operations() == ["extend"]
    assert held.remaining == pytest.approx(19)


async def test_shorter_extension_than_what_is_left_asks_nobody() -> None:
    clock, consumer = FakeClock(), FakeConsumer(waiting=[delivery()])
    leases = keeper(consumer, clock)
    (held,) = await leases.claim(1, 0)

    assert await leases.extend(held, 2.0) == pytest.approx(9)

    assert consumer.calls == []


async def test_extension_beyond_the_brokers_limit_is_refused_with_the_limit() -> None:
    clock, consumer = FakeClock(), FakeConsumer(waiting=[delivery()])
    leases = keeper(consumer, clock, capabilities=Capabilities(max_lease=50))
    (held,) = await leases.claim(1, 0)

    with pytest.raises(CannotExtendError) as refused:
        await leases.extend(held, 60.0)

    assert refused.value.limit == 50


async def test_lost_lease_is_not_revived() -> None:
    clock, consumer = FakeClock(), FakeConsumer(waiting=[delivery()])
    leases = keeper(consumer, clock, heartbeat=False)
    (held,) = await leases.claim(1, 0)
    await clock.advance_and_settle(9.1)

    with pytest.raises(LeaseLostError):
        await leases.extend(held, 60.0)

    assert consumer.calls == []


@pytest.mark.parametrize("kind", list(Lease))
async def test_lease_is_lost_in_time_at_the_brokers_limit(kind: Lease) -> None:
    clock, events = FakeClock(), list[Event]()
    consumer = FakeConsumer(waiting=[delivery()])
    limits = Capabilities(lease=kind, max_lease=30)
    leases = keeper(consumer, clock, capabilities=limits, events=events)
    (held,) = await leases.claim(1, 0)

    await clock.advance_and_settle(28.9)
    assert not held.lost
    await clock.advance_and_settle(0.2)

    assert held.is_reported_lost
    (lost,) = [event for event in events if isinstance(event, LeaseLost)]
    assert "limit" in lost.reason


async def test_held_message_with_a_shorter_lease_raises_its_own_alarm_first() -> None:
    clock = FakeClock()
    consumer = FakeConsumer(waiting=[delivery("long"), delivery("short", lease_left=3.0)])
    leases = keeper(consumer, clock, heartbeat=False)
    (long,) = await leases.claim(1, 0)
    (short,) = await leases.claim(1, 0)

    await clock.advance_and_settle(2.5)

    assert short.is_reported_lost
    assert not long.lost


async def test_connection_lease_past_its_deadline_is_handed_back() -> None:
    clock = FakeClock()
    consumer = FakeConsumer(waiting=[delivery()])
    limits = Capabilities(lease=Lease.CONNECTION, max_lease=30)
    leases = keeper(consumer, clock, capabilities=limits)
    (held,) = await leases.claim(1, 0)
    await clock.advance_and_settle(31)

    assert not leases.still_ours(held, is_ack=False)
    await leases.hand_back([held])

    assert consumer.calls[-1] == ("release", (["a"], [0.0]))


async def test_finished_work_is_acked_late_where_nobody_else_can_have_it() -> None:
    clock = FakeClock()
    for limits, may in (
        (Capabilities(lease=Lease.CONNECTION, max_lease=30), True),
        (Capabilities(fences=False, max_lease=30), True),
        (Capabilities(max_lease=30), False),
    ):
        consumer = FakeConsumer(waiting=[delivery()])
        leases = keeper(consumer, clock, capabilities=limits, heartbeat=False)
        (held,) = await leases.claim(1, 0)
        await clock.advance_and_settle(31)

        assert leases.still_ours(held, is_ack=True) is may


async def test_extensions_are_reported() -> None:
    clock, events = FakeClock(), list[Event]()
    leases = keeper(FakeConsumer(waiting=[delivery()]), clock, events=events)
    await leases.claim(1, 0)

    await clock.advance_and_settle(3.4)

    assert events == [LeasesExtended(queue="q", count=1)]


async def test_nothing_is_extended_once_nothing_is_held() -> None:
    clock, consumer = FakeClock(), FakeConsumer(waiting=[delivery()])
    leases = keeper(consumer, clock)
    (held,) = await leases.claim(1, 0)

    leases.let_go(held)
    await clock.advance_and_settle(100)

    assert consumer.calls == []
    assert clock.pending == 0


async def test_broker_that_never_answers_is_not_waited_for_for_ever() -> None:
    clock, consumer = FakeClock(), FakeConsumer(waiting=[delivery()])
    consumer.before["extend"] = asyncio.Event().wait
    leases = keeper(consumer, clock, heartbeat=False)
    (held,) = await leases.claim(1, 0)

    with pytest.raises(TransientError):
        await clock.drive(leases.extend(held, 20))

    assert held.lost
    consumer.before["claim"] = asyncio.Event().wait
    with pytest.raises(TransientError):
        await clock.drive(leases.claim(1, 5))
    assert clock.now() >= 35


async def test_lease_that_is_being_extended_is_not_extended_beside_it() -> None:
    clock, consumer = FakeClock(), FakeConsumer(waiting=[delivery()])
    answered = asyncio.Event()
    consumer.before["extend"] = answered.wait
    await keeper(consumer, clock).claim(1, 0)

    await clock.advance_and_settle(7)
    assert consumer.operations() == ["extend"]
    answered.set()
    await clock.advance_and_settle(3.1)

    assert consumer.operations() == ["extend", "extend"]

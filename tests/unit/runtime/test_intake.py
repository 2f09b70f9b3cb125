from __future__ import annotations

import asyncio
from typing import cast

from brokerwq._runtime.bridge import InlineBridge
from brokerwq._runtime.dispatcher import Dispatcher
from brokerwq._runtime.execution import Work
from brokerwq._runtime.intake import Intake
from brokerwq._runtime.lane import Lane
from brokerwq._runtime.lifecycle import Lifecycle
from brokerwq._runtime.settler import Settler
from brokerwq._runtime.slots import Slots
from brokerwq._runtime.strangers import Strangers
from brokerwq._runtime.verdict import Judge
from brokerwq.driver import QueueSpec
from brokerwq.events import BrokerReached, Event
from brokerwq.testing import FakeClock
from tests.unit.runtime.fakes import FakeConsumer, fake_connection, keeper, route


async def _nothing(_: Work) -> None:
    return None


async def test_a_lane_that_claims_ends_the_trouble_of_the_one_it_replaces() -> None:
    clock, events, consumer = FakeClock(), list[Event](), FakeConsumer()
    answers = [asyncio.Event(), asyncio.Event()]
    answers[0].set()
    consumer.before["claim"] = lambda: answers.pop(0).wait()
    bridge, leases = InlineBridge(), keeper(consumer, clock)
    lifecycle = Lifecycle(events.append)
    lifecycle.enter("ready")
    lifecycle.trouble("claim q", "gone")
    slots = Slots(
        1, _nothing, clock=clock, read_ahead=False, stale=lambda _: None, crashed=lifecycle.fail
    )
    lane = Lane(
        connection=fake_connection(clock, lifecycle),
        spec=QueueSpec(name="q"),
        routes={"work": route()},
        strangers=Strangers([]),
        keeper=leases,
        settler=Settler(leases, bridge, clock=clock, instrumentation=None, troubled=lambda _: None),
        judge=Judge(leases.capabilities, 3600.0),
    )
    lane.gate.set()
    intake = Intake(
        slots,
        cast("Dispatcher", None),  # nothing comes
        bridge,
        clock=clock,
        lifecycle=lifecycle,
        reconnect_cap=1.0,
        lane_count=1,
        emit=events.append,
    )

    running = asyncio.create_task(intake.run(lane))
    await clock.settle()
    running.cancel()

    assert lifecycle.state == "ready"
    assert BrokerReached(queue="q") in events

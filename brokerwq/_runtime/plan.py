"""What an engine is to run: plain values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from brokerwq._runtime.route import Route
from brokerwq.clock import Clock
from brokerwq.driver.protocol import Driver, QueueSpec
from brokerwq.events import Instrumentation
from brokerwq.job import Child


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One broker.

    Attributes:
        build: Makes a driver that is not yet open.
        label: What people call it where there are several; else empty.
        instrumentation: Told of its messages; None for the plan's.
    """

    build: Callable[[], Driver]
    label: str = ""
    instrumentation: Instrumentation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One engine's work.

    Attributes:
        sites: The brokers whose messages are claimed, each with all queues.
        queues: Each queue with its workers.
        slots: Jobs at once.
        grace: Seconds that running jobs get at a stop.
        heartbeat: Whether leases are extended by themselves.
        unknown_after: Seconds after which a message of unknown type is given up on.
        reconnect_cap: Longest pause between tries to reach the broker, in seconds.
        clock: Time.
        instrumentation: Told of everything; None for nobody.
        detailed: Whether even the start and the success of each job are told.
        send_children: Sends what jobs enqueue.
    """

    sites: Sequence[Site]
    queues: Sequence[tuple[QueueSpec, Sequence[Route]]]
    slots: int
    grace: float
    heartbeat: bool
    unknown_after: float
    reconnect_cap: float
    clock: Clock
    instrumentation: Instrumentation | None
    detailed: bool
    send_children: Callable[[Sequence[Child]], Awaitable[None]]

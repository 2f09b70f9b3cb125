"""What an adapter's author tells the conformance kit about a broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver.protocol import Delivery, Driver, QueueSpec
from brokerwq.driver.registry import find_adapter, missing_client
from brokerwq.errors import ConfigError

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Driver]]


def plain_spec(name: str) -> QueueSpec:
    """A queue with nothing special about it."""
    return QueueSpec(name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A broker under test.

    A check whose hook (``cut_connection``, ``outage``, ``restart``) is None is reported as not
    run, never as passed.

    Attributes:
        connect: A new opened driver, closed at the end of the block. All of them reach the same
            broker. Called on the event loop of each check.
        shortest_lease: Seconds; the shortest lease that the broker keeps well. Every wait for a
            lease scales with it. A slow broker needs a longer one.
        shortest_delay: Seconds; the shortest delay that the broker keeps well; None takes
            ``shortest_lease``.
        patience: Seconds within which what must happen some time has happened, well below 60:
            a message has come back after its lease, an estimate has become right. Costs time
            only where a check fails.
        prefix: Begins the names of all queues that the checks make.
        spec: The queue to declare under a name; for brokers that want something special.
        name: The name to declare for a fresh token; for brokers with rules for names.
        clock: What ``connect`` gave to the drivers. With a ``FakeClock`` no time is spent waiting.
        loggers: Names of loggers that must stay silent above DEBUG, with all below them.
        expire: Makes a delivery's lease end now; None waits for it, or for ``CONNECTION`` leases
            cuts the connection.
        cut_connection: Cuts the connection of a driver, which may find out by itself.
        outage: Makes the broker unreachable for all drivers within the block.
        restart: Restarts the broker; returns when it can be reached again.
    """

    connect: Connect
    shortest_lease: float = 1.0
    shortest_delay: float | None = None
    patience: float = 10.0
    prefix: str = "bwq-conform-"
    spec: Callable[[str], QueueSpec] = plain_spec
    name: Callable[[str], str] = str
    clock: Clock = SYSTEM_CLOCK
    loggers: tuple[str, ...] = ("brokerwq",)
    expire: Callable[[Delivery], Awaitable[None]] | None = None
    cut_connection: Callable[[Driver], Awaitable[None]] | None = None
    outage: Callable[[], AbstractAsyncContextManager[None]] | None = None
    restart: Callable[[], Awaitable[None]] | None = None

    @classmethod
    def from_url(cls, url: str, *, clock: Clock = SYSTEM_CLOCK) -> Harness:
        """A harness for whatever ``url`` names; ``dataclasses.replace`` adds what is known more.

        Args:
            url: As for ``brokerwq.connect``.
            clock: Given to the drivers.

        Raises:
            ConfigError: the URL is wrong, or its adapter or client library is missing.
        """
        adapter = find_adapter(url)
        settings: Any = adapter.parse_url(url)

        @asynccontextmanager
        async def connect() -> AsyncGenerator[Driver]:
            try:
                driver = adapter.build(settings, clock)
            except ImportError as exc:
                raise missing_client(adapter, exc) from exc
            await driver.open()
            try:
                yield driver
            finally:
                await driver.aclose()

        package = adapter.build.__module__.partition(".")[0]
        return cls(connect=connect, clock=clock, loggers=("brokerwq", package))

    def __post_init__(self) -> None:
        if not 0 < self.shortest_lease <= self.patience:
            msg = (
                f"shortest_lease ({self.shortest_lease:g} s) must be above 0 and patience "
                f"({self.patience:g} s) at least as long"
            )
            raise ConfigError(msg)

    @property
    def delay(self) -> float:
        """Seconds; the shortest delay that the broker keeps well."""
        return self.shortest_lease if self.shortest_delay is None else self.shortest_delay

    def stretched(self, factor: float) -> Harness:
        """This harness with leases, delays and patience ``factor`` times as long."""
        return replace(
            self,
            shortest_lease=self.shortest_lease * factor,
            shortest_delay=self.delay * factor,
            patience=self.patience * factor,
        )

"""A consumer whose every answer a test decides, and the parts around it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from brokerwq._runtime.bridge import InlineBridge
from brokerwq._runtime.connection import Connection
from brokerwq._runtime.leases import LeaseKeeper
from brokerwq._runtime.lifecycle import Lifecycle
from brokerwq._runtime.plan import Site
from brokerwq._runtime.route import Route
from brokerwq.backoff import RetryPolicy
from brokerwq.driver import Capabilities, Consumer, Delivery, Driver, Mark, Results
from brokerwq.errors import DriverError
from brokerwq.events import Event
from brokerwq.message import DeadLetterNote, Message
from brokerwq.testing import FakeClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def delivery(
    id_: str = "a",
    *,
    receives: int = 1,
    lease_left: float = 10.0,
    message: Message | None = None,
    defect: str = "",
) -> Delivery:
    return Delivery(
        message=message or Message(id=id_, body=b"{}", type="work"),
        queue="q",
        handle=id_,
        receives=receives,
        lease_left=lease_left,
        defect=defect,
    )


def _body(message: Message) -> object:
    return message.body


def _nothing(_job: object, _payload: object) -> None:
    return None


def route(**options: object) -> Route:
    values: dict[str, object] = {
        "queue": "q",
        "name": "work",
        "decode": _body,
        "call": _nothing,
        "is_async": True,
        "retry": RetryPolicy(),
    }
    return Route(**{**values, **options})  # type: ignore[arg-type]


@dataclass
class FakeConsumer:
    """Records calls; answers None unless ``answer`` says otherwise."""

    lease: float = 10.0
    waiting: list[Delivery] = field(default_factory=list[Delivery])
    calls: list[tuple[str, tuple[object, ...]]] = field(
        default_factory=list[tuple[str, tuple[object, ...]]]
    )
    answer: Callable[[str, Delivery], DriverError | None] = lambda _operation, _delivery: None
    before: dict[str, Callable[[], object]] = field(default_factory=dict[str, Callable[[], object]])

    def operations(self) -> list[str]:
        return [operation for operation, _ in self.calls]

    async def claim(self, max_items: int, _wait: float, /) -> Sequence[Delivery]:
        await self._before("claim")
        taken, self.waiting = self.waiting[:max_items], self.waiting[max_items:]
        return taken

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        return await self._settle("ack", deliveries)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        return await self._settle("extend", deliveries, seconds)

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        return await self._settle("release", deliveries, list(delays))

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        return await self._settle("put_back", deliveries, list(delays), list(marks))

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        return await self._settle("dead_letter", deliveries, list(notes))

    async def quiesce(self) -> None:
        self.calls.append(("quiesce", ()))

    async def aclose(self) -> None:
        self.calls.append(("aclose", ()))

    async def _settle(
        self, operation: str, deliveries: Sequence[Delivery], *rest: object
    ) -> Results:
        self.calls.append((operation, ([d.handle for d in deliveries], *rest)))
        await self._before(operation)
        return [self.answer(operation, each) for each in deliveries]

    async def _before(self, operation: str) -> None:
        before = self.before.get(operation)
        if before is not None:
            pending = before()
            if isinstance(pending, Awaitable):
                await pending


def keeper(
    consumer: Consumer,
    clock: FakeClock,
    *,
    heartbeat: bool = True,
    events: list[Event] | None = None,
    capabilities: Capabilities | None = None,
) -> LeaseKeeper:
    return LeaseKeeper(
        consumer,
        capabilities or Capabilities(max_lease=math.inf),
        clock=clock,
        bridge=InlineBridge(),
        heartbeat=heartbeat,
        emit=None if events is None else events.append,
    )


def fake_connection(clock: FakeClock, lifecycle: Lifecycle) -> Connection:
    """To a broker that nobody asks anything."""
    driver = cast("Driver", None)
    return Connection(
        driver,
        Site(build=lambda: driver),
        InlineBridge(),
        clock=clock,
        lifecycle=lifecycle,
        reconnect_cap=1.0,
        emit=None,
    )

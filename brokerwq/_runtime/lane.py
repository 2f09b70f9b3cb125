"""A lane: one queue of a runner at one broker, with its consumer, its workers and its state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from brokerwq._runtime.connection import Connection
from brokerwq._runtime.leases import Held, LeaseKeeper
from brokerwq._runtime.route import Route
from brokerwq._runtime.settler import Settler
from brokerwq._runtime.strangers import Strangers
from brokerwq._runtime.verdict import Judge
from brokerwq.clock import Clock, Timer
from brokerwq.driver.capabilities import Lease
from brokerwq.driver.protocol import QueueSpec


@dataclass(slots=True, eq=False)
class Lane:
    """One queue.

    Attributes:
        connection: To the broker that it is at.
        spec: The queue.
        routes: Its workers by message type, aliases included.
        strangers: Its workers for messages without a type.
        keeper: The leases of what is claimed from it.
        settler: Settles it.
        judge: Decides about it.
        buffer: Collects the messages of a batch call; None for workers that take one.
        was_empty: The last claim brought nothing.
        gate: While it is not set, no claim starts.
        store_up: The same, for the store that its workers need; None if they need none.
        quiesced: No claim starts any more.
    """

    connection: Connection
    spec: QueueSpec
    routes: Mapping[str, Route]
    strangers: Strangers
    keeper: LeaseKeeper
    settler: Settler
    judge: Judge
    buffer: BatchBuffer | None = None
    was_empty: bool = False
    store_up: asyncio.Event | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    quiesced: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def queue(self) -> str:
        """Its name."""
        return self.spec.name

    @property
    def title(self) -> str:
        """Its name, and its broker's where there are several."""
        return self.connection.of(self.spec.name)

    @property
    def is_open(self) -> bool:
        """Whether a claim may start now."""
        return self.gate.is_set() and (self.store_up is None or self.store_up.is_set())

    async def wait_until_open(self) -> None:
        """Wait until a claim may start."""
        await self.gate.wait()
        if self.store_up is not None:
            await self.store_up.wait()

    @property
    def is_pushed(self) -> bool:
        """The broker sends messages ahead of what is claimed."""
        return self.keeper.capabilities.lease is Lease.CONNECTION

    @property
    def per_slot(self) -> int:
        """Messages that one slot takes at once."""
        return 1 if self.buffer is None else self.buffer.route.batch

    def route_of(self, held: Held) -> Route | None:
        """The worker for ``held``; None if there is none. Reads what another program sent."""
        type_ = held.delivery.message.type
        return self.routes.get(type_) if type_ else self.strangers.route_of(held)

    @property
    def longest_wait(self) -> float:
        """Longest backoff of its workers, in seconds."""
        return max(map(_longest_wait, self.workers), default=0.0)

    @property
    def limited(self) -> Sequence[Route]:
        """Its workers, if each of them has a limit of its own; else none."""
        workers = self.workers
        return () if any(route.slots is None for route in workers) else workers

    @property
    def workers(self) -> Sequence[Route]:
        """Its workers, each once."""
        return list(dict.fromkeys([*self.routes.values(), *self.strangers.routes]))


def _longest_wait(route: Route) -> float:
    guarded = 0.0 if route.guard is None else route.guard.longest_wait
    return max(route.retry.longest_wait, guarded)


class BatchBuffer:
    """Collects messages until a batch is full, or has waited long enough.

    Args:
        route: The worker whose batches these are.
        clock: For the wait.
        full: Given each batch.
    """

    def __init__(
        self, route: Route, clock: Clock, full: Callable[[Route, list[Held]], object]
    ) -> None:
        self.route = route
        self._clock = clock
        self._full = full
        self._helds: list[Held] = []
        self._timer: Timer | None = None

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._helds)

    def add(self, held: Held) -> None:
        """Take one message in."""
        self._helds.append(held)
        if len(self._helds) >= self.route.batch:
            self._flush()
        elif self._timer is None:
            at = self._clock.now() + self.route.batch_wait
            self._timer = self._clock.call_at(at, self._flush)

    def take(self) -> Sequence[Held]:
        """Remove and return what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken, self._helds = self._helds, []
        return taken

    def _flush(self) -> None:
        taken = self.take()
        if taken:
            self._full(self.route, list(taken))

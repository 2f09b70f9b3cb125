"""A driver of a space in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakSet

from anyio.lowlevel import checkpoint

from brokerwq.clock import Clock
from brokerwq.driver import (
    Capabilities,
    Consumer,
    Count,
    Difference,
    QueueSpec,
    QueueStats,
    Results,
)
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.errors import ConfigError
from brokerwq.message import Message
from brokerwq_memory import wire
from brokerwq_memory.consumer import MemoryConsumer
from brokerwq_memory.errors import closed, no_queue
from brokerwq_memory.settings import MemorySettings
from brokerwq_memory.space import Queue, Space

DEFAULT_LEASE = 60.0
"""Seconds; for a queue that was declared without a lease."""

_MAX_NAME_BYTES = 255

_CAPABILITIES = Capabilities(
    max_claim=1000,
    max_settle=1000,
    max_send=1000,
    durable=False,
    lists_queues=True,
)


class MemoryDriver:
    """See ``brokerwq.driver.Driver``. Works on any event loop and thread of its process."""

    def __init__(self, settings: MemorySettings, clock: Clock) -> None:
        self._space: Space = settings.space
        self._clock = clock
        self._is_open = False
        self._consumers: WeakSet[MemoryConsumer] = WeakSet()

    @property
    def capabilities(self) -> Capabilities:
        """See ``Driver.capabilities``."""
        return _CAPABILITIES

    async def open(self) -> None:
        """See ``Driver.open``."""
        with self._space.locked():
            self._is_open = True

    async def aclose(self) -> None:
        """See ``Driver.aclose``."""
        self._is_open = False
        for consumer in list(self._consumers):
            consumer.close()

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """See ``Driver.send``."""
        waits = [seconds_of(delay, "delay", floor=0.0) for delay in delays]
        await self._enter()
        now = self._clock.now()
        records = [wire.record_of(message, now) for message in messages]
        with self._space.locked():
            target = self._space.queue(queue)
            target.advance(now)
            for record, wait in zip(records, waits, strict=True):
                target.put(record, now, wait, self._space.ticket())
        return [None] * len(records)

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        """See ``Driver.consume``. There is nothing to prefetch."""
        if lease is not None:
            lease = positive_seconds(lease, "lease", limit=_CAPABILITIES.max_lease)
        await self._enter()
        with self._space.locked():
            source = self._space.queue(queue)
            seconds = lease or source.lease or DEFAULT_LEASE
            consumer = MemoryConsumer(self._space, source, seconds, self._clock)
            self._consumers.add(consumer)
            return consumer

    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """See ``Driver.declare``."""
        dead_letter = spec.dead_letter_queue
        for name in (spec.name, dead_letter):
            _check_name(name)
        if dead_letter == spec.name:
            msg = f"queue {spec.name} cannot be its own dead-letter queue"
            raise ConfigError(msg)
        if spec.lease is not None:
            positive_seconds(spec.lease, "lease", limit=_CAPABILITIES.max_lease)
        await self._enter()
        with self._space.locked():
            queues = self._space.queues
            found = queues.get(spec.name)
            if check_only:
                for name in (spec.name, dead_letter):
                    if name not in queues:
                        raise no_queue(name)
            differences = _differences(spec, found, is_final=check_only)
            if differences or check_only:
                return differences
            if found is None:
                found = queues[spec.name] = Queue(name=spec.name)
            found.dead_letter = dead_letter
            found.lease = found.lease if spec.lease is None else spec.lease
            queues.setdefault(dead_letter, Queue(name=dead_letter))
            return []

    async def inspect(self, queue: str, /) -> QueueStats:
        """See ``Driver.inspect``."""
        await self._enter()
        with self._space.locked():
            found = self._space.queue(queue)
            now = self._clock.now()
            found.advance(now)
            dead = self._space.queues.get(found.dead_letter or "")
            oldest = min((record.sent_at for record in found.ready), default=None)
            return QueueStats(
                ready=Count(len(found.ready)),
                leased=Count(found.leased),
                delayed=Count(found.delayed),
                dead=Count(len(dead.ready) + dead.leased + dead.delayed if dead else 0),
                oldest_age=None if oldest is None else now - oldest,
                next_due=found.next_due(now),
            )

    async def purge(self, queue: str, /) -> None:
        """See ``Driver.purge``."""
        await self._enter()
        with self._space.locked():
            found = self._space.queue(queue)
            found.advance(self._clock.now())
            found.clear()

    async def queues(self) -> Sequence[str]:
        """See ``Driver.queues``."""
        await self._enter()
        with self._space.locked():
            return sorted(self._space.queues)

    async def _enter(self) -> None:
        if not self._is_open:
            raise closed("driver")
        await checkpoint()


def _differences(spec: QueueSpec, found: Queue | None, *, is_final: bool) -> list[Difference]:
    """What of ``spec`` cannot be had.

    A queue that came into being as another's dead-letter queue has none of its own yet; the
    first declaration sets it, unless the answer is final.
    """
    pairs: list[tuple[str, object, object]] = []
    if spec.ordered:
        pairs.append(("ordered", True, False))
    if spec.retention is not None and spec.retention != math.inf:
        pairs.append(("retention", spec.retention, math.inf))
    if found is not None and (is_final or found.dead_letter is not None):
        pairs.append(("dead_letter", spec.dead_letter_queue, found.dead_letter))
    return [
        Difference(queue=spec.name, property=name, wanted=wanted, found=actual)
        for name, wanted, actual in pairs
        if wanted != actual
    ]


def _check_name(name: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= _MAX_NAME_BYTES or not name.isprintable():
        msg = f"queue name {name!r:.300} must be printable and have 1 to {_MAX_NAME_BYTES} bytes"
        raise ConfigError(msg)

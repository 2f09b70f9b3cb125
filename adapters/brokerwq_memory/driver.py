"""A driver of a space in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakSet

from anyio.lowlevel import checkpoint

from brokerwq.clock import Clock
from brokerwq.driver import (
    UNKNOWN_COUNT,
    Capabilities,
    Certainty,
    Consumer,
    Count,
    Difference,
    Lease,
    QueueSpec,
    QueueStats,
    Results,
)
from brokerwq.driver.rules import sqs_wire
from brokerwq.driver.support import no_dead_letter_queue
from brokerwq.durations import seconds_of
from brokerwq.message import Message
from brokerwq_memory import wire
from brokerwq_memory.consumer import MemoryConsumer
from brokerwq_memory.errors import closed
from brokerwq_memory.likeness import Likeness
from brokerwq_memory.settings import MemorySettings
from brokerwq_memory.shelf import Groups
from brokerwq_memory.space import Queue, Space


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
        return self._space.like.capabilities

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
        like, now = self._space.like, self._clock.now()
        results = [
            like.refusal(queue, message, wait)
            for message, wait in zip(messages, waits, strict=True)
        ]
        in_group = like.is_fifo(queue)
        records = [wire.record_of(message, now, in_group=in_group) for message in messages]
        with self._space.locked():
            target = self._space.queue(queue)
            target.advance(now)
            for nth, record in enumerate(records):
                if results[nth] is None and not _is_repeated(target, messages[nth], now):
                    target.put(record, now, like.delay(waits[nth]), self._space.ticket())
        return results

    async def foresee(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """See ``brokerwq.driver.moving.Foresight``."""
        await self._enter()
        return [
            self._space.like.refusal(queue, message, delay)
            for message, delay in zip(messages, delays, strict=True)
        ]

    def abilities(self, queue: str, /) -> Capabilities:
        """See ``brokerwq.driver.moving.Varied``."""
        return self._space.like.capabilities_of(queue)

    async def identity(self, queue: str, /) -> str:
        """See ``brokerwq.driver.moving.Identified``."""
        await self._enter()
        return f"memory {id(self._space)} {self._space.like.canonical(queue)}"

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        """See ``Driver.consume``. There is nothing to prefetch."""
        like = self._space.like
        seconds = None if lease is None else like.lease(lease, None)
        await self._enter()
        with self._space.locked():
            source = self._space.queue(queue)
            seconds = like.lease(None, source.lease) if seconds is None else seconds
            consumer = MemoryConsumer(self._space, source, seconds, self._clock)
            self._consumers.add(consumer)
            return consumer

    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """See ``Driver.declare``."""
        like = self._space.like
        like.check(spec)
        dead_letter = spec.dead_letter_queue
        await self._enter()
        with self._space.locked():
            queues = self._space.queues
            found = queues.get(like.canonical(spec.name))
            if check_only:
                self._space.queue(spec.name)
                if spec.on_dead != "hold":
                    if spec.declare == "never" and like.canonical(dead_letter) not in queues:
                        raise no_dead_letter_queue(spec)
                    self._space.queue(dead_letter)
            differences = _differences(spec, found, like, is_final=check_only)
            if differences or check_only:
                return differences
            made = self._space.made(spec.name)
            made.dead_letter = like.canonical(dead_letter)
            made.lease = made.lease if spec.lease is None else spec.lease
            if like.keeps_limits:
                made.retention = like.retention(spec.retention)
                made.broker_limit = spec.broker_limit
            dead = self._space.made(dead_letter)
            made.heir = dead if like.buries_expired else None
            return []

    async def declare_dead_letter(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """See ``brokerwq.driver.doctor.DeadLetterMaker``."""
        like = self._space.like
        like.check(spec)
        await self._enter()
        with self._space.locked():
            if check_only:
                self._space.queue(spec.dead_letter_queue)
                return []
            self._space.made(spec.dead_letter_queue)
            source = self._space.queues.get(like.canonical(spec.name))
            if source is not None and source.dead_letter is None:
                source.dead_letter = like.canonical(spec.dead_letter_queue)
            return []

    async def inspect(self, queue: str, /) -> QueueStats:
        """See ``Driver.inspect``."""
        await self._enter()
        with self._space.locked():
            found = self._space.queue(queue)
            now = self._clock.now()
            if found.shown is None or now - found.shown[0] >= self._space.lag:
                found.advance(now)
                found.shown = now, self._count(found, now)
            return found.shown[1]

    def _count(self, queue: Queue, now: float) -> QueueStats:
        can = self._space.like.capabilities
        dead = self._space.queues.get(queue.dead_letter or "")
        certainty = Certainty.EXACT
        if not can.exact_stats and can.lease is Lease.TIMED:
            certainty = Certainty.ESTIMATE
        stats = QueueStats(
            ready=Count(len(queue.shelf), certainty),
            leased=Count(queue.leased, certainty),
            delayed=Count(queue.delayed, certainty),
            dead=Count(len(dead.shelf) + dead.leased + dead.delayed if dead else 0, certainty),
        )
        if can.exact_stats:
            oldest = min((record.sent_at for record in queue.shelf), default=None)
            age = None if oldest is None else now - oldest
            return replace(stats, oldest_age=age, next_due=queue.next_due(now))
        if can.lease is Lease.CONNECTION:
            # A broker that tells who consumes, not what is unacked.
            is_idle = all(taker.is_idle for taker in queue.takers)
            leased = Count(0) if is_idle else UNKNOWN_COUNT
            return replace(stats, leased=leased, next_due=queue.next_due(now))
        return stats

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
        if not self._space.like.capabilities.lists_queues:
            raise self._space.like.cannot_list()
        with self._space.locked():
            return sorted(self._space.queues)

    async def _enter(self) -> None:
        if not self._is_open:
            raise closed("driver")
        await checkpoint()


def _is_repeated(queue: Queue, message: Message, now: float) -> bool:
    shelf = queue.shelf
    return isinstance(shelf, Groups) and shelf.is_repeated(sqs_wire.send_id(message), now)


def _differences(
    spec: QueueSpec, found: Queue | None, like: Likeness, *, is_final: bool
) -> list[Difference]:
    """What of ``spec`` cannot be had.

    A queue that came into being as another's dead-letter queue has none of its own yet; the
    first declaration sets it, unless the answer is final.
    """
    pairs: list[tuple[str, object, object]] = []
    if spec.ordered:
        pairs.append(("ordered", True, like.is_fifo(spec.name)))
    if found is None or (found.dead_letter is None and not is_final):
        settled = False
    else:
        settled = True
        wanted_dead = like.canonical(spec.dead_letter_queue)
        if spec.on_dead != "hold":
            pairs.append(("dead_letter", wanted_dead, found.dead_letter))
    if not like.keeps_limits:
        if spec.retention is not None and spec.retention != math.inf:
            pairs.append(("retention", spec.retention, math.inf))
    elif settled and found is not None:
        pairs.append(("retention", like.retention(spec.retention), found.retention))
        pairs.append(("broker_limit", spec.broker_limit, found.broker_limit))
    return [
        Difference(queue=spec.name, property=name, wanted=wanted, found=actual)
        for name, wanted, actual in pairs
        if wanted != actual
    ]

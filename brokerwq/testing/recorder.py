"""A driver that remembers what was sent through it and what died in it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerwq.clock import Clock
from brokerwq.driver.protocol import Consumer, Delivery, Driver, Mark, Results
from brokerwq.message import DeadLetterNote, Message
from brokerwq.testing.faults import Faults, FaultyConsumer, FaultyDriver


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message that the broker has accepted.

    Attributes:
        queue: Where it went.
        message: As it was sent.
        delay: Seconds until it may be run.
    """

    queue: str
    message: Message
    delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Buried:
    """A message that was given up on.

    Attributes:
        queue: The queue it was taken from.
        message: As it was claimed.
        note: Why.
    """

    queue: str
    message: Message
    note: DeadLetterNote


class Seen(NamedTuple):
    """What is known of a queue by what went in and out.

    Attributes:
        busy: How many messages are ready or leased.
        delayed: How many may be claimed later.
        next_due: Seconds until the first of them may be; None where none is delayed.
    """

    busy: int
    delayed: int
    next_due: float | None


class Recorder:
    """What all drivers of one app have seen; may be told from several threads.

    Args:
        clock: What time it is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sent: dict[str, Sent] = {}
        self._buried: dict[str, Buried] = {}
        # When each message that is kept may be claimed; minus infinity while it is leased.
        self._kept: dict[str, dict[str, float]] = {}

    def driver(self, inner: Driver) -> Driver:
        """``inner``, watched."""
        return _RecordedDriver(inner, self)

    @property
    def sent(self) -> list[Sent]:
        """Every message once, in the order in which they were accepted."""
        with self._lock:
            return list(self._sent.values())

    @property
    def buried(self) -> list[Buried]:
        """The dead letters that nobody has taken out since, the oldest first."""
        with self._lock:
            return list(self._buried.values())

    def seen(self, queue: str) -> Seen:
        """What goes on in a queue. A message that the broker itself removes stays in sight."""
        now = self._clock.now()
        with self._lock:
            waits = [at - now for at in self._kept.get(queue, {}).values() if at > now]
            busy = len(self._kept.get(queue, {})) - len(waits)
        return Seen(busy=busy, delayed=len(waits), next_due=min(waits, default=None))

    def note_kept(self, queue: str, message: Message, delay: float) -> None:
        """The broker has a message that may be claimed after ``delay`` seconds."""
        with self._lock:
            self._kept.setdefault(queue, {})[message.id] = self._clock.now() + delay

    def note_gone(self, queue: str, message: Message | None) -> None:
        """The broker has deleted a message, or with None all that nobody holds."""
        with self._lock:
            kept = self._kept.setdefault(queue, {})
            if message is not None:
                kept.pop(message.id, None)
            else:
                self._kept[queue] = {each: at for each, at in kept.items() if at == -math.inf}

    def note_sent(self, queue: str, message: Message, delay: float) -> None:
        """A message was accepted; what is sent back from the dead is none that was enqueued."""
        self.note_kept(queue, message, delay)
        with self._lock:
            if not message.redrives:
                sent = Sent(queue=queue, message=message, delay=delay)
                self._sent.setdefault(message.id, sent)

    def note_buried(self, delivery: Delivery, note: DeadLetterNote) -> None:
        """A message was given up on."""
        buried = Buried(queue=delivery.queue, message=delivery.message, note=note)
        with self._lock:
            self._buried[delivery.message.id] = buried

    def note_acked(self, delivery: Delivery) -> None:
        """A message was deleted; perhaps it was a dead letter."""
        if delivery.message.dead is not None:
            with self._lock:
                self._buried.pop(delivery.message.id, None)


class _RecordedConsumer(FaultyConsumer):
    def __init__(self, inner: Consumer, faults: Faults, recorder: Recorder, queue: str) -> None:
        super().__init__(inner, faults)
        self._recorder = recorder
        self._queue = queue

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        deliveries = await self.inner.claim(max_items, wait)
        for delivery in deliveries:
            self._recorder.note_kept(self._queue, delivery.message, -math.inf)
        return deliveries

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        results = await self.inner.ack(deliveries)
        for delivery, error in zip(deliveries, results, strict=True):
            if error is None:
                self._recorder.note_gone(self._queue, delivery.message)
                self._recorder.note_acked(delivery)
        return results

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        return self._returned(deliveries, delays, await self.inner.release(deliveries, delays))

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        results = await self.inner.put_back(deliveries, delays, marks)
        return self._returned(deliveries, delays, results)

    def _returned(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], results: Results
    ) -> Results:
        for delivery, delay, error in zip(deliveries, delays, results, strict=True):
            if error is None:
                self._recorder.note_kept(self._queue, delivery.message, delay)
        return results

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        results = await self.inner.dead_letter(deliveries, notes)
        for delivery, note, error in zip(deliveries, notes, results, strict=True):
            if error is None:
                self._recorder.note_gone(self._queue, delivery.message)
                self._recorder.note_buried(delivery, note)
        return results


class _RecordedDriver(FaultyDriver):
    def __init__(self, inner: Driver, recorder: Recorder) -> None:
        super().__init__(inner)
        self._recorder = recorder

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        results = await self.inner.send(queue, messages, delays)
        for message, delay, error in zip(messages, delays, results, strict=True):
            if error is None:
                self._recorder.note_sent(queue, message, delay)
        return results

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        consumer = await self.inner.consume(queue, lease=lease, prefetch=prefetch)
        return _RecordedConsumer(consumer, self.faults, self._recorder, queue)

    async def purge(self, queue: str, /) -> None:
        await self.inner.purge(queue)
        self._recorder.note_gone(queue, None)

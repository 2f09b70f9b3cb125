"""A driver that remembers what was sent through it and what died in it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from brokerwq.driver.protocol import Consumer, Delivery, Driver, Results
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


class Recorder:
    """What all drivers of one app have seen; may be told from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[str, Sent] = {}
        self._buried: dict[str, Buried] = {}

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

    def note_sent(self, queue: str, message: Message, delay: float) -> None:
        """A message was accepted; what is sent back from the dead is none that was enqueued."""
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
    def __init__(self, inner: Consumer, faults: Faults, recorder: Recorder) -> None:
        super().__init__(inner, faults)
        self._recorder = recorder

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        results = await self.inner.ack(deliveries)
        for delivery, error in zip(deliveries, results, strict=True):
            if error is None:
                self._recorder.note_acked(delivery)
        return results

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        results = await self.inner.dead_letter(deliveries, notes)
        for delivery, note, error in zip(deliveries, notes, results, strict=True):
            if error is None:
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

    def wrap(self, consumer: Consumer) -> Consumer:
        return _RecordedConsumer(consumer, self.faults, self._recorder)

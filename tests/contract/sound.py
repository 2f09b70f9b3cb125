"""Sound drivers over the memory broker that can do less than it, each in another way.

They stand for brokers that are not at hand, so that the kit is tried on their capabilities too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from brokerwq.driver import (
    Capabilities,
    Certainty,
    Consumer,
    Count,
    Delivery,
    Difference,
    Driver,
    Lease,
    Mark,
    QueueSpec,
    QueueStats,
    Results,
    UncountedReturn,
)
from brokerwq.driver.registry import find_adapter
from brokerwq.envelope import encode
from brokerwq.errors import (
    CannotExtendError,
    ConnectionLostError,
    DriverError,
    LeaseLostError,
    MessageTooLargeError,
    UnsupportedError,
)
from brokerwq.message import DeadLetterNote, Message
from brokerwq.testing import FakeClock, Harness
from brokerwq.testing.faults import Faults, FaultyConsumer, FaultyDriver
from tests.contract.sound_push import PushedConsumer

FOREVER = 10**10


@dataclass
class Broker:
    """What the drivers of one sound broker share."""

    can: Capabilities
    driver_class: type[SoundDriver] = field(default_factory=lambda: SoundDriver)
    consumer_class: type[SoundConsumer] = field(default_factory=lambda: SoundConsumer)
    clock: FakeClock = field(default_factory=FakeClock)
    faults: Faults = field(default_factory=Faults)
    dead: dict[str, str] = field(default_factory=dict[str, str])
    drivers: list[SoundDriver] = field(default_factory=list["SoundDriver"])

    def __post_init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()
        self.restarts = 0
        self._adapter = find_adapter("memory://")
        self._settings: list[Any] = [self._adapter.parse_url("memory://")]

    def build(self, start: int) -> Driver:
        """A driver of the broker as it was after so many restarts."""
        return self._adapter.build(self._settings[start], self.clock)

    def drive(self, inner: Driver) -> SoundDriver:
        return self.driver_class(inner, self)

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Driver]:
        driver = self.drive(self.build(-1))
        await driver.open()
        self.drivers.append(driver)
        try:
            yield driver
        finally:
            self.drivers.remove(driver)
            await driver.aclose()

    @asynccontextmanager
    async def out(self) -> AsyncGenerator[None]:
        with self.faults.outage():
            for driver in self.drivers:
                driver.interrupt()
            yield

    async def cut(self, driver: Driver) -> None:
        assert isinstance(driver, SoundDriver)
        await driver.cut()

    async def restart(self) -> None:
        self.restarts += 1
        if not self.can.durable:
            self._settings.append(self._adapter.parse_url("memory://"))

    def harness(self) -> Harness:
        return Harness(
            connect=self.connect,
            clock=self.clock,
            spec=lambda name: QueueSpec(name=name, ordered=self.can.ordered_groups),
            loggers=("brokerwq", "brokerwq_memory", "tests"),
            cut_connection=self.cut,
            outage=self.out,
            restart=self.restart,
        )


class SoundConsumer(FaultyConsumer):
    """A consumer that can be cut off, and keeps to the capabilities of its broker."""

    def __init__(self, inner: Consumer, driver: SoundDriver, queue: str, lease: float) -> None:
        super().__init__(inner, driver.faults)
        self.driver = driver
        self.broker = driver.broker
        self.can = driver.capabilities
        self.queue = queue
        self.asked = lease
        self.claiming: asyncio.Task[Sequence[Delivery]] | None = None
        self.is_cut = False
        self.held: dict[Delivery, float] = {}

    @property
    def lease(self) -> float:
        return self.asked

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        wait = min(wait, self.can.max_wait)
        claiming = asyncio.ensure_future(super().claim(min(max_items, self.can.max_claim), wait))
        self.claiming = claiming
        try:
            got = await claiming
        except asyncio.CancelledError:
            if claiming.done() and not claiming.cancelled():
                got = claiming.result()
                await self.inner.put_back(got, [0.0] * len(got), [Mark()] * len(got))
            if self.is_cut:
                self.is_cut = False
                raise ConnectionLostError("cut") from OSError("reset")
            raise
        received = [self._received(delivery) for delivery in got]
        self.held.update((delivery, self.broker.clock.now() + self.asked) for delivery in received)
        return received

    def interrupt(self) -> None:
        if self.claiming is not None and not self.claiming.done():
            self.is_cut = self.claiming.cancel()

    def _received(self, delivery: Delivery) -> Delivery:
        receives = delivery.receives if self.can.counts_receives else min(delivery.receives, 2)
        return replace(delivery, lease_left=self.asked, receives=receives)

    def _is_lost(self, delivery: Delivery) -> bool:
        if self.can.lease is Lease.CONNECTION:
            return delivery not in self.held
        return not self.can.fences and self.broker.clock.now() >= self.held.get(delivery, 0)

    async def _each(
        self,
        deliveries: Sequence[Delivery],
        call: Callable[[int], Any],
        *,
        is_final: bool = True,
        is_ack: bool = False,
    ) -> Results:
        results: list[DriverError | None] = []
        for nth, delivery in enumerate(deliveries):
            if self._is_lost(delivery):
                # The late ack of a broker without fences is sent all the same.
                is_sent = is_ack and not self.can.fences
                results.append(LeaseLostError("late", sent=is_sent))
                continue
            try:
                [result] = await call(nth)
            except UnsupportedError as exc:
                result = exc
            if result is None and is_final:
                self.held.pop(delivery, None)
            results.append(result)
        return results

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        if not deliveries:
            return await super().ack(deliveries)
        ack = super().ack
        return await self._each(deliveries, lambda nth: ack([deliveries[nth]]), is_ack=True)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        extend = super().extend

        async def each(nth: int) -> Results:
            if seconds > self.can.max_lease:
                return [CannotExtendError("too long", limit=self.can.max_lease)]
            if self.can.lease is Lease.CONNECTION:
                return [None]
            self.held[deliveries[nth]] = self.broker.clock.now() + seconds
            return await extend([deliveries[nth]], seconds)

        if not deliveries:
            return await super().extend(deliveries, seconds)
        return await self._each(deliveries, each, is_final=False)

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        release = super().release

        async def each(nth: int) -> Results:
            if delays[nth] > self.can.max_release_delay:
                raise UnsupportedError("too late")
            return await release([deliveries[nth]], [delays[nth]])

        return await self._each(deliveries, each)

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        put_back, release = super().put_back, super().release

        async def each(nth: int) -> Results:
            held, delay, mark = deliveries[nth], delays[nth], marks[nth]
            if delay > self.can.max_release_delay:
                raise UnsupportedError("too late")
            if self.can.uncounted_return is UncountedReturn.COUNTED:
                return await release([held], [delay])
            if self.can.uncounted_return is UncountedReturn.COPY:
                return await self._copy(self.queue, held, mark.on(held.message), delay)
            return await put_back([held], [delay], [mark])

        return await self._each(deliveries, each)

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        dead_letter = super().dead_letter

        async def each(nth: int) -> Results:
            held, note = deliveries[nth], notes[nth]
            if self.can.atomic_dead_letter:
                return await dead_letter([held], [note])
            copy = replace(held.message, attempts=0, dead=note)
            return await self._copy(self.broker.dead[self.queue], held, copy, 0.0)

        return await self._each(deliveries, each)

    async def _copy(self, queue: str, held: Delivery, copy: Message, delay: float) -> Results:
        async def copy_then_ack() -> Results:
            await self.driver.inner.send(queue, [copy], [delay])
            return await self.inner.ack([held])

        copying = asyncio.ensure_future(copy_then_ack())
        try:
            return await asyncio.shield(copying)
        except asyncio.CancelledError:
            await asyncio.wait({copying})
            raise

    async def cut(self) -> None:
        self.interrupt()
        if self.can.lease is Lease.CONNECTION:
            held = list(self.held)
            self.held.clear()
            with contextlib.suppress(DriverError):
                await self.inner.release(held, [0.0] * len(held))
                if isinstance(self.inner, PushedConsumer):
                    await self.inner.lose()

    async def aclose(self) -> None:
        await self.cut()
        await super().aclose()


class SoundDriver(FaultyDriver):
    """A driver that keeps to the capabilities of its broker."""

    def __init__(self, inner: Driver, broker: Broker) -> None:
        super().__init__(inner, broker.faults)
        self.broker = broker
        self.consumers: list[SoundConsumer] = []

    @property
    def capabilities(self) -> Capabilities:
        return self.broker.can

    def interrupt(self) -> None:
        for consumer in self.consumers:
            consumer.interrupt()

    async def cut(self) -> None:
        for consumer in self.consumers:
            await consumer.cut()

    async def aclose(self) -> None:
        for consumer in self.consumers:
            await consumer.aclose()
        await super().aclose()

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        refused = [
            self._refusal(message, delay) for message, delay in zip(messages, delays, strict=True)
        ]
        good = [nth for nth, error in enumerate(refused) if error is None]
        answers = iter(
            await super().send(
                queue, [messages[nth] for nth in good], [delays[nth] for nth in good]
            )
        )
        return [next(answers) if error is None else error for error in refused]

    def _refusal(self, message: Message, delay: float) -> DriverError | None:
        size = len(message.body) + sum(map(len, encode(message).values()))
        if size > self.broker.can.max_message_bytes:
            return MessageTooLargeError("too large")
        return UnsupportedError("too late") if delay > self.broker.can.max_send_delay else None

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        if lease is not None and lease > self.broker.can.max_lease:
            raise UnsupportedError("too long")
        asked = FOREVER if self.broker.can.lease is Lease.CONNECTION else lease
        inner = await super().consume(queue, lease=asked, prefetch=prefetch)
        lease = inner.lease if lease is None else lease
        if self.broker.can.lease is Lease.CONNECTION:
            inner = PushedConsumer(inner, prefetch, self.broker.clock)
        return self.adopt(inner, queue, lease)

    def wrap(self, consumer: Consumer) -> Consumer:
        return consumer

    def adopt(self, inner: Consumer, queue: str, lease: float) -> Consumer:
        consumer = self.broker.consumer_class(inner, self, queue, lease)
        self.consumers.append(consumer)
        return consumer

    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        if spec.ordered and self.broker.can.ordered_groups:
            spec = replace(spec, ordered=False)
        differences = await super().declare(spec, check_only=check_only)
        if not differences:
            self.broker.dead[spec.name] = spec.dead_letter_queue
        return differences

    async def inspect(self, queue: str, /) -> QueueStats:
        stats = await super().inspect(queue)
        if self.broker.can.exact_stats:
            return stats
        ready = Count(stats.ready.value, Certainty.ESTIMATE)
        return QueueStats(ready=ready, delayed=stats.delayed, dead=stats.dead)

    async def queues(self) -> Sequence[str]:
        if not self.broker.can.lists_queues:
            raise UnsupportedError("cannot list")
        return await super().queues()

"""A sound broker that keeps groups in order, over the memory broker, which does not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from brokerwq.driver import Capabilities, Delivery, Mark, Results, UncountedReturn
from brokerwq.message import DeadLetterNote, Message
from brokerwq.testing.faults import FaultyConsumer
from tests.contract.sound import Broker, SoundConsumer, SoundDriver

FIFO = Capabilities(
    max_send_delay=0,
    max_wait=20,
    uncounted_return=UncountedReturn.COUNTED,
    ordered_groups=True,
    exact_stats=False,
)


@dataclass
class FifoBroker(Broker):
    order: dict[str, int] = field(default_factory=dict[str, int])
    locks: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class FifoDriver(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        broker = fifo(self)
        for message in messages:
            broker.order.setdefault(message.id, len(broker.order))
        return await super().send(queue, messages, delays)


class FifoConsumer(SoundConsumer):
    is_quiesced = False

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        clock = self.broker.clock
        deadline = clock.now() + min(wait, self.can.max_wait)
        while True:
            taking = asyncio.ensure_future(self._take(max_items))
            try:
                got = await asyncio.shield(taking)
            except asyncio.CancelledError:
                got = await taking
                self._lock(got, 0.0)
                await self._return(got)
                raise
            if got or self.is_quiesced or clock.now() >= deadline:
                self.held.update((delivery, clock.now() + self.lease) for delivery in got)
                return got
            await clock.sleep(0.01)

    async def _take(self, max_items: int) -> Sequence[Delivery]:
        broker, now = fifo(self.driver), self.broker.clock.now()
        async with broker.turn:
            if self.is_quiesced:
                return []
            found = list(await FaultyConsumer.claim(self, 1000, 0.0))
            taken: list[Delivery] = []
            left: list[Delivery] = []
            for delivery in sorted(found, key=lambda item: broker.order[item.message.id]):
                if len(taken) < max_items and self._locked_until(delivery) <= now:
                    taken.append(delivery)
                    self._lock([delivery], now + self.lease)
                else:
                    left.append(delivery)
            await self._return(left)
            return taken

    async def _return(self, deliveries: Sequence[Delivery]) -> None:
        marks = [
            Mark(
                attempts=item.message.attempts,
                suspect=item.message.suspect,
                unknown_since=item.message.unknown_since,
                not_before=item.message.not_before,
                snoozed=item.message.snoozed,
            )
            for item in deliveries
        ]
        await self.inner.put_back(deliveries, [0.0] * len(deliveries), marks)

    def _locked_until(self, delivery: Delivery) -> float:
        return fifo(self.driver).locks.get((self.queue, delivery.message.group or ""), 0.0)

    def _lock(self, deliveries: Sequence[Delivery], until: float) -> None:
        for delivery in deliveries:
            if delivery.message.group is not None:
                fifo(self.driver).locks[self.queue, delivery.message.group] = until

    def _settled(self, deliveries: Sequence[Delivery], results: Results, until: float) -> Results:
        done = [it for it, result in zip(deliveries, results, strict=True) if result is None]
        self._lock(done, until)
        return results

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        results = await super().extend(deliveries, seconds)
        return self._settled(deliveries, results, self.broker.clock.now() + seconds)

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        return self._settled(deliveries, await super().ack(deliveries), 0.0)

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        return self._settled(deliveries, await super().release(deliveries, delays), 0.0)

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        return self._settled(deliveries, await super().put_back(deliveries, delays, marks), 0.0)

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        return self._settled(deliveries, await super().dead_letter(deliveries, notes), 0.0)

    async def quiesce(self) -> None:
        self.is_quiesced = True
        await super().quiesce()


def fifo(driver: SoundDriver) -> FifoBroker:
    assert isinstance(driver.broker, FifoBroker)
    return driver.broker


def fifo_broker() -> FifoBroker:
    return FifoBroker(FIFO, driver_class=FifoDriver, consumer_class=FifoConsumer)

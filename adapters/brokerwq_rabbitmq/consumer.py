"""Claims from one queue, settles what it claimed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from brokerwq.clock import Clock
from brokerwq.driver import Delivery, Mark, Results
from brokerwq.driver.rules.rabbitmq import cannot_extend
from brokerwq.driver.support import unstarted
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.errors import DriverError, LeaseLostError
from brokerwq.message import DeadLetterNote, Message
from brokerwq_rabbitmq import wire
from brokerwq_rabbitmq.copies import Copier
from brokerwq_rabbitmq.errors import closed, is_stray_cancellation, lease_lost
from brokerwq_rabbitmq.intake import Intake, Source, by_lane
from brokerwq_rabbitmq.lane import Held
from brokerwq_rabbitmq.transport import Settle


@dataclass(slots=True)
class _Item:
    """One delivery in a settle: its place in the batch, and what is to become of it."""

    nth: int
    held: Held
    delivery: Delivery


@dataclass(slots=True)
class _Copy:
    """One message that goes on as a copy, after which ``item`` is acked."""

    item: _Item
    message: Message
    delay: float


_Answers = list[DriverError | None]
_Change = Callable[[Sequence[_Item], _Answers], Awaitable[None]]


class RabbitConsumer:
    """See ``brokerwq.driver.Consumer``.

    Args:
        source: The queue.
        intake: Where its messages come in; started.
        copier: For what is returned as a copy.
        clock: For leases and for what is parked.
        lease: Seconds.
        returns_uncounted: ``nack`` is not counted by the broker, so that no copy is needed.
    """

    def __init__(
        self,
        source: Source,
        intake: Intake,
        copier: Copier,
        clock: Clock,
        *,
        lease: float,
        returns_uncounted: bool,
    ) -> None:
        self._source = source
        self._intake = intake
        self._copier = copier
        self._clock = clock
        self._lease = lease
        self._returns_uncounted = returns_uncounted

    @property
    def lease(self) -> float:
        """See ``Consumer.lease``."""
        return self._lease

    def tell_losses(self, tell: Callable[[Collection[object]], object], /) -> None:
        """See ``brokerwq.driver.Watchful``."""
        self._intake.tell_loss = tell

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        """See ``Consumer.claim``."""
        taken = await self._intake.claim(max_items, wait)
        now = self._clock.now()
        return [self._delivery_of(held, now) for held in taken]

    def _delivery_of(self, held: Held, now: float) -> Delivery:
        read = held.read
        receives = read.count + 1 if self._source.is_quorum else 1 + held.arrival.redelivered
        left = min(self._lease, held.arrived_at + self._intake.max_lease - now)
        return Delivery(
            message=read.message,
            queue=self._source.name,
            handle=held,
            receives=receives,
            lease_left=max(0.0, left),
            defect=read.defect,
        )

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        """See ``Consumer.ack``. An ack is not confirmed: one that is lost costs a redelivery."""
        await self._intake.may_settle.wait()
        results, items = self._sort(deliveries)
        # Not shielded as the others are: an ack that was not sent leaves the message as it is.
        await self._attempt(self._ack, items, results)
        return results

    async def _ack(self, items: Sequence[_Item], _: _Answers) -> None:
        for lane, settled in by_lane([item.held for item in items]):
            lane.ack(settled)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        """See ``Consumer.extend``. Asks the broker whether it still keeps the channel open."""
        seconds = positive_seconds(seconds, "lease")
        results, items = self._sort(deliveries)
        for lane, _ in by_lane([item.held for item in items]):
            try:
                await self._intake.ping(lane)
            except DriverError:
                continue  # the lane is dead now, and the loop below says so
        now = self._clock.now()
        limit = self._intake.max_lease
        for item in items:
            if not item.held.is_ours:
                results[item.nth] = _lost(item.delivery)
            elif now + seconds > item.held.arrived_at + limit:
                results[item.nth] = cannot_extend(self._intake.consumer_timeout, limit)
        return results

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        """See ``Consumer.release``."""
        waits = [seconds_of(delay, "delay", floor=0.0) for delay in delays]

        async def release(items: Sequence[_Item], results: _Answers) -> None:
            copies: list[_Copy] = []
            for item in items:
                delay = waits[item.nth]
                if delay == 0 and self._source.is_quorum:
                    item.held.lane.give_back([item.held], Settle.REJECT)
                    continue
                message = item.delivery.message
                spent = message.attempts + item.delivery.receives
                copies.append(_Copy(item, replace(message, attempts=spent), delay))
            await self._move(copies, results)

        return await self._settle(deliveries, release)

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        """See ``Consumer.put_back``."""
        waits = [seconds_of(delay, "delay", floor=0.0) for delay in delays]

        async def put_back(items: Sequence[_Item], results: _Answers) -> None:
            copies: list[_Copy] = []
            for item in items:
                delay, mark = waits[item.nth], marks[item.nth]
                if delay == 0 and self._can_nack(item.delivery, mark):
                    item.held.lane.give_back([item.held], Settle.NACK)
                    continue
                copies.append(_Copy(item, mark.on(item.delivery.message), delay))
            await self._move(copies, results)

        return await self._settle(deliveries, put_back)

    def _can_nack(self, delivery: Delivery, mark: Mark) -> bool:
        """Whether the message as it lies at the broker is what shall be put back."""
        return (
            self._returns_uncounted
            and self._source.is_quorum
            and delivery.receives == 1
            and wire.carries(delivery.message, mark)
        )

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        """See ``Consumer.dead_letter``."""
        if self._source.by_reject:
            return await self._settle(deliveries, self._give_up)

        async def dead_letter(items: Sequence[_Item], results: _Answers) -> None:
            copies = [
                _Copy(item, wire.buried(item.delivery.message, notes[item.nth]), 0.0)
                for item in items
            ]
            await self._move(copies, results, queue=self._source.dead_letter)

        return await self._settle(deliveries, dead_letter)

    async def quiesce(self) -> None:
        """See ``Consumer.quiesce``."""
        unclaimed = [self._delivery_of(held, 0.0) for held in await self._intake.quiesce()]
        marks = [unstarted(delivery.message, delivery.receives) for delivery in unclaimed]
        results = await self.put_back(unclaimed, [0.0] * len(unclaimed), marks)
        failed = [
            delivery
            for delivery, error in zip(unclaimed, results, strict=True)
            if error is not None
        ]
        await self._settle(failed, self._reject)

    async def _give_up(self, items: Sequence[_Item], _: _Answers) -> None:
        for item in items:
            item.held.lane.give_back([item.held], Settle.GIVE_UP)

    async def _reject(self, items: Sequence[_Item], _: _Answers) -> None:
        for item in items:
            item.held.lane.give_back([item.held], Settle.REJECT)

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._source.name

    @property
    def buffered(self) -> int:
        """How many messages have come and were not claimed."""
        return self._intake.buffered

    async def aclose(self) -> None:
        """See ``Consumer.aclose``.

        What was never claimed is put back first: the end of a channel counts as a receive.
        """
        if not self._intake.is_closed and not self._intake.is_quiesced:
            with suppress(DriverError):
                await self.quiesce()
        await self._intake.aclose()

    def _sort(self, deliveries: Sequence[Delivery]) -> tuple[_Answers, list[_Item]]:
        if self._intake.is_closed:
            raise closed("consumer")
        results: _Answers = [None] * len(deliveries)
        items: list[_Item] = []
        for nth, delivery in enumerate(deliveries):
            held = delivery.handle
            if isinstance(held, Held) and held.is_ours:
                items.append(_Item(nth, held, delivery))
            else:
                results[nth] = _lost(delivery)
        return results, items

    async def _settle(self, deliveries: Sequence[Delivery], change: _Change) -> Results:
        await self._intake.may_settle.wait()
        results, items = self._sort(deliveries)
        if items:
            # Shielded: a copy that was sent and not followed by its ack is a second message.
            await asyncio.shield(self._intake.spawn(self._attempt(change, items, results)))
        return results

    async def _attempt(self, change: _Change, items: Sequence[_Item], results: _Answers) -> None:
        try:
            await change(items, results)
        except (Exception, asyncio.CancelledError) as exc:
            if isinstance(exc, asyncio.CancelledError) and not is_stray_cancellation(exc):
                raise
            error = self._intake.error_of(exc)
            for item in items:
                if results[item.nth] is None and not item.held.is_settled:
                    results[item.nth] = error if item.held.is_ours else _lost(item.delivery)
        self._intake.retire()

    async def _move(
        self, copies: Sequence[_Copy], results: _Answers, *, queue: str | None = None
    ) -> None:
        now: list[_Copy] = []
        for copy in copies:
            if copy.delay and not self._source.has_levels:
                self._park(copy)
            else:
                now.append(copy)
        if not now:
            return
        answers = await self._copier.send(
            queue or self._source.name,
            [copy.message for copy in now],
            [copy.delay for copy in now],
        )
        done: list[Held] = []
        for copy, answer in zip(now, answers, strict=True):
            results[copy.item.nth] = answer
            if answer is None:
                done.append(copy.item.held)
        for lane, settled in by_lane(done):
            if lane.is_alive:
                lane.ack(settled)

    def _park(self, copy: _Copy) -> None:
        """Keep it unacked until it is due: without delay queues there is no other place.

        It takes a place of the prefetch meanwhile, and comes early if the connection is lost.
        """
        held = copy.item.held
        held.is_settled = True

        async def let_go() -> None:
            try:
                answers = await self._copier.send(self._source.name, [copy.message], [0.0])
            except DriverError as exc:
                answers = [exc]
            if answers[0] is None:
                held.lane.ack([held])
            else:
                held.lane.give_back([held], Settle.REJECT)

        def due() -> None:
            if held.lane.is_alive and not self._intake.is_closed:
                _ = self._intake.spawn(let_go())

        self._clock.call_at(self._clock.now() + copy.delay, due)


def _lost(delivery: Delivery) -> LeaseLostError:
    return lease_lost(delivery, "it was settled, or its channel is gone")

"""Claims from one queue in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from anyio.lowlevel import checkpoint

from brokerwq.clock import Clock
from brokerwq.driver import Delivery, Mark, Results
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.errors import ClosedError, DriverError
from brokerwq.message import DeadLetterNote
from brokerwq_memory import wire
from brokerwq_memory.errors import closed, lease_lost, no_dead_letter_queue
from brokerwq_memory.space import Queue, Record, Space, Waiter


class MemoryConsumer:
    """See ``brokerwq.driver.Consumer``."""

    def __init__(self, space: Space, queue: Queue, lease: float, clock: Clock) -> None:
        self._space = space
        self._queue = queue
        self._lease = lease
        self._clock = clock
        self._waiter: Waiter | None = None
        self._is_quiesced = False
        self._is_closed = False

    @property
    def lease(self) -> float:
        """See ``Consumer.lease``."""
        return self._lease

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        """See ``Consumer.claim``."""
        # Before anything is taken: a cancellation here leaves nothing behind.
        await checkpoint()
        if max_items < 1:
            return []
        deadline = self._clock.now() + wait
        while True:
            taken, waiter, next_at = self._take(max_items)
            if taken or self._is_quiesced or self._clock.now() >= deadline:
                self._forget(waiter)
                return taken
            wake_at = deadline if next_at is None else min(deadline, next_at)
            timer = self._clock.call_at(wake_at, waiter.wake_here)
            try:
                await waiter.wait()
            finally:
                timer.cancel()
                self._forget(waiter)

    def _take(self, max_items: int) -> tuple[list[Delivery], Waiter, float | None]:
        queue = self._queue
        waiter = Waiter()
        with self._space.locked():
            if self._is_closed:
                raise closed("consumer")
            now = self._clock.now()
            queue.advance(now)
            taken: list[Delivery] = []
            if not self._is_quiesced:
                for _ in range(min(max_items, len(queue.ready))):
                    record = queue.lend(now + self._lease, self._space.ticket())
                    taken.append(wire.delivery_of(record, queue.name, now))
                if not taken:
                    queue.waiters.add(waiter)
                    self._waiter = waiter
            return taken, waiter, queue.next_at()

    def _forget(self, waiter: Waiter) -> None:
        self._waiter = None
        with self._space.locked():
            self._queue.waiters.discard(waiter)

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        """See ``Consumer.ack``."""

        def ack(record: Record, _: int, __: float) -> None:
            self._queue.take_out(record)

        return await self._settle(deliveries, ack)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        """See ``Consumer.extend``."""
        seconds = positive_seconds(seconds, "lease")

        def extend(record: Record, _: int, now: float) -> None:
            self._queue.prolong(record, now + seconds)

        return await self._settle(deliveries, extend)

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        """See ``Consumer.release``."""
        waits = [seconds_of(delay, "delay", floor=0.0) for delay in delays]

        def release(record: Record, nth: int, now: float) -> None:
            self._queue.take_out(record)
            self._queue.put(record, now, waits[nth], self._space.ticket())

        return await self._settle(deliveries, release)

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        """See ``Consumer.put_back``."""
        waits = [seconds_of(delay, "delay", floor=0.0) for delay in delays]

        def put_back(record: Record, nth: int, now: float) -> None:
            wire.mark(record, marks[nth])
            self._queue.take_out(record)
            self._queue.put(record, now, waits[nth], self._space.ticket())

        return await self._settle(deliveries, put_back)

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        """See ``Consumer.dead_letter``."""

        def dead_letter(record: Record, nth: int, now: float) -> None:
            if self._queue.dead_letter is None:
                raise no_dead_letter_queue(self._queue.name)
            target = self._space.queue(self._queue.dead_letter)
            target.advance(now)
            wire.bury(record, notes[nth])
            self._queue.take_out(record)
            target.put(record, now, 0.0, self._space.ticket())

        return await self._settle(deliveries, dead_letter)

    async def _settle(
        self, deliveries: Sequence[Delivery], change: Callable[[Record, int, float], None]
    ) -> Results:
        await checkpoint()
        results: list[DriverError | None] = []
        with self._space.locked():
            if self._is_closed:
                raise closed("consumer")
            now = self._clock.now()
            self._queue.advance(now)
            for nth, delivery in enumerate(deliveries):
                record = _held(delivery)
                if record is None:
                    results.append(lease_lost(delivery))
                    continue
                try:
                    change(record, nth, now)
                except DriverError as exc:
                    results.append(exc)
                else:
                    results.append(None)
        return results

    async def quiesce(self) -> None:
        """See ``Consumer.quiesce``."""
        with self._space.locked():
            self._is_quiesced = True
            self._wake()

    async def aclose(self) -> None:
        """See ``Consumer.aclose``."""
        self.close()

    def close(self) -> None:
        """Close it without waiting; a claim that still waits raises ``ClosedError``."""
        self._is_closed = True
        with suppress(ClosedError), self._space.locked():
            self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            waiter.wake()


def _held(delivery: Delivery) -> Record | None:
    match delivery.handle:
        case (Record() as record, int() as ticket) if record.ticket == ticket:
            return record
        case _:
            return None

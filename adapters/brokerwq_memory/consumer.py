"""Claims from one queue in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from anyio.lowlevel import checkpoint

from brokerwq.clock import Clock
from brokerwq.driver import Capabilities, Delivery, Lease, Mark, Results, UncountedReturn
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.errors import ClosedError, DriverError
from brokerwq.message import DeadLetterNote
from brokerwq_memory import wire
from brokerwq_memory.errors import closed, lease_lost, no_dead_letter_queue
from brokerwq_memory.space import Claim, Queue, Space, Waiter

_Change: TypeAlias = Callable[[Claim, int, float], None]


class MemoryConsumer:
    """See ``brokerwq.driver.Consumer``."""

    def __init__(self, space: Space, queue: Queue, lease: float, clock: Clock) -> None:
        self._space = space
        self._like = space.like
        self._can = space.like.capabilities_of(queue.name)
        self._queue = queue
        self._lease = lease
        self._clock = clock
        self._waiter: Waiter | None = None
        self._held: set[Claim] = set()
        self._ends_with_us = self._can.lease is Lease.CONNECTION
        self._is_quiesced = False
        self._is_closed = False
        queue.takers.add(self)

    @property
    def lease(self) -> float:
        """See ``Consumer.lease``."""
        return self._lease

    @property
    def capabilities(self) -> Capabilities:
        """See ``Particular.capabilities``: a FIFO queue can do other things than the rest."""
        return self._can

    @property
    def is_idle(self) -> bool:
        """Whether it takes nothing more and holds nothing."""
        return self._is_closed or (self._is_quiesced and not self._held)

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        """See ``Consumer.claim``."""
        # Before anything is taken: a cancellation here leaves nothing behind.
        await checkpoint()
        if max_items < 1:
            return []
        most = min(max_items, self._can.max_claim)
        deadline = self._clock.now() + self._like.wait_for(wait, self._lease)
        while True:
            taken, waiter, next_at = self._take(most)
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
                while len(taken) < max_items and (claim := self._lend(now)) is not None:
                    left = min(self._lease, self._can.max_lease)
                    taken.append(wire.delivery_of(claim, queue.name, left))
                if not taken:
                    queue.waiters.add(waiter)
                    self._waiter = waiter
            return taken, waiter, queue.next_at()

    def _lend(self, now: float) -> Claim | None:
        hidden = self._like.unacked if self._ends_with_us else self._lease
        while True:
            record = self._queue.lend(now + hidden, self._space.ticket())
            if record is None:
                return None
            if record.receives > self._queue.broker_limit:
                self._space.move_to_dead(self._queue, record, now)
                continue
            claim = Claim(record, record.ticket, now, now + hidden)
            if self._ends_with_us:
                self._held.add(claim)
            return claim

    def _forget(self, waiter: Waiter) -> None:
        self._waiter = None
        with self._space.locked():
            self._queue.waiters.discard(waiter)

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        """See ``Consumer.ack``."""

        def ack(claim: Claim, _: int, __: float) -> None:
            claim.is_acked = True
            self._queue.remove(claim.record)

        return await self._settle(deliveries, ack, late=self._ack_late)

    def _ack_late(self, claim: Claim, delivery: Delivery, now: float) -> DriverError | None:
        """An ack of what is not held any more, where the broker cannot tell whose it is."""
        if claim.is_acked or (claim.record.is_gone and claim.until > now):
            return None  # done before, or by an earlier holder who was late
        if claim.is_settled:
            return lease_lost(delivery)
        if not self._like.is_fifo(self._queue.name) and not claim.record.is_gone:
            self._queue.remove(claim.record)
        claim.is_acked = claim.is_settled = True
        return lease_lost(delivery, sent=True)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        """See ``Consumer.extend``."""
        seconds = self._like.delay(positive_seconds(seconds, "lease"))

        def extend(claim: Claim, _: int, now: float) -> None:
            if now + seconds > claim.taken_at + self._can.max_lease:
                raise self._like.cannot_extend()
            if not self._ends_with_us:
                claim.until = now + seconds
                self._queue.prolong(claim.record, claim.until)

        return await self._settle(deliveries, extend)

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        """See ``Consumer.release``."""
        waits = [self._like.delay(seconds_of(delay, "delay", floor=0.0)) for delay in delays]

        def release(claim: Claim, nth: int, now: float) -> None:
            wait, message = waits[nth], wire.message_of(claim.record)
            self._check(wait)
            left = claim.taken_at + self._can.max_lease - now
            if self._like.copies(wait, left):
                counted = self._like.counted(message, claim.record.receives)
                self._copy(claim, wait, counted, now)
            else:
                self._return(claim, min(wait, left), now)

        return await self._settle(deliveries, release)

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        """See ``Consumer.put_back``."""
        waits = [self._like.delay(seconds_of(delay, "delay", floor=0.0)) for delay in delays]

        def put_back(claim: Claim, nth: int, now: float) -> None:
            self._check(waits[nth])
            if self._can.uncounted_return is UncountedReturn.COUNTED:
                left = claim.taken_at + self._can.max_lease - now
                self._return(claim, min(waits[nth], left), now)
            else:
                self._copy(claim, waits[nth], marks[nth], now)

        return await self._settle(deliveries, put_back)

    def _check(self, wait: float) -> None:
        if wait > self._can.max_release_delay:
            raise self._like.release_refusal(wait)

    def _copy(self, claim: Claim, wait: float, mark: Mark, now: float) -> None:
        """Return as a message that carries ``mark`` and has not been received."""
        timed = self._like.timed(mark, wait, self._clock)
        marked = timed.on(wire.message_of(claim.record))
        if self._like.refusal(self._queue.name, marked, 0.0) is None:
            wire.mark(claim.record, timed)
            claim.record.sent_at = now
        self._return(claim, min(wait, self._like.copy_delay), now)

    def _return(self, claim: Claim, wait: float, now: float) -> None:
        self._queue.take_back(claim.record)
        self._queue.put(claim.record, now, wait, self._space.ticket())

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        """See ``Consumer.dead_letter``."""

        def dead_letter(claim: Claim, nth: int, now: float) -> None:
            if self._queue.dead_letter is None:
                raise no_dead_letter_queue(self._queue.name)
            self._space.queue(self._queue.dead_letter)
            note = self._like.fitting(wire.message_of(claim.record), notes[nth])
            wire.bury(claim.record, note)
            claim.record.sent_at = now
            self._space.move_to_dead(self._queue, claim.record, now)

        return await self._settle(deliveries, dead_letter)

    async def _settle(
        self,
        deliveries: Sequence[Delivery],
        change: _Change,
        *,
        late: Callable[[Claim, Delivery, float], DriverError | None] | None = None,
    ) -> Results:
        await checkpoint()
        results: list[DriverError | None] = []
        with self._space.locked():
            if self._is_closed:
                raise closed("consumer")
            now = self._clock.now()
            self._queue.advance(now)
            for nth, delivery in enumerate(deliveries):
                claim = delivery.handle
                if isinstance(claim, Claim) and claim.is_held:
                    results.append(self._change(change, claim, nth, now))
                elif late is None or self._can.fences or not isinstance(claim, Claim):
                    results.append(lease_lost(delivery))
                else:
                    results.append(late(claim, delivery, now))
        return results

    def _change(self, change: _Change, claim: Claim, nth: int, now: float) -> DriverError | None:
        try:
            change(claim, nth, now)
        except DriverError as exc:
            return exc
        if not claim.is_held:
            claim.is_settled = True
            self._held.discard(claim)
        return None

    async def quiesce(self) -> None:
        """See ``Consumer.quiesce``."""
        with self._space.locked():
            self._is_quiesced = True
            self._wake()

    async def aclose(self) -> None:
        """See ``Consumer.aclose``."""
        self.close()

    def close(self) -> None:
        """Close it without waiting; a claim that still waits raises ``ClosedError``.

        Where the connection is the lease, what it held is there again at once.
        """
        self._is_closed = True
        with suppress(ClosedError), self._space.locked():
            held, self._held = self._held, set()
            now = self._clock.now()
            for claim in held:
                if claim.is_held:
                    self._return(claim, 0.0, now)
            self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            waiter.wake()

"""One pass over a queue that leaves what it does not take as it was.

No broker lets one look into a queue without claiming. A sweep therefore claims, holds what it
has seen until it ends, so that it meets nothing twice, and then puts it back uncounted. Killed
on the way, it leaves messages that come back by themselves when their lease ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from brokerwq.clock import SYSTEM_CLOCK, Clock, move_on_after
from brokerwq.dead_letters.returning import return_chunk
from brokerwq.driver import (
    Capabilities,
    Consumer,
    Delivery,
    Driver,
    Lease,
    Mark,
    QueueSpec,
    Results,
    capabilities_of,
)
from brokerwq.errors import DriverError, LeaseLostError, PermissionDeniedError

DEFAULT_LEASE = 60.0
DEFAULT_MAX_HELD = 50_000
"""Held messages cost memory here, and at most brokers a place in a table of limited size."""

_PUSH_WAIT = 1.0
_ESTIMATED_EMPTIES = 3
_CLOSE_TIME = 10.0
_CLOSE_TIME_EACH = 0.05
"""Seconds for putting one message back, where that takes two calls for every ten of them."""
_CALLS = 4
"""Calls under way at once while messages are put back; more would turn their order round."""


def _as_it_is(delivery: Delivery) -> Mark:
    return Mark.of(delivery.message)


class Sweep:
    """Claims a queue from its head to its end, once.

    Use it as an async context manager and call ``claim`` until it answers nothing.

    Attributes:
        is_complete: Whether everything that was there has been, or can still be, seen.
        capabilities: What the queue can do: within the ``async with`` its own, before it what its
            driver says of all.
        max_claim: Most messages that one ``claim`` brings.
    """

    def __init__(
        self,
        driver: Driver,
        queue: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        lease: float = DEFAULT_LEASE,
        max_held: int = DEFAULT_MAX_HELD,
        spec: QueueSpec | None = None,
        mark_of: Callable[[Delivery], Mark] = _as_it_is,
    ) -> None:
        """Prepare a pass; nothing is claimed yet.

        Args:
            driver: An open driver.
            queue: The queue to go through.
            clock: Paces the heartbeats.
            lease: Seconds for one claim; extended for as long as the pass lasts.
            max_held: Messages it holds at most; at that number the pass ends incomplete.
            spec: What ``queue`` is part of, where that is known: a driver that has compared it
                knows better how messages go back. Nothing is created.
            mark_of: What a message carries when it goes back; as a rule what it carried before,
                its receives forgotten.
        """
        self._driver = driver
        self._queue = queue
        self._clock = clock
        self._max_held = max_held
        self._spec = spec
        self._mark_of = mark_of
        self._lease = min(lease, driver.capabilities.max_lease)
        self._suit(driver.capabilities)
        self._held: dict[Delivery, None] = {}
        self._consumer: Consumer | None = None
        self._beats: asyncio.Task[None] | None = None
        self._extending = asyncio.Lock()
        self.is_complete = True

    def _suit(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.max_claim = capabilities.max_claim
        self._max_settle = capabilities.max_settle
        # Where stock is exact and nothing is pushed, an empty claim means an empty queue.
        is_exact = capabilities.exact_stats and capabilities.lease is Lease.TIMED
        self._wait = 0.0 if is_exact else min(_PUSH_WAIT, capabilities.max_wait)
        self._empties = 1 if capabilities.exact_stats else _ESTIMATED_EMPTIES

    async def __aenter__(self) -> Self:
        """Start receiving.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        if self._spec is not None:
            with suppress(DriverError):
                await self._driver.declare(self._spec, check_only=True)
        self._consumer = await self._driver.consume(
            self._queue, lease=self._lease, prefetch=self._max_held
        )
        self._suit(capabilities_of(self._consumer, self._driver))
        self._beats = asyncio.create_task(self._keep(self._consumer))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Put back everything that is still held, also when the pass is cancelled."""
        consumer, self._consumer = self._consumer, None
        patience = _CLOSE_TIME + len(self._held) * _CLOSE_TIME_EACH
        with move_on_after(self._clock, patience) as scope:
            scope.shield = True
            await self._stop_beats()
            if consumer is None:
                return
            with suppress(DriverError):
                await consumer.quiesce()
            await self._put_back(consumer)
            with suppress(DriverError):
                await consumer.aclose()

    async def claim(self, max_items: int) -> Sequence[Delivery]:
        """The next messages, at most ``max_items``; nothing at the end of the pass."""
        consumer = self._open_consumer()
        room = min(max_items, self.max_claim, self._max_held - len(self._held))
        if room <= 0:
            self.is_complete = False
        for _ in range(self._empties):
            # After a lost lease the same message could be met again.
            if not self.is_complete:
                break
            claimed = await consumer.claim(room, self._wait)
            if claimed:
                self._held.update(dict.fromkeys(claimed))
                return claimed
        return ()

    @property
    def keeps_back(self) -> bool:
        """Whether what is held may keep others of its group from being seen."""
        return self.capabilities.ordered_groups and any(
            delivery.message.group for delivery in self._held
        )

    async def ack(self, deliveries: Sequence[Delivery]) -> Results:
        """Delete these messages, whatever their number; one answer for each."""
        consumer = self._open_consumer()
        results: list[DriverError | None] = []
        for start in range(0, len(deliveries), self._max_settle):
            chunk = deliveries[start : start + self._max_settle]
            answers = await consumer.ack(chunk)
            for delivery, answer in zip(chunk, answers, strict=True):
                if answer is None or isinstance(answer, LeaseLostError):
                    self._held.pop(delivery, None)
            results.extend(answers)
        return results

    def _open_consumer(self) -> Consumer:
        if self._consumer is None:
            msg = "a sweep is used inside `async with`"
            raise RuntimeError(msg)
        return self._consumer

    async def _keep(self, consumer: Consumer) -> None:
        while True:
            await self._clock.sleep(consumer.lease / 3)
            held = list(self._held)
            for start in range(0, len(held), self._max_settle):
                chunk = held[start : start + self._max_settle]
                # A beat that fails is made up for by the next: a lease holds three of them.
                with suppress(DriverError):
                    async with self._extending:
                        answers = await consumer.extend(chunk, consumer.lease)
                    self._note(chunk, answers)

    def _note(self, chunk: Sequence[Delivery], answers: Results) -> None:
        for delivery, answer in zip(chunk, answers, strict=True):
            if isinstance(answer, LeaseLostError) and delivery in self._held:
                del self._held[delivery]
                self.is_complete = False

    async def _stop_beats(self) -> None:
        if self._beats is not None:
            # Between two calls, not within one: a beat that the broker carries out after the
            # return would hide the message again.
            async with self._extending:
                self._beats.cancel()
            await asyncio.wait({self._beats})

    async def _put_back(self, consumer: Consumer) -> None:
        held, size = list(self._held), self._max_settle
        first, rest = held[:1], held[1:]
        chunks = [rest[start : start + size] for start in range(0, len(rest), size)]
        # One alone: a copy whose original may not be deleted stays beside it.
        denial = await self._return(consumer, first) if first else None
        for start in range(0, len(chunks), _CALLS):
            part = chunks[start : start + _CALLS]
            if denial is None:
                await asyncio.gather(*(self._return(consumer, chunk) for chunk in part))
                continue
            for chunk in part:
                with suppress(DriverError):
                    await consumer.release(chunk, [0.0] * len(chunk))
        self._held.clear()

    async def _return(
        self, consumer: Consumer, chunk: Sequence[Delivery]
    ) -> PermissionDeniedError | None:
        marks = [self._mark_of(delivery) for delivery in chunk]
        return await return_chunk(consumer, chunk, [0.0] * len(chunk), marks, self._clock)

"""Claims from one SQS queue and settles what it claimed.

Leases are judged by our own clock. On a standard queue an outdated extend or release is
answered 200 and may touch what somebody else is working on, so none is ever sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeAlias

from brokerwq.clock import Clock
from brokerwq.driver import Capabilities, Delivery, Mark, Results
from brokerwq.driver.rules import sqs as rules
from brokerwq.driver.rules.sqs import MAX_DELAY, MAX_LEASE
from brokerwq.driver.support import unstarted
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.errors import ClosedError, DriverError, LeaseLostError, PermissionDeniedError
from brokerwq.message import DeadLetterNote
from brokerwq_sqs import copies
from brokerwq_sqs.batch import Entry, call_batch
from brokerwq_sqs.client import Api
from brokerwq_sqs.errors import lease_lost, under_way
from brokerwq_sqs.polls import Polls, Receipt, State, receipt_of
from brokerwq_sqs.queues import Queue, Queues

_SEND: Final = "send_message_batch"
_DELETE: Final = "delete_message_batch"
_CHANGE: Final = "change_message_visibility_batch"

_Slots: TypeAlias = list[DriverError | None]
_Item: TypeAlias = tuple[int, Receipt]


class SqsConsumer:
    """See ``brokerwq.driver.Consumer``."""

    def __init__(
        self,
        api: Api,
        queues: Queues,
        queue: Queue,
        polls: Polls,
        *,
        lease: int,
        capabilities: Capabilities,
        clock: Clock,
    ) -> None:
        self._api = api
        self._queues = queues
        self._queue = queue
        self._polls = polls
        self._lease = lease
        self.capabilities = capabilities
        """What its queue can do, which is not what all queues of the driver can."""
        self._clock = clock
        self._can_copy = not queue.is_fifo
        self._settling: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def lease(self) -> float:
        """See ``Consumer.lease``."""
        return float(self._lease)

    @property
    def is_closed(self) -> bool:
        """Whether ``aclose`` was called."""
        return self._is_closed

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        """See ``Consumer.claim``."""
        self._check_open()
        return await self._polls.claim(max_items, wait)

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        """See ``Consumer.ack``. Finished work is deleted even after its lease."""
        results, items = self._sorted(deliveries, late=True)
        now = self._clock.now()
        late = {nth for nth, receipt in items if receipt.until <= now and not receipt.is_copied}

        async def ack() -> None:
            await self._delete(items, results)
            for nth in late:
                # A FIFO queue refuses it; what was sent is sent.
                if results[nth] is None or isinstance(results[nth], LeaseLostError):
                    results[nth] = lease_lost(self._queue.label, sent=True)

        return await self._shielded(items, results, ack)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        """See ``Consumer.extend``."""
        timeout = math.ceil(positive_seconds(seconds, "lease"))
        self._check_open()
        results, items = self._sorted(deliveries)
        now = self._clock.now()
        allowed: list[_Item] = []
        for nth, receipt in items:
            if now + timeout > receipt.taken_at + MAX_LEASE:
                results[nth] = rules.cannot_extend()
            else:
                allowed.append((nth, receipt))
        await self._change(allowed, dict.fromkeys(range(len(results)), timeout), results)
        for nth, receipt in allowed:
            if results[nth] is None:
                receipt.until = now + timeout
        return results

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        """See ``Consumer.release``."""
        results, items = self._sorted(deliveries)
        timeouts = {nth: _whole(delays[nth]) for nth, _ in items}
        for nth, timeout in timeouts.items():
            if timeout > MAX_LEASE:
                results[nth] = rules.release_refusal(timeout)
        items = [item for item in items if results[item[0]] is None]

        async def release() -> None:
            now = self._clock.now()
            by_copy: list[_Item] = []
            in_place: list[_Item] = []
            for nth, receipt in items:
                left = int(receipt.taken_at + MAX_LEASE - now)
                if timeouts[nth] > left and self._can_copy:
                    by_copy.append((nth, receipt))
                else:
                    timeouts[nth] = min(timeouts[nth], left)
                    in_place.append((nth, receipt))
            await self._hide(in_place, timeouts, results)
            if by_copy:
                marks = {
                    nth: self._timed(copies.spent(receipt.received), delays[nth])
                    for nth, receipt in by_copy
                }
                await self._return(by_copy, timeouts, marks, results)

        return await self._shielded(items, results, release)

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        """See ``Consumer.put_back``. On a FIFO queue it is counted, and marks are lost."""
        results, items = self._sorted(deliveries)
        timeouts = {nth: _whole(delays[nth]) for nth, _ in items}
        chosen = {nth: self._timed(marks[nth], delays[nth]) for nth, _ in items}

        async def put_back() -> None:
            await self._return(items, timeouts, chosen, results)

        return await self._shielded(items, results, put_back)

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        """See ``Consumer.dead_letter``."""
        results, items = self._sorted(deliveries)

        async def dead_letter() -> None:
            target = await self._queues.dead_letter(self._queue)
            largest = max((len(receipt.received.body) for _, receipt in items), default=0)
            limit = await self._queues.limit(target, 2 * largest + 1024)
            fresh = [item for item in items if not item[1].is_copied]
            entries = [
                copies.dead_entry(
                    copies.dead_copy(receipt.received, notes[nth], limit),
                    receipt.received,
                    is_fifo=target.is_fifo,
                )
                for nth, receipt in fresh
            ]
            await self._move(target, items, fresh, entries, results)

        return await self._shielded(items, results, dead_letter)

    async def quiesce(self) -> None:
        """See ``Consumer.quiesce``. Takes as long as the polls in flight."""
        self._check_open()
        unclaimed = await self._polls.drain()
        if not unclaimed:
            return
        none = [0.0] * len(unclaimed)
        marks = [unstarted(delivery.message, delivery.receives) for delivery in unclaimed]
        try:
            results = await self.put_back(unclaimed, none, marks)
        except DriverError as exc:
            results = [exc] * len(unclaimed)
        rest = [
            delivery
            for delivery, failed in zip(unclaimed, results, strict=True)
            if failed is not None
        ]
        if rest:
            # Failing that as well, they come back when their leases end.
            with contextlib.suppress(DriverError):
                await self.release(rest, [0.0] * len(rest))

    async def aclose(self) -> None:
        """See ``Consumer.aclose``. Polls in flight are waited for, unless it is cancelled."""
        if self._is_closed:
            return
        try:
            if not self._polls.is_idle:
                await self.quiesce()
        finally:
            self._is_closed = True
            await self._polls.abandon()
        while self._settling:
            await asyncio.wait(self._settling)

    def _check_open(self) -> None:
        if self._is_closed:
            msg = f"the consumer of {self._queue.label} is closed"
            raise ClosedError(msg)

    def _sorted(
        self, deliveries: Sequence[Delivery], *, late: bool = False
    ) -> tuple[_Slots, list[_Item]]:
        """A slot for each delivery, and those that there is still something to do about.

        Args:
            deliveries: What is to be settled.
            late: Also those whose lease has ended.
        """
        self._check_open()
        results: _Slots = [None] * len(deliveries)
        items: list[_Item] = []
        now = self._clock.now()
        for nth, delivery in enumerate(deliveries):
            receipt = receipt_of(delivery)
            is_ours = late or receipt.is_copied or receipt.until > now
            if receipt.state is State.HELD and is_ours:
                items.append((nth, receipt))
            elif receipt.state is State.ENDING:
                results[nth] = under_way(self._queue.label)
            elif receipt.state is not State.ACKED or not late:
                results[nth] = lease_lost(self._queue.label)
        return results, items

    async def _shielded(
        self, items: list[_Item], results: _Slots, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> Results:
        """Do ``work`` to its end even if the caller is cancelled: no copy without its delete."""
        if not items:
            return results
        for _, receipt in items:
            receipt.state = State.ENDING  # no extend must follow it out

        async def settle() -> Results:
            try:
                await work()
            finally:
                for _, receipt in items:
                    if receipt.state is State.ENDING:
                        receipt.state = State.HELD
            return results

        task = asyncio.create_task(settle())
        self._settling.add(task)
        task.add_done_callback(self._settled)
        return await asyncio.shield(task)

    def _settled(self, task: asyncio.Task[Any]) -> None:
        self._settling.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; after a cancellation nobody does

    async def _call(
        self,
        operation: str,
        queue: Queue,
        items: Sequence[_Item],
        entries: Sequence[Entry],
        results: _Slots,
    ) -> None:
        """Fill the slots of ``items``; raise only if that leaves no item's fate known."""
        if not items:
            return
        try:
            answers: Results = await call_batch(self._api, operation, queue, entries)
        except DriverError as exc:
            if len(items) == len(results):
                raise
            answers = [exc] * len(items)
        for (nth, _), answer in zip(items, answers, strict=True):
            results[nth] = answer

    async def _delete(self, items: Sequence[_Item], results: _Slots) -> None:
        def entry(_: int, receipt: Receipt) -> Entry:
            return Entry({"ReceiptHandle": self._polls.newest(receipt).handle})

        await self._by_handle(_DELETE, items, entry, results)
        now = self._clock.now()
        for nth, receipt in items:
            if results[nth] is None:
                in_time = receipt.until > now or receipt.is_copied
                self._polls.newest(receipt).state = State.ACKED
                receipt.state = State.ACKED if in_time else State.GONE

    async def _change(
        self, items: Sequence[_Item], timeouts: dict[int, int], results: _Slots
    ) -> None:
        def entry(nth: int, receipt: Receipt) -> Entry:
            return Entry({"ReceiptHandle": receipt.handle, "VisibilityTimeout": timeouts[nth]})

        await self._by_handle(_CHANGE, items, entry, results)

    async def _by_handle(
        self,
        operation: str,
        items: Sequence[_Item],
        entry: Callable[[int, Receipt], Entry],
        results: _Slots,
    ) -> None:
        """Call; an entry that failed while its message came again is tried with that handle."""
        entries = [entry(nth, receipt) for nth, receipt in items]
        await self._call(operation, self._queue, items, entries, results)
        again = [
            (nth, receipt)
            for (nth, receipt), sent in zip(items, entries, strict=True)
            if results[nth] is not None and entry(nth, receipt) != sent
        ]
        if again:
            entries = [entry(nth, receipt) for nth, receipt in again]
            with contextlib.suppress(DriverError):  # then the first answer stands
                await self._call(operation, self._queue, again, entries, results)

    async def _hide(
        self, items: Sequence[_Item], timeouts: dict[int, int], results: _Slots
    ) -> None:
        """Return in place, counted. What was copied before is deleted instead."""
        copied = [item for item in items if item[1].is_copied]
        await self._delete(copied, results)
        rest = [item for item in items if not item[1].is_copied]
        await self._change(rest, timeouts, results)
        for nth, receipt in rest:
            if results[nth] is None:
                receipt.state = State.GONE

    async def _return(
        self,
        items: list[_Item],
        timeouts: dict[int, int],
        marks: dict[int, Mark],
        results: _Slots,
    ) -> None:
        """Return by copy; in place where no copy can be made."""
        entries: list[Entry] = []
        fresh: list[_Item] = []
        in_place: list[_Item] = []
        largest = max((len(receipt.received.body) for _, receipt in items), default=0)
        limit = await self._queues.limit(self._queue, 2 * largest + 1024) if self._can_copy else 0
        for nth, receipt in items:
            if receipt.is_copied:
                continue
            copy = copies.returned_copy(receipt.received, marks[nth], limit) if limit else None
            if copy is None:
                in_place.append((nth, receipt))
                continue
            delay = min(timeouts[nth], MAX_DELAY)
            entries.append(copies.copy_entry(copy, receipt.received, delay))
            fresh.append((nth, receipt))
        moving = [item for item in items if item not in in_place]
        await self._move(self._queue, moving, fresh, entries, results)
        denied = [item for item in fresh if isinstance(results[item[0]], PermissionDeniedError)]
        self._can_copy = self._can_copy and not denied
        await self._hide([*in_place, *denied], timeouts, results)

    async def _move(
        self,
        target: Queue,
        items: Sequence[_Item],
        fresh: Sequence[_Item],
        entries: Sequence[Entry],
        results: _Slots,
    ) -> None:
        """Copy ``fresh`` to ``target``, then delete all of ``items`` that have a copy."""
        try:
            await self._call(_SEND, target, fresh, entries, results)
        except PermissionDeniedError as exc:
            for nth, _ in fresh:
                results[nth] = exc
        for nth, receipt in fresh:
            receipt.is_copied = results[nth] is None
        await self._delete([item for item in items if item[1].is_copied], results)

    def _timed(self, mark: Mark, delay: float) -> Mark:
        """``mark`` with the moment at which a delay beyond the broker's ends."""
        if delay <= MAX_DELAY or mark.not_before is not None:
            return mark
        return replace(mark, not_before=self._clock.utcnow() + timedelta(seconds=delay))


def _whole(delay: float) -> int:
    """``delay`` in whole seconds, rounded up: never early."""
    return math.ceil(seconds_of(delay, "delay", floor=0.0))

"""Receiving: long polls that are never cancelled, and what they brought.

A poll whose client has gone away still takes messages and hides them for a lease, so a claim
that ends early leaves its poll running. The next claim, or ``drain``, takes what it brings.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from brokerwq.clock import Clock, move_on_after
from brokerwq.driver import Delivery
from brokerwq.driver.rules.sqs import MAX_ENTRIES, SHORTEST_LEASE
from brokerwq.errors import ConnectionLostError
from brokerwq_sqs.client import Api
from brokerwq_sqs.queues import Queue
from brokerwq_sqs.received import SYSTEM_ATTRIBUTES, Received, read
from brokerwq_sqs.settings import SqsSettings


class State(enum.Enum):
    """How far the settling of a receipt has come."""

    HELD = enum.auto()
    ENDING = enum.auto()
    ACKED = enum.auto()
    GONE = enum.auto()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Receipt:
    """One receive of one message; the handle of a ``Delivery``.

    Attributes:
        handle: What SQS wants to see for it: the newest, if it comes again while it is held.
        received: The message.
        taken_at: The clock before the request that brought it.
        until: The clock when the lease ends, as far as we may trust it.
        state: How far its settling has come.
        is_copied: A copy was confirmed: whatever is asked now, only the delete is left.
    """

    handle: str
    received: Received
    taken_at: float
    until: float
    state: State = State.HELD
    is_copied: bool = False


def receipt_of(delivery: Delivery) -> Receipt:
    """The receive that ``delivery`` stands for."""
    if not isinstance(delivery.handle, Receipt):
        msg = "the delivery is of another adapter"
        raise TypeError(msg)
    return delivery.handle


class Polls:
    """The receiving half of a consumer."""

    def __init__(
        self, api: Api, queue: Queue, lease: int, clock: Clock, settings: SqsSettings
    ) -> None:
        self._api = api
        self._queue = queue
        self._lease = lease
        self._clock = clock
        self._settings = settings
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running: set[asyncio.Task[list[Receipt]]] = set()
        self._arrived: deque[Receipt] = deque()
        self._newest: WeakValueDictionary[str, Receipt] = WeakValueDictionary()
        self._width = 1
        self._attempt_ids: list[str] = []

    async def claim(self, max_items: int, wait: float) -> Sequence[Delivery]:
        """See ``Consumer.claim``."""
        failure = self._harvest()
        if self._ended.done():
            return []
        if not self._arrived and failure is None:
            limit = wait if self._running else None  # an older poll may last longer
            self._start(max_items, self._poll_seconds(wait))
            with move_on_after(self._clock, limit):
                pending: set[asyncio.Future[Any]] = {*self._running, self._ended}
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                return []
            failure = self._harvest()
        taken = self._take(max_items)
        if failure is not None and not taken:
            raise failure
        return taken

    def end(self) -> None:
        """Start no more polls, and wake a claim that waits."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def drain(self) -> Sequence[Delivery]:
        """Wait for the polls in flight; what they brought and nobody claimed.

        Cancelled, it gives the polls up: what one of them takes meanwhile stays hidden for a
        lease.
        """
        self.end()
        try:
            if self._running:
                await asyncio.wait(self._running)
        except asyncio.CancelledError:
            await self.abandon()
            raise
        self._harvest()
        return self._take(len(self._arrived))

    async def abandon(self) -> None:
        """Cancel the polls in flight."""
        self.end()
        for poll in self._running:
            poll.cancel()
        if self._running:
            await asyncio.wait(self._running)
        self._harvest()

    def newest(self, receipt: Receipt) -> Receipt:
        """The last receive of the same stored message: SQS may not heed the handles before it."""
        return self._newest.get(receipt.received.native_id, receipt)

    @property
    def is_idle(self) -> bool:
        """Whether nothing can arrive and nothing has."""
        return not self._running and not self._arrived

    def _poll_seconds(self, wait: float) -> int:
        # The lease is counted from before the request, since nobody knows when in the poll
        # the message was handed out: a poll must be short beside the lease.
        longest = min(self._settings.max_wait, self._lease // SHORTEST_LEASE)
        return min(math.ceil(max(wait, 0.0)), longest)

    def _start(self, max_items: int, seconds: int) -> None:
        if self._queue.is_fifo:
            # One message each: of several of one group, a failed first would be overtaken.
            wanted, size = min(self._width, max_items), 1
        else:
            wanted, size = 1, min(max_items, MAX_ENTRIES)
        for _ in range(wanted - len(self._running)):
            self._running.add(asyncio.create_task(self._poll(size, seconds)))

    async def _poll(self, size: int, seconds: int) -> list[Receipt]:
        arguments: dict[str, Any] = {
            "QueueUrl": self._queue.url,
            "MaxNumberOfMessages": size,
            "WaitTimeSeconds": seconds,
            "VisibilityTimeout": self._lease,
            "MessageAttributeNames": ["All"],
            "MessageSystemAttributeNames": SYSTEM_ATTRIBUTES,
        }
        if self._queue.is_fifo:
            # A lost answer is given again to the same attempt id (API reference, ReceiveMessage).
            attempt = self._attempt_ids.pop() if self._attempt_ids else uuid4().hex
            arguments["ReceiveRequestAttemptId"] = attempt
        asked_at = self._clock.now()
        try:
            answer = await self._api(
                "receive_message", self._queue.label, extra=seconds, **arguments
            )
        except ConnectionLostError:
            if self._queue.is_fifo:
                self._attempt_ids.append(arguments["ReceiveRequestAttemptId"])
            raise
        return [
            Receipt(
                message["ReceiptHandle"],
                read(message, unwrap_sns=self._settings.unwrap_sns),
                asked_at,
                asked_at + self._lease,
            )
            for message in answer.get("Messages") or ()
        ]

    def _harvest(self) -> BaseException | None:
        """Take over what ended polls brought; the first failure, if any."""
        failure: BaseException | None = None
        for poll in [poll for poll in self._running if poll.done()]:
            self._running.discard(poll)
            if poll.cancelled():
                continue
            failed = poll.exception()
            if failed is not None:
                failure = failure or failed
                self._width = 1
                continue
            arrived = poll.result()
            self._keep(arrived)
            # A FIFO queue with work is polled by as many as there are slots, an idle one by one.
            self._width = min(2 * self._width, 1000) if arrived else max(1, self._width // 2)
        return failure

    def _keep(self, arrived: Sequence[Receipt]) -> None:
        """Keep what nobody here holds; of a message that comes twice only the handle is news."""
        now = self._clock.now()
        for receipt in arrived:
            held = self._newest.get(receipt.received.native_id)
            if held is not None and held.state is State.HELD and held.until > now:
                held.handle = receipt.handle
            else:
                self._newest[receipt.received.native_id] = receipt
                self._arrived.append(receipt)

    def _take(self, max_items: int) -> list[Delivery]:
        taken: list[Delivery] = []
        now = self._clock.now()
        while self._arrived and len(taken) < max_items:
            receipt = self._arrived.popleft()
            if receipt.until <= now or receipt.state is not State.HELD:
                continue  # ended while it waited here: somebody else's by now, or done
            received = receipt.received
            taken.append(
                Delivery(
                    message=received.message,
                    queue=self._queue.label,
                    handle=receipt,
                    receives=received.receives,
                    lease_left=receipt.until - now,
                    defect=received.defect,
                    defect_reason="payload-offloaded" if received.is_offloaded else "decode",
                )
            )
        return taken

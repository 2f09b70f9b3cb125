"""The broker itself: queues of records under one lock, shared by drivers on any thread."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol
from weakref import WeakSet

from brokerwq.driver import QueueStats
from brokerwq_memory.errors import forked, no_queue
from brokerwq_memory.likeness import Likeness, likeness_of
from brokerwq_memory.shelf import Groups, Row, Shelf

_NOWHERE = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Record:
    """One stored message.

    Attributes:
        headers: Its envelope.
        body: Its body.
        sent_at: Clock reading of when it was sent.
        receives: How often this copy was handed out.
        ticket: Number of its latest lease or delay, the fence of a claim; 0 where it has
            neither.
        at: Clock reading at which that lease or delay ends.
        is_leased: Which of the two it is.
        group: Its ordering group, where the queue keeps groups in order.
        is_gone: It was acked, and exists no more.
    """

    headers: dict[str, str]
    body: bytes
    sent_at: float
    group: str = ""
    receives: int = 0
    ticket: int = _NOWHERE
    at: float = 0.0
    is_leased: bool = False
    is_gone: bool = False


@dataclass(slots=True, eq=False)
class Claim:
    """One receive of a record; the handle of a ``Delivery``.

    Attributes:
        record: The record.
        ticket: Its ticket at the time; another one now means that the lease is over.
        taken_at: Clock reading of the receive.
        until: Clock reading at which the lease ends, as far as its holder knows.
        is_settled: The holder settled it.
        is_acked: That was an ack.
    """

    record: Record
    ticket: int
    taken_at: float
    until: float
    is_settled: bool = False
    is_acked: bool = False

    @property
    def is_held(self) -> bool:
        """Whether the lease still runs."""
        return self.record.ticket == self.ticket


class Taker(Protocol):
    """A consumer, as its queue sees it."""

    @property
    def is_idle(self) -> bool:
        """Whether it takes nothing more and holds nothing."""
        ...


class Waiter:
    """A claim that waits for something to happen to its queue."""

    __slots__ = ("_event", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake it, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            return  # its loop has closed, so nobody waits

    def wake_here(self) -> None:
        """Wake it, from its own loop."""
        self._event.set()

    async def wait(self) -> None:
        """Return once it has been woken."""
        await self._event.wait()


@dataclass(slots=True, eq=False, kw_only=True)
class Queue:
    """The records of one queue. Call every method with the space's lock held.

    Attributes:
        name: Its name.
        shelf: What can be claimed.
        lease: Seconds of a claim that names none.
        dead_letter: Where its dead letters go; None until it was declared.
        retention: Seconds after which a message vanishes, or goes to ``heir``.
        heir: Where claimable messages go that are too old; the others do not age then.
        broker_limit: How often one copy is handed out at most.
        delayed: How many wait for a delay.
        leased: How many are held.
        waiters: Claims that wait for a message.
        takers: Consumers that may hold messages or wait for some.
        shown: Counts that were told, and when.
    """

    name: str
    shelf: Shelf = field(default_factory=Row)
    lease: float | None = None
    dead_letter: str | None = None
    retention: float = math.inf
    heir: Queue | None = None
    broker_limit: float = math.inf
    delayed: int = 0
    leased: int = 0
    waiters: set[Waiter] = field(default_factory=set[Waiter])
    takers: WeakSet[Taker] = field(default_factory=WeakSet["Taker"])
    shown: tuple[float, QueueStats] | None = None
    _oldest: float = math.inf
    _timers: list[tuple[float, int, Record]] = field(
        default_factory=list[tuple[float, int, Record]]
    )

    def advance(self, now: float) -> None:
        """Make ready whatever was due or leased until ``now``; forget what is too old."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            at, ticket, record = heappop(timers)
            if record.ticket != ticket:
                continue
            if record.at > at:
                heappush(timers, (record.at, ticket, record))
                continue
            self._leave_timer(record)
            self.shelf.add(record)
            self._oldest = min(self._oldest, record.sent_at)
        if now - self._oldest >= self.retention:
            self._expire(now)

    def _expire(self, now: float) -> None:
        until = now - self.retention
        expired = self.shelf.keep(lambda record: record.sent_at > until)
        waiting = () if self.heir else self._waiting()
        for record in waiting:
            if record.sent_at <= until:
                self.remove(record)
        left = (record.sent_at for record in (*self.shelf, *waiting) if not record.is_gone)
        self._oldest = min(left, default=math.inf)
        for record in expired:
            if self.heir:
                record.sent_at = now
                self.heir.put(record, now, 0.0, _NOWHERE)

    def _waiting(self) -> list[Record]:
        waiting = (record for _, ticket, record in self._timers if record.ticket == ticket)
        return [*dict.fromkeys(waiting)]

    @property
    def timers(self) -> int:
        """How many ends of leases and delays are kept, those of settled messages included."""
        return len(self._timers)

    def next_at(self) -> float | None:
        """When something may become ready by itself; early at worst, never late."""
        return self._timers[0][0] if self._timers else None

    def next_due(self, now: float) -> float | None:
        """Seconds until the first delay ends; None without one."""
        return min(
            (
                record.at - now
                for _, ticket, record in self._timers
                if record.ticket == ticket and not record.is_leased
            ),
            default=None,
        )

    def put(self, record: Record, now: float, delay: float, ticket: int) -> None:
        """Add ``record``, ready after ``delay`` seconds, and wake who waits."""
        self._oldest = min(self._oldest, record.sent_at)
        if delay > 0:
            self._set_timer(record, now + delay, ticket)
            self.delayed += 1
        else:
            self.shelf.add(record)
        self._wake()

    def _wake(self) -> None:
        while self.waiters:
            self.waiters.pop().wake()

    def lend(self, until: float, ticket: int) -> Record | None:
        """Lease the next ready record until the clock reads ``until``; None if there is none."""
        record = self.shelf.take()
        if record is None:
            return None
        record.receives += 1
        record.is_leased = True
        self.leased += 1
        self._set_timer(record, until, ticket)
        return record

    def prolong(self, record: Record, until: float) -> None:
        """Move the end of a lease."""
        is_sooner = until < record.at
        record.at = until
        if is_sooner:
            heappush(self._timers, (until, record.ticket, record))
            self._compact()

    def take_back(self, record: Record) -> None:
        """End the lease of a record that will be put again."""
        self._leave_timer(record)

    def remove(self, record: Record) -> None:
        """Delete a record, whatever its state."""
        record.is_gone = True
        if record.ticket == _NOWHERE:
            self.shelf.keep(lambda other: other is not record)
        else:
            self.take_out(record)

    def take_out(self, record: Record) -> None:
        """Remove a leased or delayed record, which may go elsewhere."""
        self._leave_timer(record)
        self.shelf.done(record)
        if len(self.shelf):
            self._wake()  # its group may have waited for it

    def clear(self) -> None:
        """Delete what is ready or delayed."""
        self.shelf.keep(lambda _: False)
        for record in self._waiting():
            if not record.is_leased:
                self.remove(record)
        self._compact()

    def _set_timer(self, record: Record, at: float, ticket: int) -> None:
        record.at = at
        record.ticket = ticket
        heappush(self._timers, (at, ticket, record))
        self._compact()

    def _leave_timer(self, record: Record) -> None:
        record.ticket = _NOWHERE
        if record.is_leased:
            record.is_leased = False
            self.leased -= 1
        else:
            self.delayed -= 1

    def _compact(self) -> None:
        # Settled records leave their timers behind; without this a queue with long leases
        # would keep every message of the last minute alive.
        if len(self._timers) <= 2 * (self.delayed + self.leased) + 64:
            return
        valid = {
            ticket: (record.at, ticket, record)
            for _, ticket, record in self._timers
            if record.ticket == ticket
        }
        self._timers = list(valid.values())
        heapify(self._timers)


class Space:
    """A broker in memory.

    Args:
        like: Whom it behaves like; None is itself.
        lag: Seconds for which counts stay as they were told last.
    """

    __slots__ = ("_lock", "_pid", "_tickets", "lag", "like", "queues")

    def __init__(self, like: Likeness | None = None, *, lag: float = 0.0) -> None:
        self.like: Likeness = likeness_of("") if like is None else like
        self.lag: float = lag
        self.queues: dict[str, Queue] = {}
        self._lock = threading.Lock()
        self._pid = 0
        self._tickets = 0

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the lock; nothing inside may wait.

        Raises:
            ClosedError: this process is a fork of the one that uses the space.
        """
        pid = os.getpid()
        if self._pid != pid:
            if self._pid:
                raise forked()
            self._pid = pid
        with self._lock:
            yield

    def queue(self, name: str) -> Queue:
        """The queue of that name.

        Raises:
            QueueNotFoundError: nobody declared it.
        """
        queue = self.queues.get(self.like.canonical(name))
        if queue is None:
            raise no_queue(name)
        return queue

    def made(self, name: str) -> Queue:
        """The queue of that name, made if it is not there."""
        name = self.like.canonical(name)
        queue = self.queues.get(name)
        if queue is None:
            shelf = Groups() if self.like.is_fifo(name) else Row()
            queue = self.queues[name] = Queue(name=name, shelf=shelf)
        return queue

    def move_to_dead(self, queue: Queue, record: Record, now: float) -> None:
        """Move a leased record of ``queue`` to its dead-letter queue, where it has one."""
        queue.take_out(record)
        target = self.queues.get(self.like.canonical(queue.dead_letter or ""))
        if target is not None:
            target.advance(now)
            record.receives = 0
            target.put(record, now, 0.0, self.ticket())

    def ticket(self) -> int:
        """A number that was never given out before."""
        self._tickets += 1
        return self._tickets

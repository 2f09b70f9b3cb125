"""The broker itself: queues of records under one lock, shared by drivers on any thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from brokerwq_memory.errors import forked, no_queue

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
    """

    headers: dict[str, str]
    body: bytes
    sent_at: float
    receives: int = 0
    ticket: int = _NOWHERE
    at: float = 0.0
    is_leased: bool = False


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
    """The records of one queue. Call every method with the space's lock held."""

    name: str
    lease: float | None = None
    dead_letter: str | None = None
    ready: deque[Record] = field(default_factory=deque[Record])
    delayed: int = 0
    leased: int = 0
    waiters: set[Waiter] = field(default_factory=set[Waiter])
    _timers: list[tuple[float, int, Record]] = field(
        default_factory=list[tuple[float, int, Record]]
    )

    def advance(self, now: float) -> None:
        """Make ready whatever was due or leased until ``now``."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            at, ticket, record = heappop(timers)
            if record.ticket != ticket:
                continue
            if record.at > at:
                heappush(timers, (record.at, ticket, record))
                continue
            self._leave_timer(record)
            self.ready.append(record)

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
        if delay > 0:
            self._set_timer(record, now + delay, ticket)
            self.delayed += 1
        else:
            self.ready.append(record)
        while self.waiters:
            self.waiters.pop().wake()

    def lend(self, until: float, ticket: int) -> Record:
        """Lease the first ready record until the clock reads ``until``."""
        record = self.ready.popleft()
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

    def take_out(self, record: Record) -> None:
        """Remove a leased record."""
        self._leave_timer(record)

    def clear(self) -> None:
        """Delete what is ready or delayed."""
        self.ready.clear()
        for _, ticket, record in self._timers:
            if record.ticket == ticket and not record.is_leased:
                self._leave_timer(record)
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
    """A broker in memory."""

    __slots__ = ("_lock", "_pid", "_tickets", "queues")

    def __init__(self) -> None:
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
        queue = self.queues.get(name)
        if queue is None:
            raise no_queue(name)
        return queue

    def ticket(self) -> int:
        """A number that was never given out before."""
        self._tickets += 1
        return self._tickets

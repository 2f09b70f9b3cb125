"""The flow of messages from one queue: started, revived, buffered, stopped."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from brokerwq.clock import Clock, move_on_after
from brokerwq.driver import Results
from brokerwq.errors import DriverError, TransientError
from brokerwq.message import Message
from brokerwq_rabbitmq.copies import Copier
from brokerwq_rabbitmq.errors import closed, is_stray_cancellation, to_driver_error
from brokerwq_rabbitmq.lane import Held, Lane
from brokerwq_rabbitmq.link import Link
from brokerwq_rabbitmq.settings import RabbitSettings, max_lease_of
from brokerwq_rabbitmq.topology import QueuePlan

_T = TypeVar("_T")

_PING_AFTER = 2.0
"""Seconds of silence after which an empty claim asks whether the broker is still there."""
_PING_SECONDS = 5.0
_UNWAITED_SECONDS = 0.2
"""How long a claim that does not wait gives to what the broker has to push."""
_UNDER_WAY_SECONDS = 2.0
"""How long a quiesce waits for settles that are under way before it cancels the consumer."""
_STARVED_SECONDS = 0.1
"""How long a claim goes without anything, all that may be held being held, until more may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is known of a queue that is consumed.

    Attributes:
        name: Its name.
        dead_letter: Its dead-letter queue.
        is_quorum: It is known to be a quorum queue, so that the broker counts its receives.
        has_levels: Its delay queues are there.
        plan: What it was found to be; None for what is taken as it comes.
        by_reject: Its owner's dead-letter exchange takes what is rejected.
    """

    name: str
    dead_letter: str
    is_quorum: bool
    has_levels: bool
    plan: QueuePlan | None = None
    by_reject: bool = False


class Intake:
    """See the module. A lane that ended is replaced by the next ``claim``.

    Args:
        source: The queue.
        link: The connection.
        copier: For what is not due, or must be counted.
        settings: Timeouts.
        clock: For waiting.
        prefetch: How many may be held at once.
        verify: Raises if the queue is not what it was; asked before a lane is replaced.
    """

    def __init__(
        self,
        source: Source,
        *,
        link: Link,
        copier: Copier,
        settings: RabbitSettings,
        clock: Clock,
        prefetch: int,
        verify: Callable[[Source], Awaitable[None]],
    ) -> None:
        self._source = source
        self._verify = verify
        self._link = link
        self._copier = copier
        self._settings = settings
        self._clock = clock
        self._prefetch = prefetch
        self._lane: Lane | None = None
        self._old_lanes: set[Lane] = set()
        self._buffer: deque[Held] = deque()
        self._stirred = asyncio.Event()
        self._failure: DriverError | None = None
        self._sets_timeout = True
        self._starved_since: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions: set[asyncio.Task[Any]] = set()
        self.consumer_timeout = settings.consumer_timeout
        self.is_quiesced = False
        self.is_closed = False
        self.tell_loss: Callable[[Collection[object]], object] = bool
        self.may_settle = asyncio.Event()
        self.may_settle.set()

    @property
    def max_lease(self) -> float:
        """How long a message may be held, by what is known of the broker's timeout."""
        return max_lease_of(self.consumer_timeout)

    async def start(self) -> None:
        """Open a channel and let messages flow.

        Raises:
            DriverError: the queue is missing, or the broker is.
        """
        try:
            await self._start()
        except DriverError as exc:
            if not self._sets_timeout or "x-consumer-timeout" not in str(exc.__cause__):
                raise
            # From 4.3 on a classic queue has no timeout, and refuses to be given one.
            self._sets_timeout = False
            await self._start()

    async def _start(self) -> None:
        channel, transport = await self._link.channel_on_wire()
        lane = Lane(
            channel,
            transport,
            self._clock,
            on_arrival=self._on_arrival,
            on_end=self._on_end,
            on_loss=self._on_loss,
        )
        sets_timeout = self._sets_timeout and self._link.has_consumer_timeout
        self._failure = None
        self._lane = lane
        try:
            await self._asked(
                lane.consume(
                    self._source.name,
                    self._prefetch,
                    consumer_timeout=self._settings.consumer_timeout if sets_timeout else None,
                    rpc_timeout=self._settings.rpc_timeout,
                )
            )
        except BaseException:
            self._lane = None
            await lane.aclose()
            raise

    async def claim(self, max_items: int, wait: float) -> list[Held]:
        """Take what is there, or wait for the first.

        Raises:
            DriverError: the flow has ended; the next call starts it again.
        """
        if self._lane is None and not self.is_quiesced and not self.is_closed:
            # The queue may have been made anew meanwhile, and not as it was.
            await self._verify(self._source)
            await self.start()
        deadline = self._clock.now() + wait
        while True:
            if self.is_closed:
                raise closed("consumer")
            taken = self._take(max_items)
            rest = deadline - self._clock.now()
            if taken or self.is_quiesced:
                return taken
            if self._failure is not None:
                raise self._failure
            if rest <= 0:
                break
            self._stirred.clear()  # before the next await, in which something may come
            if await self._is_starved(max_items):
                rest = min(rest, _STARVED_SECONDS)
            with move_on_after(self._clock, rest):
                await self._stirred.wait()
        lane = self._lane
        if lane is not None and wait <= 0:
            await self._asked(lane.take_what_is_due(_UNWAITED_SECONDS))
        if lane is not None and (wait <= 0 or self._link.silence >= _PING_AFTER):
            # A connection that only swallows looks like an idle queue until the heartbeat
            # gives out.
            await self.ping(lane)
        return self._take(max_items)

    async def _is_starved(self, wanted: int) -> bool:
        """Whether nothing can come because as much is held as may be; in time, more may.

        Not at once: acks that are on their way make room by themselves.
        """
        lane = self._lane
        if lane is None or len(lane.held) < lane.credit:
            self._starved_since = None
            return False
        now = self._clock.now()
        if self._starved_since is None:
            self._starved_since = now
        elif now - self._starved_since >= _STARVED_SECONDS:
            self._starved_since = None
            await self._asked(lane.grow(wanted, self._settings.rpc_timeout))
            return False
        return True

    @property
    def buffered(self) -> int:
        """How many messages have come and were not claimed."""
        return sum(held.is_ours for held in self._buffer)

    def _take(self, max_items: int) -> list[Held]:
        taken: list[Held] = []
        if self.is_quiesced:
            return taken
        while self._buffer and len(taken) < max_items:
            held = self._buffer.popleft()
            if held.is_ours:
                taken.append(held)
        return taken

    async def ping(self, lane: Lane) -> None:
        """Make sure that the broker still answers on ``lane``.

        Raises:
            DriverError: it does not; what the lane held is lost.
        """
        try:
            await self._asked(lane.ping(min(self._settings.rpc_timeout, _PING_SECONDS)))
        except DriverError as exc:
            if isinstance(exc.__cause__, TimeoutError):
                self._link.give_up()
            lane.is_alive = False
            self._on_loss(set(lane.held.values()))
            self._on_end(lane, exc)
            raise

    async def quiesce(self) -> list[Held]:
        """Stop the flow for good; what had come and was not claimed is the answer."""
        self.is_quiesced = True
        self._stirred.set()
        lane = self._lane
        if lane is not None:
            # Acks make room, and copies are new messages: either could be assigned to the
            # consumer in the very moment of its cancel; see ``Lane.cancel``.
            self.may_settle.clear()
            try:
                await self.finish_tasks(_UNDER_WAY_SECONDS)
                with suppress(DriverError):  # then it has stopped by itself
                    await self._asked(lane.cancel(self._settings.rpc_timeout))
            finally:
                self.may_settle.set()
        await self.finish_tasks()
        unclaimed = [held for held in self._buffer if held.is_ours]
        self._buffer.clear()
        return unclaimed

    async def finish_tasks(self, within: float | None = None) -> None:
        """Wait for what is being copied or returned just now."""
        while self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=within)
            if late:
                return

    async def aclose(self) -> None:
        """Close the channels; what is still held comes back."""
        self.is_closed = True
        self._stirred.set()
        await self.finish_tasks(self._settings.publish_timeout)
        lanes = [*self._old_lanes, *([] if self._lane is None else [self._lane])]
        self._old_lanes.clear()
        self._lane = None
        for lane in lanes:
            await lane.aclose()

    def retire(self) -> None:
        """Close the channels that only held messages and hold none any more."""
        for lane in [lane for lane in self._old_lanes if not lane.held or not lane.is_alive]:
            self._old_lanes.discard(lane)
            _ = self.spawn(lane.aclose())

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` to its end, whoever is cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a lost channel has told whoever must know

    def _on_arrival(self, held: Held) -> None:
        if held.read.due and self._rest_of(held) > 0:
            _ = self.spawn(self._wait_on(held))
        elif held.arrival.redelivered and not self._source.is_quorum:
            _ = self.spawn(self._recount(held))
        else:
            self._admit(held)

    def _admit(self, held: Held) -> None:
        self._buffer.append(held)
        self._stirred.set()

    def _rest_of(self, held: Held) -> float:
        return (held.read.due - self._copier.wall_clock_ms()) / 1000

    async def _wait_on(self, held: Held) -> None:
        """Send a message that is not due yet through one more delay queue."""
        rest = max(0.0, self._rest_of(held))
        message = held.read.message
        again = replace(
            message,
            attempts=message.attempts + held.read.count,
            suspect=message.suspect or held.read.count > 0,
        )
        if self._source.has_levels and await self._replaced(held, again, rest):
            return
        self._clock.call_at(self._clock.now() + rest, lambda: self._admit(held))

    async def _recount(self, held: Held) -> None:
        """Count a lost delivery where the broker does not: in a copy that says so."""
        message = held.read.message
        again = replace(message, attempts=message.attempts + 1, suspect=True)
        if not await self._replaced(held, again, 0.0):
            self._admit(held)

    async def _replaced(self, held: Held, message: Message, delay: float) -> bool:
        try:
            results: Results = await self._copier.send(self._source.name, [message], [delay])
        except DriverError:
            return False
        if results[0] is None and held.lane.is_alive:
            with suppress(ConnectionError):
                held.lane.ack([held])
        return results[0] is None

    def _on_loss(self, lost: Collection[Held]) -> None:
        self.tell_loss(lost)

    def _on_end(self, lane: Lane, exc: BaseException | None) -> None:
        if lane.learned_timeout is not None:
            self.consumer_timeout = min(self.consumer_timeout, lane.learned_timeout)
        if lane is not self._lane:
            return
        self._lane = None
        if lane.is_alive:
            self._old_lanes.add(lane)
            self.retire()
        name = self._source.name
        self._failure = (
            TransientError(f"RabbitMQ at {self._link.place} ended the consumer of {name}")
            if exc is None
            else self.error_of(exc)
        )
        self._stirred.set()

    async def _asked(self, question: Coroutine[Any, Any, _T]) -> _T:
        # Shielded: the client closes a channel when a question on it is cancelled.
        asking = asyncio.get_running_loop().create_task(question)
        self._questions.add(asking)
        asking.add_done_callback(self._on_asked)
        try:
            return await asyncio.shield(asking)
        except (Exception, asyncio.CancelledError) as exc:
            if isinstance(exc, asyncio.CancelledError) and not is_stray_cancellation(exc):
                raise
            raise self._error_of(exc) from exc

    def _on_asked(self, asking: asyncio.Task[Any]) -> None:
        self._questions.discard(asking)
        if not asking.cancelled():
            asking.exception()  # for a caller that was cancelled meanwhile

    def error_of(self, exc: BaseException) -> DriverError:
        """``exc`` as one of ours."""
        error = self._error_of(exc)
        if error is not exc:
            error.__cause__ = exc
        return error

    def _error_of(self, exc: BaseException) -> DriverError:
        name = self._source.name
        right = f"read from {name}"
        return to_driver_error(exc, queue=name, place=self._link.place, right=right)


def by_lane(items: Sequence[Held]) -> list[tuple[Lane, list[Held]]]:
    """``items`` by the channel that they came on."""
    lanes: dict[Lane, list[Held]] = {}
    for held in items:
        lanes.setdefault(held.lane, []).append(held)
    return list(lanes.items())

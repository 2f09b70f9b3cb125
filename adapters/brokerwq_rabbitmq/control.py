"""Questions about queues, and their making: one channel, renewed when the broker closes it.

Every "no" of the broker (missing, differs, not allowed) closes the channel that asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from aiormq import exceptions as amqp
from aiormq.channel import Channel

from brokerwq.errors import (
    DriverError,
    PermissionDeniedError,
    QueueMismatchError,
    QueueNotFoundError,
)
from brokerwq_rabbitmq.errors import is_stray_cancellation, to_driver_error
from brokerwq_rabbitmq.link import Link
from brokerwq_rabbitmq.topology import Inequivalence, QueuePlan, parse_inequivalence

_T = TypeVar("_T")
_MOST_DIFFERENCES = 20
_TYPE = "x-queue-type"


@dataclass(frozen=True, slots=True)
class Depth:
    """What a passive declaration tells: both numbers are exact at that moment.

    Attributes:
        ready: Messages that can be handed out.
        consumers: Consumers; of a quorum queue also whoever still holds a message of it.
    """

    ready: int
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How an existing queue differs from a plan.

    Attributes:
        found: Argument to what the queue has instead; empty where nothing differs.
        durable: Whether it survives a restart.
        is_complete: Whether all was compared; False without permission to configure.
    """

    found: dict[str, str | int | None]
    durable: bool = True
    is_complete: bool = True


class Control:
    """See the module."""

    def __init__(self, link: Link, rpc_timeout: float) -> None:
        self._link = link
        self._timeout = rpc_timeout
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()

    async def depth(self, queue: str) -> Depth:
        """Count.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        answer = await self._ask(
            queue,
            lambda channel: channel.queue_declare(queue, passive=True, timeout=self._timeout),
        )
        return Depth(answer.message_count or 0, answer.consumer_count or 0)

    async def exists(self, queue: str) -> bool:
        """Whether there is such a queue; True where we may not even ask."""
        try:
            await self.depth(queue)
        except QueueNotFoundError:
            return False
        except PermissionDeniedError:
            return True
        return True

    async def has_exchange(self, name: str) -> bool:
        """Whether there is such an exchange; True where we may not even ask."""
        try:
            await self._ask(
                name,
                lambda channel: channel.exchange_declare(name, passive=True, timeout=self._timeout),
            )
        except QueueNotFoundError:
            return False
        except PermissionDeniedError:
            return True
        return True

    async def create(self, plan: QueuePlan) -> None:
        """Make a queue, or do nothing if it is there and equal.

        Raises:
            PermissionDeniedError: we may not configure it.
        """
        await self._ask(plan.name, lambda channel: self._declare(channel, plan))

    def _declare(
        self, channel: Channel, plan: QueuePlan, *, durable: bool = True
    ) -> Awaitable[Any]:
        return channel.queue_declare(
            plan.name, durable=durable, arguments=dict(plan.arguments), timeout=self._timeout
        )

    async def compare(self, plan: QueuePlan) -> Comparison:
        """Compare a queue that exists with a plan.

        The broker names one difference and stops, so it is asked again with that one granted.
        """
        arguments = dict(plan.arguments)
        found: dict[str, str | int | None] = {}
        durable = True
        for _ in range(_MOST_DIFFERENCES):
            trial = QueuePlan(name=plan.name, arguments=arguments)
            try:
                difference = await self._difference(trial, durable=durable)
            except PermissionDeniedError:
                return Comparison(found=found, durable=durable, is_complete=False)
            if difference is None:
                return Comparison(found=found, durable=durable)
            if difference.name == "durable" and durable:
                durable = False
                continue
            if difference.name in found or not difference.name.startswith("x-"):
                found[difference.name] = difference.found
                return Comparison(found=found, durable=durable, is_complete=False)
            found[difference.name] = difference.found
            if difference.found is None:
                arguments.pop(difference.name, None)
            else:
                arguments[difference.name] = difference.found
        return Comparison(found=found, durable=durable, is_complete=False)

    async def is_stream(self, queue: str) -> bool:
        """Whether a queue that exists is a stream, as far as we may ask."""
        try:
            comparison = await self.compare(QueuePlan(name=queue, arguments={_TYPE: "stream"}))
        except QueueMismatchError:
            return False  # it differs in a way that nobody could read
        return comparison.is_complete and _TYPE not in comparison.found

    async def _difference(self, plan: QueuePlan, *, durable: bool) -> Inequivalence | None:
        try:
            await self._ask(
                plan.name, lambda channel: self._declare(channel, plan, durable=durable)
            )
        except DriverError as exc:
            if isinstance(exc.__cause__, amqp.ChannelPreconditionFailed):
                difference = parse_inequivalence(str(exc.__cause__), plan.arguments)
                if difference is not None:
                    return difference
            raise
        return None

    async def purge(self, queue: str) -> None:
        """Drop what is ready.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        await self._ask(queue, lambda channel: channel.queue_purge(queue, timeout=self._timeout))

    async def _ask(self, queue: str, question: Callable[[Channel], Awaitable[_T]]) -> _T:
        async with self._lock:
            channel = self._channel
            if channel is None or channel.is_closed:
                channel = self._channel = await self._link.channel()
            try:
                return await question(channel)
            except (Exception, asyncio.CancelledError) as exc:
                self._channel = None
                if isinstance(exc, asyncio.CancelledError) and not is_stray_cancellation(exc):
                    raise
                if isinstance(exc, TimeoutError):
                    self._link.give_up()
                place, right = self._link.place, f"configure {queue}, and as a rule to read it"
                raise to_driver_error(exc, queue=queue, place=place, right=right) from exc

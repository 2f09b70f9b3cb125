"""Publishing with confirms, many in flight, each with its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from aiormq.channel import Channel
from pamqp import commands

from brokerwq.errors import DriverError, StorageFullError, TransientError
from brokerwq_rabbitmq import wire
from brokerwq_rabbitmq.errors import to_driver_error, too_large_limit
from brokerwq_rabbitmq.link import Link
from brokerwq_rabbitmq.settings import RabbitSettings
from brokerwq_rabbitmq.table import Properties, to_text

RIGHT: Final = "write to amq.default"
"""What a user must be allowed to publish."""


@dataclass(slots=True)
class Outgoing:
    """What to publish, through the default exchange."""

    queue: str
    properties: Properties
    body: bytes


class _Encoded(commands.Basic.Properties):
    """Properties that are bytes already; the client still needs to see the message id."""

    __slots__: ClassVar[list[str]] = ["_encoded", "message_id"]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, encoded: bytes, message_id: str) -> None:
        super().__init__()
        self._encoded = encoded
        self.message_id = message_id

    def marshal(self) -> bytes:
        return self._encoded


class Publisher:
    """One channel in confirm mode, on a connection of its own.

    Its own, because the broker stops reading from connections that publish while it is short
    of memory or disk, and consuming must go on.
    """

    def __init__(self, link: Link, settings: RabbitSettings) -> None:
        self._link = link
        self._settings = settings
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self.max_body: float = settings.max_message_bytes

    async def publish(self, items: Sequence[Outgoing], within: float) -> list[DriverError | None]:
        """Publish and wait for the broker's word on each.

        Raises:
            DriverError: nothing was sent.
        """
        channel = await self._ready_channel(within)
        tasks = [self._start(channel, item) for item in items]
        waiting = {task for task in tasks if isinstance(task, asyncio.Task)}
        if waiting:
            try:
                _, late = await asyncio.wait(waiting, timeout=within)
            except asyncio.CancelledError:
                for task in waiting:
                    task.cancel()
                raise
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
                self._on_silence()
        return [
            self._answer(task, item) if isinstance(task, asyncio.Task) else task
            for task, item in zip(tasks, items, strict=True)
        ]

    async def _ready_channel(self, within: float) -> Channel:
        async with self._opening:
            channel = self._channel
            if channel is None or channel.is_closed:
                channel = self._channel = await self._link.channel(confirms=True)
        # Nothing is sent while it is blocked, so that a repeated call cannot make copies.
        if not await self._link.wait_until_unblocked(within):
            msg = f"RabbitMQ at {self._link.place} is short of memory or disk, and takes nothing"
            raise StorageFullError(msg)
        return channel

    def _start(self, channel: Channel, item: Outgoing) -> asyncio.Task[None] | DriverError:
        encoded = item.properties.encode()
        error = wire.size_error(
            encoded, item.body, max_body=self.max_body, max_frame=self._link.max_frame
        )
        if error is not None:
            return error
        message_id = to_text(item.properties.values["message_id"])
        return asyncio.get_running_loop().create_task(
            self._publish(channel, item, _Encoded(encoded, message_id), message_id)
        )

    async def _publish(
        self, channel: Channel, item: Outgoing, properties: _Encoded, message_id: str
    ) -> None:
        # A returned message is known by its id alone: with two of one id in flight the client
        # would take one's return for the other's.
        mine = asyncio.current_task()
        while (other := self._in_flight.get(message_id)) is not None:
            await asyncio.wait([other])
        if mine is not None:
            self._in_flight[message_id] = mine
        try:
            await channel.basic_publish(
                item.body, routing_key=item.queue, properties=properties, mandatory=True, wait=False
            )
        finally:
            del self._in_flight[message_id]

    def _on_silence(self) -> None:
        # Blocked connections confirm later; on others silence means that nobody is there.
        if not self._link.is_blocked:
            self._channel = None
            self._link.give_up()

    def _answer(self, task: asyncio.Task[None], item: Outgoing) -> DriverError | None:
        if task.cancelled():
            return TransientError(
                f"RabbitMQ at {self._link.place} did not confirm a message for {item.queue}; "
                "it may have been stored"
            )
        exc = task.exception()
        if exc is None:
            return None
        limit = too_large_limit(exc)
        if limit is not None:
            self.max_body = min(self.max_body, limit)
            if len(item.body) <= limit:
                # The channel was closed for another message's sake.
                return TransientError("the channel was closed for another message; send again")
        error = to_driver_error(exc, queue=item.queue, place=self._link.place, right=RIGHT)
        error.__cause__ = exc
        return error

"""Publishing with confirms, a batch at once, each message with its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiormq.channel import Channel

from brokerwq.errors import DriverError, QueueNotFoundError, StorageFullError, TransientError
from brokerwq_rabbitmq import wire
from brokerwq_rabbitmq.confirms import Batch, Confirms, Said
from brokerwq_rabbitmq.errors import to_driver_error, too_large_limit
from brokerwq_rabbitmq.link import Link
from brokerwq_rabbitmq.settings import RabbitSettings
from brokerwq_rabbitmq.transport import Outgoing, Transport

RIGHT: Final = "write to amq.default"
"""What a user must be allowed to publish."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A channel in confirm mode, and what is said on it."""

    channel: Channel
    transport: Transport
    confirms: Confirms


class Publisher:
    """One channel in confirm mode, on a connection of its own.

    Its own, because the broker stops reading from connections that publish while it is short
    of memory or disk, and consuming must go on.
    """

    def __init__(self, link: Link, settings: RabbitSettings) -> None:
        self._link = link
        self._settings = settings
        self._line: _Line | None = None
        self._opening = asyncio.Lock()
        self.max_body: float = settings.max_message_bytes

    async def publish(self, items: Sequence[Outgoing], within: float) -> list[DriverError | None]:
        """Publish and wait for the broker's word on each.

        Raises:
            DriverError: nothing was sent.
        """
        line = await self._ready_line(within)
        answers: list[DriverError | None] = [self._refusal(item) for item in items]
        left = [place for place, refusal in enumerate(answers) if refusal is None]
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + within
        while left:
            now, left = _apart(line.confirms, items, left)
            if now:
                batch = self._write(line, [items[place] for place in now])
            else:
                batch = line.confirms.under_way(items[left[0]].id) or Batch(0)
            await asyncio.wait([batch.done], timeout=max(0.0, give_up_at - loop.time()))
            for place, said in zip(now, batch.said, strict=False):
                answers[place] = self._answer(items[place], said, batch.failure)
            if not batch.done.done():
                for place in left:
                    answers[place] = self._answer(items[place], Said.NOTHING, None)
                self._on_silence(line)
                break
        return answers

    async def _ready_line(self, within: float) -> _Line:
        async with self._opening:
            line = self._line
            if line is None or line.confirms.has_ended:
                line = self._line = await self._open_line()
        # Nothing is sent while it is blocked, so that a repeated call cannot make copies.
        if not await self._link.wait_until_unblocked(within):
            msg = f"RabbitMQ at {self._link.place} is short of memory or disk, and takes nothing"
            raise StorageFullError(msg)
        return line

    async def _open_line(self) -> _Line:
        channel, transport = await self._link.channel_on_wire(confirms=True)
        confirms, reader = Confirms(), transport.reader
        if reader is not None:
            reader.publishers[channel.number] = confirms

        def on_closed(closing: asyncio.Future[object]) -> None:
            failure = None if closing.cancelled() else closing.exception()
            confirms.fail(failure or ConnectionResetError("closed"))
            if reader is not None:
                reader.publishers.pop(channel.number, None)

        channel.closing.add_done_callback(on_closed)  # pyright: ignore[reportUnknownMemberType]
        return _Line(channel, transport, confirms)

    def _refusal(self, item: Outgoing) -> DriverError | None:
        return wire.size_error(
            item.properties, item.body, max_body=self.max_body, max_frame=self._link.max_frame
        )

    def _write(self, line: _Line, items: Sequence[Outgoing]) -> Batch:
        batch = line.confirms.expect([item.id for item in items])
        if not batch.done.done():
            try:
                line.transport.publish(line.channel.number, items, self._link.max_frame)
            except ConnectionError as exc:
                line.confirms.fail(exc)
        return batch

    def _on_silence(self, line: _Line) -> None:
        # Blocked connections confirm later; on others silence means that nobody is there.
        if not self._link.is_blocked and line is self._line:
            self._line = None
            self._link.give_up()

    def _answer(
        self, item: Outgoing, said: Said, failure: BaseException | None
    ) -> DriverError | None:
        place = self._link.place
        if said is Said.STORED:
            return None
        if said is Said.RETURNED:
            return QueueNotFoundError(f"queue {item.queue} does not exist at {place}")
        if said is Said.REFUSED:
            return StorageFullError(f"queue {item.queue} at {place} takes no more messages")
        if failure is not None:
            return self._failed(item, failure)
        return TransientError(
            f"RabbitMQ at {place} did not confirm a message for {item.queue}; "
            "it may have been stored"
        )

    def _failed(self, item: Outgoing, failure: BaseException) -> DriverError:
        limit = too_large_limit(failure)
        if limit is not None:
            self.max_body = min(self.max_body, limit)
            if len(item.body) <= limit:
                # The channel was closed for another message's sake.
                return TransientError("the channel was closed for another message; send again")
        error = to_driver_error(failure, queue=item.queue, place=self._link.place, right=RIGHT)
        error.__cause__ = failure
        return error


def _apart(
    confirms: Confirms, items: Sequence[Outgoing], places: Sequence[int]
) -> tuple[list[int], list[int]]:
    """What can be written at once, and what comes after that.

    A returned message is known by its id alone, so that no two of one id are under way.
    """
    now: dict[str, int] = {}
    later: list[int] = []
    for place in places:
        id_ = items[place].id
        if id_ in now or confirms.under_way(id_) is not None:
            later.append(place)
        else:
            now[id_] = place
    return list(now.values()), later

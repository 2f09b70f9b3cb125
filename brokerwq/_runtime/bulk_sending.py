"""Sending many messages: lazily made, in chunks, a few chunks under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from brokerwq.errors import BrokerwqError, DriverError
from brokerwq.message import Message
from brokerwq.reports import FAILURES_KEPT, FailedSend, SendReport

_CHUNK_MESSAGES = 500
_CHUNK_BYTES = 4 * 1024 * 1024
_UNDER_WAY = 3


class _Broker(Protocol):
    async def send_batch(
        self, queue: str, outgoing: Sequence[tuple[Message, float]], /
    ) -> Sequence[DriverError | None]: ...


async def send_in_chunks(
    broker: _Broker,
    queue: str,
    outgoing: AsyncIterator[tuple[Message, float]] | Iterator[tuple[Message, float]],
) -> SendReport:
    """Send all of ``outgoing``; memory holds a few chunks of it at a time."""
    sender = _Sender(broker, queue)
    try:
        if isinstance(outgoing, AsyncIterator):
            async for chunk in _chunks_async(outgoing):
                await sender.begin(chunk)
        else:
            for chunk in _chunks(outgoing):
                await sender.begin(chunk)
    except asyncio.CancelledError:
        sender.cancel()
        raise
    finally:
        # Also when the caller's iterable raised: what has been handed over is not dropped.
        await sender.end()
    return sender.report()


class _Sender:
    """Sends chunks, a few under way at once."""

    def __init__(self, broker: _Broker, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self._tally = _Tally()
        self._under_way: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._start = 0

    async def begin(self, chunk: list[tuple[Message, float]]) -> None:
        while len(self._under_way) >= _UNDER_WAY:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        if self._error is not None:
            raise self._error
        task = asyncio.get_running_loop().create_task(self._send(self._start, chunk))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        self._start += len(chunk)
        await asyncio.sleep(0)  # noqa: TID251  -- lets the chunk go before the next is made

    def cancel(self) -> None:
        for task in self._under_way:
            task.cancel()

    async def end(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way)

    def report(self) -> SendReport:
        if self._error is not None:
            raise self._error
        return self._tally.report()

    async def _send(self, start: int, chunk: list[tuple[Message, float]]) -> None:
        self._tally.add(start, chunk, await self._broker.send_batch(self._queue, chunk))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error


class _Tally:
    def __init__(self) -> None:
        self._sent = 0
        self._failed_count = 0
        self._failed: list[FailedSend] = []

    def add(
        self,
        start: int,
        chunk: Sequence[tuple[Message, float]],
        answers: Sequence[BrokerwqError | None],
    ) -> None:
        for n, error in enumerate(answers):
            if error is None:
                self._sent += 1
                continue
            self._failed_count += 1
            if len(self._failed) < FAILURES_KEPT:
                self._failed.append(FailedSend(index=start + n, id=chunk[n][0].id, error=error))

    def report(self) -> SendReport:
        failed = sorted(self._failed, key=lambda each: each.index)
        return SendReport(sent=self._sent, failed_count=self._failed_count, failed=tuple(failed))


class _Chunk:
    """Collects messages until there are enough."""

    def __init__(self) -> None:
        self.messages: list[tuple[Message, float]] = []
        self._bytes = 0

    def add(self, each: tuple[Message, float]) -> bool:
        """Take one in; whether that was enough."""
        self.messages.append(each)
        self._bytes += len(each[0].body)
        return len(self.messages) >= _CHUNK_MESSAGES or self._bytes >= _CHUNK_BYTES


def _chunks(
    outgoing: Iterator[tuple[Message, float]],
) -> Iterator[list[tuple[Message, float]]]:
    chunk = _Chunk()
    for each in outgoing:
        if chunk.add(each):
            yield chunk.messages
            chunk = _Chunk()
    if chunk.messages:
        yield chunk.messages


async def _chunks_async(
    outgoing: AsyncIterator[tuple[Message, float]],
) -> AsyncIterator[list[tuple[Message, float]]]:
    chunk = _Chunk()
    async for each in outgoing:
        if chunk.add(each):
            yield chunk.messages
            chunk = _Chunk()
    if chunk.messages:
        yield chunk.messages

"""Sending many messages: lazily made, in chunks, a few chunks under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from brokerwq.errors import BrokerwqError, DriverError
from brokerwq.message import Outgoing
from brokerwq.reports import FAILURES_KEPT, FailedSend, SendReport

_CHUNK_MESSAGES = 500
_CHUNK_BYTES = 4 * 1024 * 1024
_UNDER_WAY = 3


class _Broker(Protocol):
    async def send_batch(
        self, queue: str, outgoing: Sequence[Outgoing], /
    ) -> Sequence[DriverError | None]: ...


async def send_in_chunks(
    broker: _Broker,
    queue: str,
    outgoing: AsyncIterator[Outgoing] | Iterator[Outgoing],
) -> SendReport:
    """Send all of ``outgoing``; memory holds a few chunks of it at a time."""
    sender = _Sender(broker, queue)
    try:
        if isinstance(outgoing, AsyncIterator):
            async for chunk in _chunks_async(outgoing):
                await sender.begin(chunk)
        else:
            for chunk in chunks(outgoing):
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
        self._answers = _Answers()
        self._under_way: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._start = 0

    async def begin(self, chunk: list[Outgoing]) -> None:
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
        return self._answers.report()

    async def _send(self, start: int, chunk: list[Outgoing]) -> None:
        self._answers.add(start, chunk, await self._broker.send_batch(self._queue, chunk))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error


class _Answers:
    def __init__(self) -> None:
        self._sent = 0
        self._failed_count = 0
        self._failed: list[FailedSend] = []

    def add(
        self,
        start: int,
        chunk: Sequence[Outgoing],
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

    def __init__(self, most: int) -> None:
        self.messages: list[Outgoing] = []
        self._most = most
        self._bytes = 0

    def add(self, each: Outgoing) -> bool:
        """Take one in; whether that was enough."""
        self.messages.append(each)
        self._bytes += len(each[0].body)
        return len(self.messages) >= self._most or self._bytes >= _CHUNK_BYTES


def chunks(outgoing: Iterator[Outgoing], most: int = _CHUNK_MESSAGES) -> Iterator[list[Outgoing]]:
    """``outgoing`` in lists of up to ``most``, and of bounded size."""
    chunk = _Chunk(most)
    for each in outgoing:
        if chunk.add(each):
            yield chunk.messages
            chunk = _Chunk(most)
    if chunk.messages:
        yield chunk.messages


async def _chunks_async(outgoing: AsyncIterator[Outgoing]) -> AsyncIterator[list[Outgoing]]:
    chunk = _Chunk(_CHUNK_MESSAGES)
    async for each in outgoing:
        if chunk.add(each):
            yield chunk.messages
            chunk = _Chunk(_CHUNK_MESSAGES)
    if chunk.messages:
        yield chunk.messages

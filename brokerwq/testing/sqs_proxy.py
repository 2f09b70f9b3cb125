"""A proxy before an SQS server: counts requests by operation, and fails as a network does."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from brokerwq.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

Mood: TypeAlias = Literal["pass", "refuse", "close", "hang", "503"]
"""Forward; refuse connections; accept and close; accept and never answer; answer 503."""

_TARGET: Final = re.compile(rb"x-amz-target: ?AmazonSQS\.(\w+)\r", re.IGNORECASE)
_LONGEST_MATCH: Final = 80
_ACCEPT_SECONDS: Final = 0.05
_UNAVAILABLE: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n"
    b"Connection: close\r\n\r\nbusy"
)


class SqsProxy:
    """A running proxy; made by ``sqs_proxy``. Safe to use from any thread and loop.

    Attributes:
        endpoint: Its address, to be used in place of the server's.
        requests: How often each operation was called since the start or ``requests.clear()``.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "", parts.port or 80)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="sqs-proxy", daemon=True
        )
        self._server: asyncio.Server | None = None
        self._port = 0
        self._mood: Mood = "pass"
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: Counter[str] = Counter()
        self.endpoint = ""

    def be(self, mood: Mood) -> None:
        """From now on do ``mood``; connections that are open are cut unless it is ``pass``."""
        asyncio.run_coroutine_threadsafe(self._be(mood), self._loop).result(10)

    def cut(self) -> None:
        """Cut every connection once; new ones are served."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    @asynccontextmanager
    async def outage(self, mood: Mood = "refuse") -> AsyncGenerator[None]:
        """A block in which the server cannot be reached."""
        self.be(mood)
        try:
            yield
        finally:
            self.be("pass")

    def start(self) -> None:
        """Listen on a free port of this machine."""
        self._thread.start()
        self.be("pass")
        self.endpoint = f"http://127.0.0.1:{self._port}"

    def stop(self) -> None:
        """Close everything."""
        self.be("refuse")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _be(self, mood: Mood) -> None:
        self._mood = mood
        if mood == "refuse" and self._server is not None:
            # asyncio leaves a connection hanging that it accepts while the server closes: first
            # the mood turns them away, then the door is shut.
            await SYSTEM_CLOCK.sleep(_ACCEPT_SECONDS)
            self._server.close()
            self._server = None
        elif mood != "refuse" and self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]
        if mood != "pass":
            await self._cut()

    async def _cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._forward(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mood in ("close", "refuse"):
            return
        if self._mood == "503":
            await reader.read(65536)
            writer.write(_UNAVAILABLE)
            await writer.drain()
            return
        if self._mood == "hang":
            while await reader.read(65536):
                pass
            return
        upstream_reader, upstream = await asyncio.open_connection(*self._target)
        try:
            async with asyncio.TaskGroup() as group:
                down = group.create_task(_pump(upstream_reader, writer))
                up = group.create_task(self._count(reader, upstream))
                await asyncio.wait({down, up}, return_when=asyncio.FIRST_COMPLETED)
                down.cancel()
                up.cancel()
        finally:
            upstream.transport.abort()

    async def _count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tail = b""
        while data := await reader.read(65536):
            seen = tail + data
            end = 0
            for found in _TARGET.finditer(seen):
                self.requests[found.group(1).decode()] += 1
                end = found.end()
            tail = seen[max(end, len(seen) - _LONGEST_MATCH) :]
            writer.write(data)
            await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@contextlib.contextmanager
def sqs_proxy(target: str) -> Generator[SqsProxy]:
    """A proxy before the server at ``target``, for as long as the block runs."""
    proxy = SqsProxy(target)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()

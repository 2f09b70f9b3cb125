"""A TCP proxy on a thread of its own, to do to a connection what networks do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

_T = TypeVar("_T")
_CALL_SECONDS = 10.0


class TcpProxy:
    """Forwards a local port to another, until told otherwise.

    Works for clients on any event loop. Use it as a context manager.

    Args:
        host: Where to.
        port: Which port there.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._pipes: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._accepts = True
        self._loses_answers = False
        self.host = "127.0.0.1"
        self.port = 0

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        self._call(self._listen(0))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cut everything and stop listening."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_SECONDS)
        self._loop.close()

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        self._call(self._cut())

    def swallow(self) -> None:
        """Keep connections open, new ones too, and pass on nothing in either direction."""
        self._call(self._set_flow(flows=False))

    def flow(self) -> None:
        """Pass on again, also what was held back."""
        self._call(self._set_flow(flows=True))

    def hang_up(self) -> None:
        """Reset every connection, and accept new ones only to close them at once."""
        self._accepts = False
        self.cut()

    def answer(self) -> None:
        """Undo ``hang_up``."""
        self._accepts = True

    def lose_answers(self) -> None:
        """Pass on what clients send; cut a connection when an answer comes, and lose that."""
        self._loses_answers = True

    def deliver_answers(self) -> None:
        """Undo ``lose_answers``."""
        self._loses_answers = False

    def refuse(self) -> None:
        """Reset every connection and listen no more."""
        self._call(self._stop_listening())
        self.cut()

    def listen(self) -> None:
        """Undo ``refuse``, on the same port."""
        self._call(self._listen(self.port))

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    async def _listen(self, port: int) -> None:
        self._flows.set()
        self._server = await asyncio.start_server(self._accept, self.host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _set_flow(self, *, flows: bool) -> None:
        if flows:
            self._flows.set()
        else:
            self._flows.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._accepts:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, sink, is_answer in ((reader, back, False), (there, writer, True)):
            task = self._loop.create_task(self._pipe(source, sink, is_answer=is_answer))
            self._pipes.add(task)
            task.add_done_callback(self._pipes.discard)

    async def _pipe(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if is_answer and self._loses_answers:
                    break
                await self._flows.wait()
                sink.write(data)
                await sink.drain()
        self._writers.discard(sink)
        sink.transport.abort()

    async def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _close(self) -> None:
        await self._stop_listening()
        await self._cut()
        for task in list(self._pipes):
            task.cancel()
        if self._pipes:
            await asyncio.wait(self._pipes)

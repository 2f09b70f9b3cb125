"""Two loops: handlers run on the caller's, broker I/O on a thread of its own.

A handler that blocks its loop then cannot keep heartbeats from being sent, nor the alarm for
a lost lease from being noticed (measured and decided in ``docs/adr/0002``).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Bridge(Protocol):
    """The way from the handlers' loop to the loop that does broker I/O, and back."""

    def call(
        self, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any
    ) -> asyncio.Future[T]:
        """Run ``function(*args)`` on the I/O loop; the future lives on the caller's."""
        ...

    def notify(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Call ``callback(*args)`` on the handlers' loop; for use on the I/O loop."""
        ...

    async def aclose(self, patience: float) -> None:
        """End the I/O loop, and leave it to itself if that takes longer than ``patience``."""
        ...


class InlineBridge:
    """One loop for both. For the fake clock, where there must be one order of events."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def call(
        self, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any
    ) -> asyncio.Future[T]:
        """See ``Bridge.call``."""
        task = asyncio.get_running_loop().create_task(function(*args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def notify(self, callback: Callable[..., object], /, *args: Any) -> None:
        """See ``Bridge.notify``."""
        asyncio.get_running_loop().call_soon(callback, *args)

    async def aclose(self, patience: float) -> None:
        """See ``Bridge.aclose``."""


class ThreadBridge:
    """A second loop on a daemon thread."""

    def __init__(self) -> None:
        self._home = asyncio.get_running_loop()
        self._io = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="brokerwq-io", daemon=True)
        self._thread.start()

    def call(
        self, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any
    ) -> asyncio.Future[T]:
        """See ``Bridge.call``. Cancelling the future cancels the call."""
        call = _Call(self._home, self._io)
        # In a context of its own: broker I/O does not belong to the job that caused it.
        self._io.call_soon_threadsafe(call.start, function, args, context=Context())
        return call.answer

    def notify(self, callback: Callable[..., object], /, *args: Any) -> None:
        """See ``Bridge.notify``."""
        with contextlib.suppress(RuntimeError):  # the handlers' loop has been closed
            self._home.call_soon_threadsafe(callback, *args)

    async def aclose(self, patience: float) -> None:
        """See ``Bridge.aclose``."""
        with contextlib.suppress(RuntimeError):
            self._io.call_soon_threadsafe(self._io.stop)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, patience)

    def _run(self) -> None:
        asyncio.set_event_loop(self._io)
        try:
            self._io.run_forever()
        finally:
            leftovers = asyncio.all_tasks(self._io)
            for task in leftovers:
                task.cancel()
            self._io.run_until_complete(asyncio.gather(*leftovers, return_exceptions=True))
            self._io.run_until_complete(self._io.shutdown_asyncgens())
            self._io.close()


class _Call:
    """One call across the bridge.

    Half the price of ``run_coroutine_threadsafe`` with ``wrap_future``: no lock, no
    condition variable, no second future.
    """

    __slots__ = ("_home", "_io", "_task", "answer")

    def __init__(self, home: asyncio.AbstractEventLoop, io: asyncio.AbstractEventLoop) -> None:
        self._home = home
        self._io = io
        self._task: asyncio.Task[Any] | None = None
        self.answer: asyncio.Future[Any] = home.create_future()
        self.answer.add_done_callback(self._answered)

    def start(self, function: Callable[..., Coroutine[Any, Any, Any]], args: Any) -> None:
        self._task = self._io.create_task(function(*args))
        self._task.add_done_callback(self._done)
        if self.answer.cancelled():
            self._task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the handlers' loop has been closed
            self._home.call_soon_threadsafe(self._finish, task)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        answer = self.answer
        if answer.done():
            if not task.cancelled():
                task.exception()  # marks it as seen
        elif task.cancelled():
            answer.cancel()
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            with contextlib.suppress(RuntimeError):
                self._io.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

"""A loop on a thread, for callers that have none."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from brokerwq.errors import ClosedError, ConfigError

T = TypeVar("T")

_CLOSE_SECONDS: Final = 3.0
"""A program's end waits no longer for brokers to be left in good order."""


class Background:
    """The background loop of an app, once there is something to run on it."""

    def __init__(self) -> None:
        # Not a Lock: a signal handler or a finalizer that sends may strike while it is held.
        self._starting = threading.RLock()
        self._loop: BackgroundLoop | None = None

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """See ``BackgroundLoop.run``."""
        with self._starting:
            begun = self._loop or BackgroundLoop()
            loop = self._loop = self._loop or begun
        return loop.run(call)


class BackgroundLoop:
    """One event loop on a daemon thread, started when it is made.

    What is closed at a loop's end is closed at the interpreter's. The loop goes on: functions
    that a program has registered for its end may still send.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="brokerwq-background", daemon=True
        )
        self._is_ending = False
        self._thread.start()
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._in_fork)

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``call()`` there and wait for its answer.

        Raises:
            ConfigError: called on an event loop, which would stand still meanwhile.
            ClosedError: called by a destructor at the interpreter's very end.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            msg = "this is an event loop: await the method without _sync instead"
            raise ConfigError(msg)
        if sys.is_finalizing():  # no other thread runs any more, so that nobody would answer
            msg = "the interpreter ends, too late to send: do it in a function of atexit"
            raise ClosedError(msg)
        return self._answer(call())

    def _answer(self, called: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(called, self._loop).result()
        finally:
            if self._is_ending:
                self._close_all()

    def _in_fork(self) -> None:
        # What the parent has open is not this process's to close, nor to be complained of.
        self._loop.set_exception_handler(_say_nothing)

    def _at_exit(self) -> None:
        if self._thread.is_alive():  # else it is the parent's, and this is a fork
            self._is_ending = True
            self._close_all()

    def _close_all(self) -> None:
        closing = asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop)
        with suppress(Exception):
            closing.result(_CLOSE_SECONDS)


def _say_nothing(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    pass

"""A loop on a thread, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from brokerwq.errors import ConfigError

T = TypeVar("T")


class BackgroundLoop:
    """One event loop on a daemon thread, started when it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="brokerwq-background", daemon=True
        )
        self._thread.start()

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``call()`` there and wait for its answer.

        Raises:
            ConfigError: called on an event loop, which would stand still meanwhile.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(call(), self._loop).result()
        msg = "this is an event loop: await the method without _sync instead"
        raise ConfigError(msg)

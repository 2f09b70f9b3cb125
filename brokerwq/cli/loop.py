"""Runs the async part of a verb, and turns a signal into a clean cancellation."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from brokerwq.cli.failure import TerminatedError

T = TypeVar("T")


def run_async(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``work`` to its end; SIGINT and SIGTERM cancel it, so that it can tidy up.

    Raises:
        KeyboardInterrupt, TerminatedError: it was cancelled so.
    """
    terminated = False

    async def supervised() -> T:
        nonlocal terminated
        task = asyncio.current_task()

        def stop() -> None:
            nonlocal terminated
            terminated = True
            if task is not None:
                task.cancel()

        # Not everywhere, and not in threads; there SIGTERM ends the process as always.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        return await work()

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        if terminated:
            raise TerminatedError from None
        raise

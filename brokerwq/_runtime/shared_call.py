"""One call for all who want it made at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class SharedCall:
    """Makes a call for the first who wants it; who comes meanwhile gets the same answer.

    One after the other, a thousand senders would wait a thousand times: for a broker that
    cannot be reached, for a queue that is being made.

    It ends early only when nobody waits for it any more.

    Args:
        call: Makes it.
    """

    def __init__(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._call = call
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0

    async def wait(self) -> None:
        """Join the call that is under way, or begin one; whatever it raises, this raises."""
        while (task := self._task) and task.cancelling() and not task.done():
            await asyncio.wait([task])
        if task is None or task.done():
            task = self._task = asyncio.get_running_loop().create_task(self._call())
            self._waiting = 0
        self._waiting += 1
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._waiting == 1 and self._task is task and not task.done():
                task.cancel()
                await asyncio.wait([task])
            raise
        finally:
            if self._task is task:
                self._waiting -= 1

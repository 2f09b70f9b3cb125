"""Group commit without a timer.

What arrives during a call rides the next one, so a lone item is sent at once and a busy
stream makes its own batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Batcher(Generic[Item]):
    """Hands items to ``call`` in lists, several calls at a time.

    Args:
        call: Deals with one list. It reports to the items itself and must not raise.
        max_items: Most items in one list.
        max_calls: Most calls under way at once.
    """

    def __init__(
        self,
        call: Callable[[list[Item]], Awaitable[None]],
        *,
        max_items: int,
        max_calls: int,
    ) -> None:
        self._call = call
        self._max_items = max_items
        self._max_calls = max_calls
        self._items: deque[Item] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._running = 0
        self._starting = False
        self._starter: asyncio.Task[None] | None = None
        self._closing = False

    def put(self, item: Item) -> None:
        """Take ``item`` along with the next call."""
        self._items.append(item)
        if not self._starting and self._running < self._max_calls:
            self._start_call()

    @property
    def is_idle(self) -> bool:
        """Nothing waits and no call is under way."""
        return not self._items and not self._running

    async def aclose(self) -> None:
        """Cancel the calls under way."""
        self._closing = True
        calls = list(self._calls)
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _drain(self) -> None:
        self._starting = False
        self._starter = None
        try:
            while self._items:
                items = self._items
                batch = [items.popleft() for _ in range(min(len(items), self._max_items))]
                if items and not self._starting and self._running < self._max_calls:
                    self._start_call()
                await self._call_whole(batch)
        finally:
            # No await since the emptiness test: a later put starts its own drain.
            self._running -= 1

    async def _call_whole(self, batch: list[Item]) -> None:
        try:
            await self._call(batch)
        except asyncio.CancelledError:
            if not self._closing:
                # A handler has cancelled what is not its own. Somebody waits for each of
                # these items, so they are called once more; drivers bear a repetition.
                self._items.extendleft(reversed(batch))
                if not self._starting:
                    self._start_call()
            raise

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if task is self._starter:  # it was cancelled before it could begin
            self._starter = None
            self._starting = False
            self._running -= 1
            if self._items and not self._closing:
                self._start_call()

    def _start_call(self) -> None:
        # The new task starts at the loop's next turn: all that is put in this one rides.
        self._starting = True
        self._running += 1
        # In a context of its own: a call for many must not run in the trace of the first.
        task = asyncio.get_running_loop().create_task(self._drain(), context=Context())
        self._starter = task
        self._calls.add(task)
        task.add_done_callback(self._ended)

"""The brokers of one runner: it begins with the first that is there, the others join when they are.

As a rule there is one. While a team moves from one broker to another there are two, and trouble
with one must not keep the other's messages from being run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from brokerwq._runtime.connection import Connection
from brokerwq.driver.capabilities import UncountedReturn
from brokerwq.driver.protocol import QueueSpec


class Fleet:
    """The connections of one runner.

    Args:
        connections: One for each broker.
        specs: The queues that are declared or checked at each of them.
    """

    def __init__(self, connections: Sequence[Connection], specs: Sequence[QueueSpec]) -> None:
        self._connections = connections
        self._specs = specs
        self._starts: dict[asyncio.Task[bool], Connection] = {}

    @property
    def returns_uncounted(self) -> bool:
        """Whether every broker takes back what was not started without counting it."""
        return not any(
            connection.driver.capabilities.uncounted_return is UncountedReturn.COUNTED
            for connection in self._connections
        )

    async def start(self) -> bool:
        """Connect to all; return once the first is there. False if told to stop before.

        Raises:
            QueueMismatchError: queues exist with other properties.
            DriverError: a broker refused for good.
        """
        if len(self._connections) == 1:
            return await self._connections[0].start(self._specs)
        self._starts = {
            asyncio.ensure_future(connection.start(self._specs)): connection
            for connection in self._connections
        }
        done, _ = await asyncio.wait(self._starts, return_when=asyncio.FIRST_COMPLETED)
        answers = [task.result() for task in done]
        return all(answers)

    async def open(
        self,
        open_lanes: Callable[[Connection], Awaitable[None]],
        supervise: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Open the lanes of each broker that is there, and of the others when they are.

        Args:
            open_lanes: Opens those of one broker.
            supervise: Runs a task whose failure ends the runner.
        """
        if not self._starts:
            await open_lanes(self._connections[0])
            return
        late = {task: each for task, each in self._starts.items() if not task.done()}
        for connection in late.values():
            connection.note_absence()
        for task, connection in self._starts.items():
            if task not in late and task.result():
                await open_lanes(connection)
        for task, connection in late.items():
            supervise(self._join(task, connection, open_lanes))

    async def aclose(self, patience: float) -> None:
        """Close all drivers; one that does not answer is left after ``patience`` seconds."""
        for task in self._starts:
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        await asyncio.gather(*(connection.aclose(patience) for connection in self._connections))

    async def _join(
        self,
        start: asyncio.Task[bool],
        connection: Connection,
        open_lanes: Callable[[Connection], Awaitable[None]],
    ) -> None:
        if await start:
            await open_lanes(connection)

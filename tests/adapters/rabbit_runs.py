"""Runners at work on RabbitMQ: in this process, and as the command that people start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from brokerwq import App, Runner
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import QueueSpec
from brokerwq.reports import RunReport
from tests.adapters.rabbit import PATIENCE, opened
from tests.cases.site import Site


async def until(condition: Callable[[], object], within: float = PATIENCE) -> float:
    """Wait for ``condition()``; how long that took in seconds."""
    started = SYSTEM_CLOCK.now()
    while not condition():
        assert SYSTEM_CLOCK.now() - started < within, "it never came to be"
        await asyncio.sleep(0.02)
    return SYSTEM_CLOCK.now() - started


@dataclass
class Running:
    """A runner at work in this process."""

    runner: Runner
    task: asyncio.Task[RunReport]

    async def stop(self) -> RunReport:
        if not self.task.done():
            self.runner.stop()
        return await asyncio.wait_for(self.task, PATIENCE)


@asynccontextmanager
async def running(app: App, *queues: str, **options: Any) -> AsyncGenerator[Running]:
    """A runner that is ready, unless its start fails; stopped at the end of the block."""
    runner = Runner(app, *queues, **options)
    task = asyncio.create_task(runner.run(handle_signals=False))
    run = Running(runner, task)
    try:
        await until(lambda: task.done() or runner.state != "starting" or runner.reasons)
        yield run
        if not task.done():
            await run.stop()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def counts(url: str, queue: str) -> tuple[int, int, int]:
    """Ready, delayed, dead."""
    async with opened(url) as driver:
        stats = await driver.inspect(queue)
        return stats.ready.value, stats.delayed.value, stats.dead.value


async def is_free(url: str, queue: str) -> bool:
    """Whether nobody holds anything of a queue that brokerwq declared."""
    async with opened(url) as driver:
        await driver.declare(QueueSpec(name=queue), check_only=True)
        leased = (await driver.inspect(queue)).leased
        return leased.value == 0 and leased.certainty.value == "exact"


@dataclass
class Lines(logging.Handler):
    """What is logged above DEBUG, by whomever, with its time."""

    at: list[float] = field(default_factory=list[float])
    texts: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        super().__init__(logging.INFO)

    def __hash__(self) -> int:
        return id(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.at.append(SYSTEM_CLOCK.now())
        self.texts.append(f"{record.name}: {record.getMessage()}")

    def busiest(self, seconds: float = 5.0) -> float:
        """Lines a second, in the ``seconds`` that had most of them."""
        counts = (sum(at <= other < at + seconds for other in self.at) for at in self.at)
        return max(counts, default=0) / seconds

    def __enter__(self) -> Self:
        root = logging.getLogger()
        self._level = root.level
        root.setLevel(min(self._level, logging.INFO))
        root.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger()
        root.removeHandler(self)
        root.setLevel(self._level)


@dataclass
class RabbitSite(Site):
    """A ``Site`` whose queue is at RabbitMQ, under a name of its own."""

    broker: str = ""
    queue: str = ""

    @property
    def url(self) -> str:
        return self.broker

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "SITE_QUEUE": self.queue}

    async def fill(self, *messages: Mapping[str, Any]) -> None:
        await self.send(self.queue, *messages)

    async def left(self) -> tuple[int, int, int]:
        """Ready, delayed, dead."""
        return await counts(self.broker, self.queue)

"""A broker, an app on it, a runner, and what a test wants to know of them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from brokerwq import App, Message, QueueSpec, QueueStats, Runner, RunReport
from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver import Driver, dead_letter_name
from brokerwq.events import Event
from brokerwq.testing import FakeClock
from brokerwq.testing.faults import Faults, FaultyDriver

T = TypeVar("T")
E = TypeVar("E", bound=Event)

ROOT = Path(__file__).parents[2]
"""Where ``tests`` can be imported from."""

PATIENCE = 20.0
"""Seconds of the machine's time for which a test waits for what must happen."""


class Events(list[Event]):
    """A listener that keeps what it is told."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in list(self) if isinstance(event, kind)]


@dataclass
class Place:
    """Where a test runs: a broker's URL, and a clock that is fake where that is possible."""

    url: str
    clock: Clock = SYSTEM_CLOCK
    thread_patience: float = 0.0
    """Real seconds to wait before a fake clock moves on, for tests with plain functions."""
    events: Events = field(default_factory=Events)
    apps: list[App] = field(default_factory=list[App])

    def app(self, **keywords: Any) -> App:
        """A new app on the broker; apps of one place share its messages."""
        app = App(self.url, clock=self.clock, telemetry=self.events, **keywords)
        self.apps.append(app)
        return app

    def faulty_app(self, faults: Faults, **keywords: Any) -> FaultyApp:
        app = FaultyApp(self.url, faults, clock=self.clock, telemetry=self.events, **keywords)
        self.apps += [app, app.well]
        return app

    async def aclose(self) -> None:
        for app in self.apps:
            await app.aclose()

    async def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end; a fake clock is moved on whenever everything waits."""
        if isinstance(self.clock, FakeClock):
            return await asyncio.wait_for(
                self.clock.drive(work, threshold=self.thread_patience), PATIENCE
            )
        return await asyncio.wait_for(work, PATIENCE)

    async def drain(
        self, app: App, *queues: str, include_delayed: bool = False, **options: Any
    ) -> RunReport:
        runner = Runner(app, *queues, log=False, **options)
        return await self.drive(runner.drain(include_delayed=include_delayed, handle_signals=False))

    async def until(self, condition: Callable[[], object], *, step: float = 0.05) -> None:
        """Let time pass until ``condition()``; with a fake clock ``step`` seconds at a time."""
        give_up_at = SYSTEM_CLOCK.now() + PATIENCE
        while not condition():
            assert SYSTEM_CLOCK.now() < give_up_at, "it never came to be"
            if isinstance(self.clock, FakeClock):
                await self.clock.advance_and_settle(step)
            await asyncio.sleep(0.001 if isinstance(self.clock, FakeClock) else 0.01)

    async def passes(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        if isinstance(self.clock, FakeClock):
            await self.clock.advance_and_settle(seconds)
        else:
            await asyncio.sleep(seconds)

    @asynccontextmanager
    async def running(
        self, app: App, *queues: str, runner: Runner | None = None, **options: Any
    ) -> AsyncGenerator[Running]:
        """A runner at work, for as long as the block lasts."""
        runner = runner or Runner(app, *queues, log=False, **options)
        task = asyncio.create_task(runner.run(handle_signals=False))
        running = Running(self, runner, task)
        try:
            await self.until(lambda: task.done() or runner.state != "starting", step=0.0)
            yield running
            await running.stop()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


@dataclass
class Running:
    """A runner at work."""

    place: Place
    runner: Runner
    task: asyncio.Task[RunReport]

    async def stop(self, *, code: int = 0) -> RunReport:
        """Stop it; what it reports, or raises."""
        if not self.task.done():
            self.runner.stop(code)
            await self.ended()
        return self.task.result()

    async def ended(self) -> None:
        """Wait for it to end by itself."""
        await self.place.until(self.task.done, step=0.25)


class FaultyApp(App):
    """An app whose runner's calls to the broker go wrong as ``faults`` says.

    What the test itself sends and looks at goes well.
    """

    def __init__(self, url: str, faults: Faults, **keywords: Any) -> None:
        super().__init__(url, **keywords)
        self.faults = faults
        self.well = App(url, clock=self.clock)

    def build_driver(self) -> Driver:
        return FaultyDriver(super().build_driver(), self.faults)


class Gauge:
    """How many are inside at once, and how many were at most."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now = 0
        self.most = 0

    async def hold(self, seconds: float) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self._clock.sleep(seconds)
        finally:
            self.now -= 1


def memory(clock: Clock | None = None) -> Place:
    return Place(f"memory://{uuid.uuid4().hex}", FakeClock() if clock is None else clock)


def sqlite(folder: Path, *, options: str = "") -> Place:
    return Place(f"sqlite:///{folder / 'queue.db'}{options}")


async def stats(app: App, queue: str) -> QueueStats:
    return await app.broker().inspect(queue)


async def counts(app: App, queue: str) -> tuple[int, int, int, int]:
    """Ready, leased, delayed, dead."""
    found = await stats(app, queue)
    return found.ready.value, found.leased.value, found.delayed.value, found.dead.value


async def dead_letters(app: App, queue: str) -> list[Message]:
    """What is in the dead-letter queue of ``queue``; looked at once, and held then."""
    driver = await app.broker().driver()
    consumer = await driver.consume(dead_letter_name(queue), lease=600.0, prefetch=100)
    found: list[Message] = []
    while claimed := await consumer.claim(100, 0.0):
        found += [delivery.message for delivery in claimed]
    return found


async def reasons(app: App, queue: str) -> list[str]:
    """Why the dead letters of ``queue`` are dead, sorted."""
    letters = await dead_letters(app, queue)
    return sorted(letter.dead.reason for letter in letters if letter.dead is not None)


async def declare(app: App, queue: str, **properties: Any) -> None:
    await app.broker().declare(QueueSpec(name=queue, **properties))


async def send(app: App, queue: str, type_: str, **fields: Any) -> str:
    """Send as a producer in another language might."""
    body = json.dumps(fields).encode()
    return await app.broker().send(queue, body, type=type_, content_type="application/json")


async def send_raw(app: App, queue: str, *messages: Message, delay: float = 0.0) -> None:
    """Store messages as they are, past every check."""
    driver = await app.broker().driver()
    results = await driver.send(queue, messages, [delay] * len(messages))
    assert results == [None] * len(messages)

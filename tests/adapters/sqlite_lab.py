"""A database file under test, and programs that work on it in other processes."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from brokerwq_sqlite import adapter

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver import Consumer, Delivery, Driver, QueueSpec
from brokerwq.message import Message

QUEUE = "q"
NEW_DRIVER = """
import asyncio, os, sys, time
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import QueueSpec
from brokerwq.message import Message
from brokerwq_sqlite import adapter

async def opened(url):
    driver = adapter.build(adapter.parse_url(url), SYSTEM_CLOCK)
    await driver.open()
    return driver
"""


@dataclass(frozen=True)
class Lab:
    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.path))}"

    def build(self, options: str = "", clock: Clock = SYSTEM_CLOCK) -> Driver:
        return adapter.build(adapter.parse_url(self.url + options), clock)

    @asynccontextmanager
    async def driver(
        self, options: str = "", clock: Clock = SYSTEM_CLOCK
    ) -> AsyncGenerator[Driver]:
        driver = self.build(options, clock)
        await driver.open()
        try:
            yield driver
        finally:
            await driver.aclose()

    @asynccontextmanager
    async def consumer(
        self, *, lease: float = 30.0, clock: Clock = SYSTEM_CLOCK
    ) -> AsyncGenerator[tuple[Driver, Consumer]]:
        async with self.driver(clock=clock) as driver:
            await driver.declare(QueueSpec(name=QUEUE))
            yield driver, await driver.consume(QUEUE, lease=lease, prefetch=1)

    def sql(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
            return connection.execute(statement, parameters).fetchall()

    def is_sound(self) -> bool:
        return self.sql("PRAGMA integrity_check") == [("ok",)]

    def start(
        self, program: str, *arguments: str, stdin: int | None = None
    ) -> subprocess.Popen[str]:
        """Run ``program`` in another process; its ``argv`` is the URL and ``arguments``."""
        code = NEW_DRIVER + textwrap.dedent(program)
        return subprocess.Popen(
            [sys.executable, "-c", code, self.url, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, *arguments: str) -> str:
        with self.start(program, *arguments) as process:
            output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return output


def messages(*identifiers: str) -> list[Message]:
    return [Message(id=identifier, body=identifier.encode()) for identifier in identifiers]


async def send(driver: Driver, *identifiers: str, delay: float = 0.0) -> None:
    results = await driver.send(QUEUE, messages(*identifiers), [delay] * len(identifiers))
    assert list(results) == [None] * len(identifiers)


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.id for delivery in deliveries]


def is_parked(driver: Driver) -> bool:
    """Whether a claim of ``driver`` waits for a message."""
    engine = getattr(driver, "_engine")  # noqa: B009  -- nothing else can tell
    return bool(engine.has_parked)


async def until_parked(driver: Driver) -> None:
    """Return once a claim of ``driver`` waits for a message."""
    while not is_parked(driver):
        await asyncio.sleep(0.001)

"""A broker that a test fills past the command, and what the command answers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from brokerwq import connect
from brokerwq.driver import Driver, QueueSpec
from brokerwq.driver.doctor import DeadLetterMaker
from brokerwq.message import Message

QUEUE = "orders"
DEAD = "orders-dead"


@dataclass(frozen=True)
class Answer:
    """What one call of the command gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli(Protocol):
    def __call__(self, *arguments: str) -> Answer: ...


class Stock:
    """A broker of one test, to be filled and looked into past the command."""

    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"

    def _with_driver(self, work: Callable[[Driver], Any]) -> Any:
        async def run() -> Any:
            async with connect(self.url) as broker:
                return await work(await broker.driver())

        return anyio.run(run)

    def declare(self, queue: str = QUEUE) -> None:
        self._with_driver(lambda driver: driver.declare(QueueSpec(name=queue)))

    def make_bare(self, queue: str) -> None:
        """Make ``queue`` without a dead-letter queue, as others do."""
        spec = QueueSpec(name=f"{queue}-of-others", dead_letter=queue)

        async def make(driver: Driver) -> None:
            assert isinstance(driver, DeadLetterMaker)
            await driver.declare_dead_letter(spec)

        self._with_driver(make)

    def send(self, queue: str, *messages: Message) -> None:
        self._with_driver(lambda driver: driver.send(queue, messages, [0.0] * len(messages)))

    def queues(self) -> list[str]:
        names: list[str] = self._with_driver(lambda driver: driver.queues())
        return names

    def take(self, queue: str) -> list[Message]:
        """Claim and ack everything that is ready."""

        async def take(driver: Driver) -> list[Message]:
            consumer = await driver.consume(queue, lease=60, prefetch=100)
            claimed = await consumer.claim(1000, 0)
            await consumer.ack(claimed)
            return [delivery.message for delivery in claimed]

        messages: list[Message] = self._with_driver(take)
        return messages

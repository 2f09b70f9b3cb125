"""Two brokers, a ledger, and what a test does with them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from brokerwq import connect
from brokerwq.driver import Consumer, Delivery, Driver, QueueSpec
from brokerwq.message import Message, new_message_id
from brokerwq.migrate import Migration, MoveReport

QUEUE = "orders"
DEAD = "orders-dead"


def made(n: int, **fields: Any) -> Message:
    """A message that a producer sent."""
    values: dict[str, Any] = {
        "id": new_message_id(),
        "body": f"body {n}".encode(),
        "type": "work",
        "content_type": "text/plain",
        "headers": {"n": str(n)},
        "created_at": datetime.now(UTC),
        **fields,
    }
    return Message(**values)


@dataclass
class Lab:
    """A source in memory, a target in a SQLite file, unless a test wants others."""

    folder: Path
    source: str = field(default_factory=lambda: f"memory://{uuid.uuid4().hex}")
    target: str = ""
    ledger: str = ""

    def __post_init__(self) -> None:
        self.target = self.target or f"sqlite:///{self.folder}/target.db"
        self.ledger = self.ledger or f"sqlite:///{self.folder}/ledger.db"

    def turned(self) -> Lab:
        return replace(self, source=self.target, target=self.source)

    async def declare(self, *urls: str) -> None:
        for url in urls or (self.source,):
            async with opened(url) as driver:
                assert not await driver.declare(QueueSpec(name=QUEUE))

    async def send(
        self, messages: Sequence[Message], *, delay: float = 0, queue: str = QUEUE, url: str = ""
    ) -> None:
        async with opened(url or self.source) as driver:
            size = driver.capabilities.max_send
            for start in range(0, len(messages), size):
                chunk = messages[start : start + size]
                answers = await driver.send(queue, chunk, [delay] * len(chunk))
                assert not any(answers)

    @asynccontextmanager
    async def migration(self, **options: Any) -> AsyncGenerator[Migration]:
        options = {"queues": {QUEUE: QUEUE}, "ledger": self.ledger, **options}
        async with Migration(self.source, self.target, **options) as migration:
            yield migration

    async def run(self, **options: Any) -> MoveReport:
        options.setdefault("settle", 0.0)
        async with self.migration() as migration:
            return await migration.run(**options)

    async def take(self, url: str, queue: str = QUEUE) -> list[Delivery]:
        """Claim everything that is ready; it stays claimed until the lease ends."""
        async with opened(url) as driver:
            consumer = await driver.consume(queue, lease=60, prefetch=1000)
            return await everything(consumer)

    async def counts(self, url: str, queue: str = QUEUE) -> tuple[int, int, int]:
        """Ready, leased, delayed."""
        async with opened(url) as driver:
            stats = await driver.inspect(queue)
            return stats.ready.value, stats.leased.value, stats.delayed.value


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Driver]:
    async with connect(url) as broker:
        yield await broker.driver()


async def everything(consumer: Consumer) -> list[Delivery]:
    found: list[Delivery] = []
    while claimed := await consumer.claim(100, 0):
        found += claimed
    return found

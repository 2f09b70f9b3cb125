"""One LocalStack for all tests of the SQS adapter, and drivers on it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver import Delivery, QueueSpec
from brokerwq.message import Message, new_message_id
from brokerwq.testing.servers.kinds import Service
from brokerwq.testing.servers.localstack import SqsServer
from brokerwq.testing.sqs_faults import SqsFaults
from brokerwq.testing.sqs_strict import StrictSqs
from tests.adapters.sqs.beside import pytest_configure, pytest_pyfunc_call
from tests.required import needs

__all__ = ["pytest_configure", "pytest_pyfunc_call"]  # hooks, which pytest finds here

needs("aiobotocore", "sqs")

from brokerwq_sqs.client import SdkClients  # noqa: E402  -- after the skip
from brokerwq_sqs.consumer import SqsConsumer  # noqa: E402
from brokerwq_sqs.driver import SqsDriver  # noqa: E402
from brokerwq_sqs.settings import SqsSettings  # noqa: E402


@pytest.fixture(scope="session")
def server(bwq_sqs_server: Service) -> Generator[SqsServer]:
    running = SqsServer(endpoint=bwq_sqs_server.address)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


class Lab:
    """A prefix of its own on the server, drivers for it, and the words tests are written in."""

    def __init__(self, server: SqsServer, stack: AsyncExitStack) -> None:
        self.server = server
        self._stack = stack
        self.prefix = f"t{secrets.token_hex(4)}"
        self.strict = StrictSqs(SdkClients(SqsSettings()))
        self.faults = SqsFaults(self.strict.clients)

    def settings(self, *, max_wait: int = 1, **options: Any) -> SqsSettings:
        return SqsSettings(
            region=self.server.region,
            prefix=self.prefix,
            endpoint_url=self.server.endpoint,
            clients=self.faults.clients,
            max_wait=max_wait,
            **options,
        )

    async def driver(self, clock: Clock = SYSTEM_CLOCK, **options: Any) -> SqsDriver:
        driver = SqsDriver(self.settings(**options), clock)
        await driver.open()
        self._stack.push_async_callback(driver.aclose)
        return driver

    async def queue(self, driver: SqsDriver, name: str = "q", **spec: Any) -> str:
        assert await driver.declare(QueueSpec(name=name, **spec)) == []
        return name

    async def consumer(self, driver: SqsDriver, queue: str = "q", lease: float = 60) -> SqsConsumer:
        consumer = await driver.consume(queue, lease=lease, prefetch=10)
        assert isinstance(consumer, SqsConsumer)
        return consumer

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Any]:
        """The SDK's own client, to look and act behind the adapter's back."""
        settings = self.settings()
        async with SdkClients(settings)(settings, "control") as client:
            yield client

    async def url(self, client: Any, queue: str) -> str:
        answer = await client.get_queue_url(QueueName=f"{self.prefix}-{queue}")
        return str(answer["QueueUrl"])

    async def send(self, driver: SqsDriver, *bodies: bytes, queue: str = "q") -> list[Message]:
        messages = [Message(id=new_message_id(), body=body, type="t") for body in bodies]
        assert await driver.send(queue, messages, [0.0] * len(messages)) == [None] * len(messages)
        return messages

    async def claim(self, consumer: SqsConsumer, count: int, tries: int = 8) -> list[Delivery]:
        found: list[Delivery] = []
        for _ in range(tries):
            found += await consumer.claim(count - len(found), 1)
            if len(found) == count:
                return found
        msg = f"{count} messages must come, but only {len(found)} did"
        raise AssertionError(msg)

    async def holding(
        self, *bodies: bytes, lease: float = 60, clock: Clock = SYSTEM_CLOCK
    ) -> tuple[SqsConsumer, list[Delivery]]:
        """A consumer of a new queue, and what it holds of it: messages with these bodies."""
        driver = await self.driver(clock)
        await self.queue(driver)
        await self.send(driver, *bodies)
        consumer = await self.consumer(driver, lease=lease)
        return consumer, await self.claim(consumer, len(bodies))


@pytest.fixture
async def lab(server: SqsServer) -> AsyncGenerator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(server, stack)

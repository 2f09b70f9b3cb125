"""RabbitMQ servers and drivers for tests."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

import aiormq
import pytest
from aiormq.abc import AbstractChannel, DeliveredMessage
from brokerwq_rabbitmq.driver import RabbitDriver
from brokerwq_rabbitmq.settings import parse_url
from pamqp.commands import Basic

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import Consumer, Delivery, QueueSpec
from brokerwq.errors import DriverError
from brokerwq.message import Message, new_message_id
from brokerwq.testing.servers.node import RabbitNode
from brokerwq.testing.servers.proxy import TcpProxy
from brokerwq.testing.servers.rabbitmq import (
    RabbitServer,
    Release,
    native_node,
    shared_rabbitmq,
)
from tests.required import or_skipped

T = TypeVar("T")
NAMES: dict[Release, str] = {"3.10": "rabbitmq", "4.0": "rabbitmq-4.0", "4.3": "rabbitmq-4"}
"""What BROKERWQ_REQUIRE calls them."""
_USUAL = "3.10,4.0,4.3" if os.environ.get("CAMPAIGN") == "full" else "3.10"
RELEASES: tuple[Release, ...] = tuple(
    release
    for release in NAMES
    if release in os.environ.get("BROKERWQ_TEST_RABBITMQ", _USUAL).split(",")
)
"""Those that are tested: 3.10, and all in a full campaign, unless BROKERWQ_TEST_RABBITMQ lists
others."""
PATIENCE = 15.0


def server_or_skip(release: Release) -> RabbitServer:
    if release not in RELEASES:
        pytest.skip(f"RabbitMQ {release} is tested where BROKERWQ_TEST_RABBITMQ lists it")
    with or_skipped(NAMES[release]):
        return shared_rabbitmq(release)


def node_or_skip(release: Release, *, config: str = "") -> RabbitNode:
    """A node of the test's own, not started yet; close it."""
    with or_skipped(NAMES[release]):
        return native_node(release, config=config)


def place_of(server: RabbitServer) -> tuple[str, int]:
    host, _, port = server.url.rpartition("@")[2].rstrip("/").partition(":")
    return host, int(port)


def url_through(proxy: TcpProxy, server: RabbitServer) -> str:
    credentials = server.url.partition("://")[2].rpartition("@")[0]
    return f"amqp://{credentials}@{proxy.host}:{proxy.port}/"


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[RabbitDriver]:
    query = "&".join(f"{name}={quote(str(value))}" for name, value in options.items())
    driver = RabbitDriver(parse_url(f"{url}?{query}" if query else url), SYSTEM_CLOCK)
    await driver.open()
    try:
        yield driver
    finally:
        await driver.aclose()


async def claim(consumer: Consumer, count: int = 1, within: float = PATIENCE) -> list[Delivery]:
    """Claim until there are ``count``."""
    found: list[Delivery] = []
    give_up_at = SYSTEM_CLOCK.now() + within
    while len(found) < count:
        left = give_up_at - SYSTEM_CLOCK.now()
        assert left > 0, f"{count} messages must come, but only {len(found)} did"
        found.extend(await consumer.claim(count - len(found), left))
    return found


async def eventually(question: Callable[[], Awaitable[T]], wanted: T) -> None:
    """Ask until the answer is ``wanted``."""
    give_up_at = SYSTEM_CLOCK.now() + PATIENCE
    while (answer := await question()) != wanted:
        assert SYSTEM_CLOCK.now() < give_up_at, f"{answer!r} never became {wanted!r}"
        await asyncio.sleep(0.05)


async def until_it_works(call: Callable[[], Awaitable[T]], within: float = PATIENCE) -> T:
    """Call again as long as the error is one that may go away."""
    give_up_at = SYSTEM_CLOCK.now() + within
    while True:
        try:
            return await call()
        except DriverError as exc:
            if not exc.retryable or SYSTEM_CLOCK.now() >= give_up_at:
                raise
        await asyncio.sleep(0.1)


def some(count: int, **fields: Any) -> list[Message]:
    return [
        Message(id=new_message_id(), body=str(nth).encode(), type="test", **fields)
        for nth in range(count)
    ]


@dataclass
class Lab:
    """One server, and what a test makes on it."""

    server: RabbitServer
    _names: itertools.count[int] = field(default_factory=itertools.count)
    _token: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def url(self) -> str:
        return self.server.url

    def name(self) -> str:
        # Never a name twice: channels remember the type of a queue beyond its deletion.
        return f"test-{self._token}-{next(self._names)}"

    def spec(self, **fields: Any) -> QueueSpec:
        return QueueSpec(name=self.name(), **fields)

    @asynccontextmanager
    async def channel(self) -> AsyncGenerator[AbstractChannel]:
        """A plain client's channel, for what others do to our queues."""
        connection = await aiormq.connect(self.url)
        try:
            yield await connection.channel(on_return_raises=True)
        finally:
            await connection.close()

    async def publish(self, queue: str, body: bytes, properties: Basic.Properties) -> None:
        async with self.channel() as channel:
            await channel.basic_publish(
                body, routing_key=queue, properties=properties, mandatory=True
            )

    async def get(self, queue: str) -> DeliveredMessage:
        """Take one message with a plain client, as soon as there is one."""
        give_up_at = SYSTEM_CLOCK.now() + PATIENCE
        async with self.channel() as channel:
            while SYSTEM_CLOCK.now() < give_up_at:
                message = await channel.basic_get(queue, no_ack=True)
                if isinstance(message.delivery, Basic.GetOk):
                    return message
                await asyncio.sleep(0.05)
        pytest.fail(f"nothing came to {queue}")

    async def ready(self, queue: str) -> int:
        async with self.channel() as channel:
            answer = await channel.queue_declare(queue, passive=True)
            return answer.message_count or 0

    async def delete(self, *queues: str) -> None:
        async with self.channel() as channel:
            for queue in queues:
                await channel.queue_delete(queue)

    async def ctl(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.server.ctl, *arguments)

    async def add_users(self, prefix: str, users: Mapping[str, tuple[str, str, str]]) -> None:
        """Add ``PREFIX-NAME`` with password ``pw``: what it may configure, write and read."""
        # One call of rabbitmqctl for all, which takes seconds each.
        backend = "rabbit_auth_backend_internal"
        calls: list[str] = []
        for name, permissions in users.items():
            user = f'<<"{prefix}-{name}">>'
            texts = ", ".join(f"<<{json.dumps(each)}>>" for each in permissions)
            calls.append(f'{backend}:add_user({user}, <<"pw">>, <<"test">>)')
            calls.append(f'{backend}:set_permissions({user}, <<"/">>, {texts}, <<"test">>)')
        await self.ctl("eval", f"{', '.join(calls)}.")

"""DynamoDB for tests: one server, a table of its own for each, and a proxy before it."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from brokerwq.idempotency import Store
from brokerwq.testing import FakeClock
from brokerwq.testing.servers.dynamodb import DynamodbServer, shared_dynamodb
from brokerwq.testing.servers.proxy import TcpProxy
from brokerwq.testing.stores import StoreBench
from tests.idempotency.lab import refusing
from tests.required import or_skipped


def dynamodb_server() -> DynamodbServer:
    """The shared one; without it the test is skipped, or fails where it is required."""
    with or_skipped("dynamodb"):
        server = shared_dynamodb()
    os.environ.update(server.environment)
    return server


def table_name() -> str:
    return f"keys-{uuid.uuid4().hex}"


@asynccontextmanager
async def dynamodb_bench(*, on_fake_clock: bool = True) -> AsyncGenerator[StoreBench]:
    """A store in a table of its own, reached through a proxy.

    Its time is what the test says; else the service's, by the dates of its answers.
    """
    from brokerwq.idempotency.stores.dynamodb import DynamodbStore

    server = await asyncio.to_thread(dynamodb_server)
    parts = urlsplit(server.endpoint)
    table = table_name()
    clock = FakeClock()
    opened: list[DynamodbStore] = []

    with TcpProxy(parts.hostname or "127.0.0.1", parts.port or 80) as proxy:

        def another(ahead: float = 0.0, name: str = table) -> DynamodbStore:
            store = DynamodbStore(
                name,
                region=server.region,
                endpoint_url=f"http://{proxy.host}:{proxy.port}",
                skew=0.0 if on_fake_clock else 0.2,
                time=(lambda: clock.utcnow().timestamp() + ahead) if on_fake_clock else None,
                command_timeout=5.0,
            )
            opened.append(store)
            return store

        async def passes(seconds: float) -> None:
            if on_fake_clock:
                clock.advance(seconds)
            else:
                await asyncio.sleep(seconds)

        async def spoil(key: bytes, **attributes: Any) -> None:
            await store.table.call(
                "put_item", Item={"key": {"B": key}, **attributes}, TableName=table
            )

        async def damage(key: bytes) -> None:
            await spoil(key, state={"N": "77"})

        async def outdate() -> None:
            from brokerwq.idempotency.stores._dynamodb_items import VERSION_KEY

            await spoil(VERSION_KEY, version={"S": "99"})

        @asynccontextmanager
        async def bare() -> AsyncGenerator[Store]:
            yield another(name=table_name())

        store = another()
        await store.init()
        try:
            yield StoreBench(
                store=store,
                again=another,
                passes=passes,
                skewed=another,
                bears_skew=20.0,
                damage=damage,
                bare=bare,
                outdate=outdate,
                outage=lambda: refusing(proxy),
            )
        finally:
            await store.table.call("delete_table", TableName=table)
            for each in opened:
                await each.aclose()

"""Redis for tests: one server, a namespace of its own for each, and a proxy before it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from brokerwq.idempotency import Store
from brokerwq.testing.servers.proxy import TcpProxy
from brokerwq.testing.servers.redis import shared_redis
from brokerwq.testing.stores import StoreBench
from tests.idempotency.lab import refusing
from tests.required import or_skipped


def redis_url() -> str:
    """The shared server's; without one the test is skipped, or fails where it is required."""
    with or_skipped("redis"):
        return shared_redis()


@asynccontextmanager
async def redis_bench() -> AsyncGenerator[StoreBench]:
    """A store in a namespace of its own, reached through a proxy."""
    from brokerwq.idempotency.stores._redis_client import redis_asyncio
    from brokerwq.idempotency.stores.redis import RedisStore

    url = await asyncio.to_thread(redis_url)
    parts = urlsplit(url)
    namespace = f"t{uuid.uuid4().hex}"
    native: Any = redis_asyncio.Redis.from_url(url)
    opened: list[RedisStore] = []

    with TcpProxy(parts.hostname or "127.0.0.1", parts.port or 6379) as proxy:

        def another(space: str = namespace) -> RedisStore:
            netloc = f"{parts.username or ''}:{parts.password or ''}@{proxy.host}:{proxy.port}"
            through = parts._replace(netloc=netloc).geturl()
            store = RedisStore(through, namespace=space, command_timeout=2.0)
            opened.append(store)
            return store

        async def damage(key: bytes) -> None:
            await native.hset(f"{namespace}:{key.hex()}", "s", "77")

        async def outdate() -> None:
            await native.set(f"{namespace}:schema", "99")

        @asynccontextmanager
        async def bare() -> AsyncGenerator[Store]:
            yield another(f"{namespace}-bare")

        store = another()
        await store.init()
        try:
            yield StoreBench(
                store=store,
                again=another,
                damage=damage,
                bare=bare,
                outdate=outdate,
                outage=lambda: refusing(proxy),
            )
        finally:
            for each in opened:
                await each.aclose()
            names = [name async for name in native.scan_iter(f"{namespace}*", count=1000)]
            if names:
                await native.unlink(*names)
            await native.aclose()

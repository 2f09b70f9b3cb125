"""From a URL to a store."""

from __future__ import annotations

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.errors import ConfigError
from brokerwq.idempotency.store import Store
from brokerwq.idempotency.stores.sqlite import SqliteStore


def open_store(url: str, *, clock: Clock = SYSTEM_CLOCK, create: bool = True) -> Store:
    """The store at ``url``.

    ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://…`` (asyncpg),
    ``redis://…``, ``rediss://…`` or ``dynamodb://REGION/TABLE``.

    Nothing is connected yet.

    Raises:
        ConfigError: it is the URL of no store.
    """
    scheme, _, path = url.partition("://")
    if scheme == "sqlite" and path.startswith("/"):
        return SqliteStore(path[1:], clock=clock, create=create)
    if scheme in ("postgresql", "postgres"):
        from brokerwq.idempotency.stores.asyncpg import AsyncpgStore  # noqa: PLC0415 -- an extra

        return AsyncpgStore(url)
    if scheme in ("redis", "rediss"):
        from brokerwq.idempotency.stores.redis import RedisStore  # noqa: PLC0415 -- an extra

        return RedisStore(url)
    if scheme == "dynamodb":
        from brokerwq.idempotency.stores.dynamodb import DynamodbStore  # noqa: PLC0415 -- an extra

        return DynamodbStore.from_url(url, clock=clock)
    known = "sqlite:///…, postgresql://…, redis://… or dynamodb://REGION/TABLE"
    msg = f"no store is known by {scheme or url!r:.50}://; write {known}"
    raise ConfigError(msg)

"""From a URL to a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver.support import url_options, url_path
from brokerwq.errors import ConfigError
from brokerwq.idempotency.store import Store
from brokerwq.idempotency.stores.sqlite import SqliteStore

Open: TypeAlias = Callable[[str, Clock, bool], Store]

# ruff: noqa: PLC0415 -- each but SQLite needs an extra


def _sqlite(url: str, clock: Clock, create: bool) -> Store:  # noqa: FBT001 -- one shape for all
    path = url_path(url)
    if not path.startswith("/"):
        msg = "write sqlite:///relative.db or sqlite:////absolute.db"
        raise ConfigError(msg)
    known: dict[str, type[Any]] = {"busy_timeout": float, "foreign_keys": bool}
    return SqliteStore(path[1:], clock=clock, create=create, **url_options(url, known))


def _asyncpg(url: str, _clock: Clock, _create: bool) -> Store:  # noqa: FBT001 -- as above
    from brokerwq.idempotency.stores.asyncpg import AsyncpgStore

    return AsyncpgStore(url)


def _psycopg(url: str, _clock: Clock, _create: bool) -> Store:  # noqa: FBT001 -- as above
    from brokerwq.idempotency.stores.psycopg import PsycopgStore

    return PsycopgStore(url)


def _sqlalchemy(url: str, _clock: Clock, _create: bool) -> Store:  # noqa: FBT001 -- as above
    from brokerwq.idempotency.stores.sqlalchemy import SqlalchemyStore

    return SqlalchemyStore(url)


def _redis(url: str, _clock: Clock, _create: bool) -> Store:  # noqa: FBT001 -- as above
    from brokerwq.idempotency.stores.redis import RedisStore

    return RedisStore(url)


def _dynamodb(url: str, clock: Clock, _create: bool) -> Store:  # noqa: FBT001 -- as above
    from brokerwq.idempotency.stores.dynamodb import DynamodbStore

    return DynamodbStore.from_url(url, clock=clock)


_STORES: Final[dict[str, Open]] = {
    "sqlite": _sqlite,
    "postgresql": _asyncpg,
    "postgres": _asyncpg,
    "postgresql+asyncpg": _asyncpg,
    "postgresql+psycopg": _psycopg,
    "redis": _redis,
    "rediss": _redis,
    "dynamodb": _dynamodb,
}


def open_store(url: str, *, clock: Clock = SYSTEM_CLOCK, create: bool = True) -> Store:
    """The store at ``url``.

    ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://…`` (asyncpg),
    ``postgresql+psycopg://…``, ``sqlalchemy+…`` with the URL of an async engine behind it,
    ``redis://…``, ``rediss://…`` or ``dynamodb://REGION/TABLE``.

    Nothing is connected yet.

    Raises:
        ConfigError: it is the URL of no store.
        AdapterMissingError: the store's client library is not installed.
    """
    scheme = url.partition("://")[0]
    opened = _sqlalchemy if scheme.startswith("sqlalchemy+") else _STORES.get(scheme)
    if opened is not None:
        return opened(url, clock, create)
    known = (
        "sqlite:///…, postgresql://…, postgresql+psycopg://…, sqlalchemy+postgresql+asyncpg://…, "
        "redis://… or dynamodb://REGION/TABLE"
    )
    msg = f"no store is known by {scheme or url!r:.50}://; write {known}"
    raise ConfigError(msg)

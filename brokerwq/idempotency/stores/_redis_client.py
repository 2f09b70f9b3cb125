"""Clients of Redis: made from what users give, with errors made ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from brokerwq.errors import (
    AdapterMissingError,
    ConfigError,
    StoreError,
    StoreUnavailableError,
)
from brokerwq.idempotency.stores import _redis_scripts as scripts
from brokerwq.idempotency.stores._lasting import LastingError

try:
    # Its types differ from version to version; what comes out of it is checked where it is used.
    redis: Any = import_module("redis")
    redis_asyncio: Any = import_module("redis.asyncio")
    backoff: Any = import_module("redis.backoff")
    retry: Any = import_module("redis.asyncio.retry")
except ModuleNotFoundError as exc:
    _MISSING = "RedisStore needs redis-py: pip install 'brokerwq[redis]'"
    raise AdapterMissingError(_MISSING) from exc

MakeClient: TypeAlias = Callable[[], Any]
"""Makes a client of ``redis.asyncio``."""

# Answers that another try may not get: the server is full, electing, loading, or cannot save.
_PASSING_WORDS: Final = (
    *("OOM", "MISCONF", "READONLY", "LOADING", "BUSY", "NOREPLICAS"),
    *("MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"),
)
# redis-py has classes for some of them, more in newer versions, and cuts the first word off.
_PASSING_CLASSES: Final = (
    *("OutOfMemoryError", "ReadOnlyError", "BusyLoadingError"),
    *("MasterDownError", "ClusterDownError", "TryAgainError"),
)


def one_more_try(pause: float) -> Any:
    """A failed command is repeated once, within ``pause`` seconds."""
    return retry.Retry(backoff.ExponentialBackoff(pause, 0.05), 1)


class Client:
    """A client, and the scripts it knows by their digests.

    Raises:
        ConfigError: it decodes answers.
    """

    def __init__(self, native: Any) -> None:
        if native.get_encoder().decode_responses:
            msg = "RedisStore needs a client with decode_responses=False: records hold bytes"
            raise ConfigError(msg)
        self.native = native
        self._scripts: dict[str, Any] = {}

    def script(self, text: str) -> Any:
        """What runs ``text`` at the server."""
        found = self._scripts.get(text)
        if found is None:
            found = self._scripts[text] = self.native.register_script(text)
        return found


class translated(contextlib.AbstractContextManager[None]):  # noqa: N801 -- read as a word
    """Native errors become ours."""

    def __init__(self, name: str, key: bytes | None = None) -> None:
        self._name = name
        self._key = key

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, redis.RedisError | OSError | asyncio.TimeoutError):
            return
        text = f"store {self._name}: {type(error).__name__}: {error!s:.500}"
        if isinstance(error, redis.ResponseError) and not _is_passing(error):
            if self._key is not None and str(error).startswith("WRONGTYPE"):
                raise scripts.damaged(self._key, error) from error
            raise LastingError(text) from error
        if isinstance(error, redis.DataError | TypeError):
            raise StoreError(text) from error
        raise StoreUnavailableError(text) from error


def _is_passing(error: Any) -> bool:
    return type(error).__name__ in _PASSING_CLASSES or str(error).startswith(_PASSING_WORDS)


def namespace_of(url: str, namespace: str) -> tuple[str, str]:
    """``url`` without the namespace in its query, and the namespace.

    Raises:
        ConfigError: it is no URL of Redis.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        msg = "the URL of RedisStore must begin with redis:// or rediss://"
        raise ConfigError(msg)
    options = parse_qsl(parts.query, keep_blank_values=True)
    names = [value for name, value in options if name == "namespace"]
    query = urlencode([option for option in options if option[0] != "namespace"])
    return urlunsplit(parts._replace(query=query)), names[-1] if names else namespace


def client_maker(source: Any, options: Mapping[str, Any]) -> tuple[str, MakeClient]:
    """The name of what ``source`` means, and what makes a client of it.

    Args:
        source: A URL, a client of ``redis.asyncio``, or what makes one.
        options: Of each connection; a function makes its clients by itself.

    Raises:
        ConfigError: it is none of these, or redis-py cannot use it.
    """
    pools: Any = redis_asyncio.BlockingConnectionPool
    if isinstance(source, str):
        parts = urlsplit(source)

        def make_pool() -> Any:
            return pools.from_url(source, **options)

        _refuse_unknown(make_pool, source)
        host = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
        name = f"{parts.scheme}://{host}{parts.path}"
    elif hasattr(source, "connection_pool"):
        given = source.connection_pool
        # But for what binds a connection to the pool that it is of.
        settings = {
            name: value
            for name, value in given.connection_kwargs.items()
            if not name.startswith(("maint", "orig_", "event_dispatcher"))
        }
        keywords = {**settings, **options, "decode_responses": False}

        def make_pool() -> Any:
            return pools(connection_class=given.connection_class, **keywords)

        _refuse_unknown(make_pool, "the client")
        host = f"{keywords.get('host', 'localhost')}:{keywords.get('port', 6379)}"
        name = f"redis://{keywords.get('path') or host}/{keywords.get('db') or 0}"
    elif callable(source):
        return "redis, by a client of your own", source
    else:
        msg = f"RedisStore takes a URL, a client or a function, not {type(source).__name__}"
        raise ConfigError(msg)
    return name, lambda: redis_asyncio.Redis.from_pool(make_pool())


def _refuse_unknown(make_pool: MakeClient, source: str) -> None:
    """Find out now what redis-py would say at the first command."""
    try:
        make_pool().make_connection()
    except (TypeError, ValueError, AttributeError, redis.RedisError) as exc:
        msg = f"redis-py cannot use {source.partition('?')[2] or 'the client'}: {exc!s:.200}"
        raise ConfigError(msg) from exc

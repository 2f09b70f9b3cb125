"""From a URL to a store."""

from __future__ import annotations

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.errors import ConfigError
from brokerwq.idempotency.store import Store
from brokerwq.idempotency.stores.sqlite import SqliteStore


def open_store(url: str, *, clock: Clock = SYSTEM_CLOCK, create: bool = True) -> Store:
    """The store at ``url``: ``sqlite:///relative.db`` or ``sqlite:////absolute.db``.

    Nothing is connected yet.

    Raises:
        ConfigError: it is the URL of no store.
    """
    scheme, _, path = url.partition("://")
    if scheme == "sqlite" and path.startswith("/"):
        return SqliteStore(path[1:], clock=clock, create=create)
    msg = f"no store is known by {scheme or url!r:.50}://; write sqlite:///work.db"
    raise ConfigError(msg)

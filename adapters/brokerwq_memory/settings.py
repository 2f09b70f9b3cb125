"""What a ``memory://`` URL says."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from brokerwq.driver.support import url_options, url_path
from brokerwq.errors import ConfigError
from brokerwq_memory.likeness import likeness_of
from brokerwq_memory.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """One space; every driver built from it sees the same queues.

    Attributes:
        name: From ``memory://name``; empty for a private space.
        space: Where the messages are. A named one is shared by all settings of that name in
            this process and lives as long as the process.
    """

    name: str = ""
    space: Space = field(default_factory=Space, repr=False, compare=False)


_named: dict[str, Space] = {}
_lock = threading.Lock()


def parse_url(url: str) -> MemorySettings:
    """Settings from ``memory://`` (private) or ``memory://name`` (shared by name).

    ``?like=sqs``, ``sqs-fifo`` or ``rabbitmq`` makes the space behave like that broker.

    Raises:
        ConfigError: an option is unknown, or the space of that name is like another broker.
    """
    options = url_options(url, {"like": str})
    like = likeness_of(options.get("like", ""))
    name = url_path(url)
    if not name:
        return MemorySettings(space=Space(like))
    with _lock:
        space = _named.setdefault(name, Space(like))
    if space.like is not like:
        msg = (
            f"memory://{name:.100} is already in use here "
            f"{f'as like={space.like.name}' if space.like.name else 'without like='}; "
            "say the same everywhere, or choose another name"
        )
        raise ConfigError(msg)
    return MemorySettings(name=name, space=space)

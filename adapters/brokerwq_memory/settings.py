"""What a ``memory://`` URL says."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from brokerwq.driver.support import url_options, url_path
from brokerwq.durations import seconds_of
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


_OPTIONS: dict[str, type[Any]] = {"like": str, "lag": float}


def parse_url(url: str) -> MemorySettings:
    """Settings from ``memory://`` (private) or ``memory://name`` (shared by name).

    ``?like=sqs``, ``sqs-fifo`` or ``rabbitmq`` makes the space behave like that broker; ``lag``
    is the seconds for which counts that are estimates stay as they were.

    Raises:
        ConfigError: an option is unknown or wrong, or the space of that name has others.
    """
    options = url_options(url, _OPTIONS)
    like = likeness_of(options.get("like", ""))
    lag = seconds_of(options.get("lag", 0.0), "lag", floor=0.0)
    if lag and like.capabilities.exact_stats:
        msg = "lag is for counts that are estimates: add like=sqs or like=rabbitmq"
        raise ConfigError(msg)
    name = url_path(url)
    if not name:
        return MemorySettings(space=Space(like, lag=lag))
    with _lock:
        space = _named.setdefault(name, Space(like, lag=lag))
    if space.like is not like or space.lag != lag:
        msg = (
            f"memory://{name:.100} is already in use here with other options "
            f"(like={space.like.name!r}, lag={space.lag:g}); say the same everywhere, or choose "
            "another name"
        )
        raise ConfigError(msg)
    return MemorySettings(name=name, space=space)

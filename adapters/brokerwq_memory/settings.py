"""What a ``memory://`` URL says."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from brokerwq.driver.support import url_options, url_path
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

    Raises:
        ConfigError: the URL has options; there are none.
    """
    url_options(url, dict[str, type[str]]())
    name = url_path(url)
    if not name:
        return MemorySettings()
    with _lock:
        return MemorySettings(name=name, space=_named.setdefault(name, Space()))

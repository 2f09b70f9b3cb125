"""brokerwq in this process: for tests, trials and work that may end with the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerwq.driver import Adapter

if TYPE_CHECKING:
    from brokerwq.clock import Clock
    from brokerwq.driver import Driver
    from brokerwq_memory.settings import MemorySettings

__all__ = ["adapter"]


def _parse_url(url: str) -> MemorySettings:
    from brokerwq_memory.settings import parse_url

    return parse_url(url)


def _build(settings: MemorySettings, clock: Clock) -> Driver:
    from brokerwq_memory.driver import MemoryDriver

    return MemoryDriver(settings, clock)


adapter: Adapter[MemorySettings] = Adapter(
    schemes=("memory",),
    summary="in this process; gone when it ends",
    extra="",
    parse_url=_parse_url,
    build=_build,
)

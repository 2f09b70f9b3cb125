"""What an entry point in the group ``brokerwq.adapters`` names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from brokerwq.clock import Clock
from brokerwq.driver.protocol import Driver

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter(Generic[S]):
    """A broker that brokerwq can talk to. Importing it must not import the client library.

    Attributes:
        schemes: URL schemes it answers to; each is also the name of an entry point.
        summary: One line for people.
        extra: The extra of ``brokerwq`` that installs its client library; empty if none.
        parse_url: Settings from a URL; raises ``ConfigError`` for an unknown option.
        build: A driver that is not yet open. The client library is imported here, and a
            missing one raises ``ImportError``. One settings value may build many drivers.
        looking: The settings of whoever only looks, for a broker that opening would make.
    """

    schemes: tuple[str, ...]
    summary: str
    extra: str
    parse_url: Callable[[str], S]
    build: Callable[[S, Clock], Driver]
    looking: Callable[[S], S] | None = None

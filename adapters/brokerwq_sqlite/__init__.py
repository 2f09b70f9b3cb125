"""brokerwq in one file: a durable broker for all processes of one machine, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerwq.driver import Adapter

if TYPE_CHECKING:
    from brokerwq.clock import Clock
    from brokerwq.driver import Driver
    from brokerwq_sqlite.settings import SqliteSettings

__all__ = ["adapter"]


def _parse_url(url: str) -> SqliteSettings:
    from brokerwq_sqlite.settings import parse_url

    return parse_url(url)


def _build(settings: SqliteSettings, clock: Clock) -> Driver:
    from brokerwq_sqlite.driver import SqliteDriver

    return SqliteDriver(settings, clock)


def _looking(settings: SqliteSettings) -> SqliteSettings:
    return settings.model_copy(update={"create": False})


adapter: Adapter[SqliteSettings] = Adapter(
    schemes=("sqlite",),
    summary="one file, all processes of one machine",
    extra="",
    parse_url=_parse_url,
    build=_build,
    looking=_looking,
)

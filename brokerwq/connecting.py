"""From a URL to a connected broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from brokerwq.broker import CONNECT_TIMEOUT, Broker
from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver.registry import build_driver, find_adapter, settings_of
from brokerwq.durations import Seconds, positive_seconds
from brokerwq.events import Instrumentation, Listener
from brokerwq.limits import MAX_CONNECT


@asynccontextmanager
async def connect(
    url: str,
    /,
    *,
    connect_timeout: Seconds = CONNECT_TIMEOUT,
    clock: Clock = SYSTEM_CLOCK,
    telemetry: Instrumentation | Listener | None = None,
    creates: bool = True,
) -> AsyncGenerator[Broker]:
    """A connection to the broker at ``url``, closed when the block ends.

    Args:
        url: ``memory://``, ``sqlite:///jobs.db``, or what else an adapter serves.
        connect_timeout: Seconds for which connecting is tried again.
        clock: Time; for tests.
        telemetry: Told of what is sent.
        creates: Whether a broker that is only a file is made if it is not there.

    Raises:
        ConfigError: the URL is wrong, or no adapter serves it; or there is no such file.
        DriverError: the broker could not be reached, or refused.
    """
    adapter = find_adapter(url)
    settings = settings_of(adapter, url)
    if not creates and adapter.looking is not None:
        settings = adapter.looking(settings)
    driver = build_driver(adapter, settings, clock)
    broker = Broker(
        driver,
        clock=clock,
        connect_timeout=positive_seconds(connect_timeout, "connect_timeout", limit=MAX_CONNECT),
        instrumentation=None if telemetry is None else _guarded(telemetry, url),
    )
    try:
        await broker.open()
        yield broker
    finally:
        await broker.aclose()


def _guarded(telemetry: Instrumentation | Listener, url: str) -> Instrumentation | None:
    from brokerwq.telemetry import select_telemetry  # noqa: PLC0415  -- free when off

    return select_telemetry(telemetry, "", url)

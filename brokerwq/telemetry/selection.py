"""Which instrumentation an application gets."""

from __future__ import annotations

from typing import Final

from brokerwq.errors import ConfigError
from brokerwq.events import Instrumentation, Listener
from brokerwq.telemetry.combine import FanOut, bound_to, fan_out
from brokerwq.telemetry.otel import OpenTelemetry

OFF: Final = ("", "off")
OTEL: Final = "otel"


def select_telemetry(
    given: Instrumentation | Listener | None, setting: str, url: str
) -> Instrumentation | None:
    """What the core shall report to, kept from harming any job; None for nobody.

    Args:
        given: ``App(telemetry=…)``; decides unless it is None.
        setting: ``BROKERWQ_TELEMETRY``: empty or ``off`` for none, or ``otel``.
        url: The broker's; only its scheme, host and port are looked at.

    Raises:
        ConfigError: the setting is unknown, ``given`` is neither an instrumentation nor
            a listener, or OpenTelemetry is asked for and not installed.
    """
    chosen = _by_setting(setting) if given is None else given
    if chosen is None:
        return None
    chosen = bound_to(url, chosen)
    # These two guard themselves; a second guard around them would only cost.
    return chosen if isinstance(chosen, (OpenTelemetry, FanOut)) else fan_out(chosen)


def _by_setting(setting: str) -> Instrumentation | None:
    word = setting.strip().lower()
    if word in OFF:
        return None
    if word == OTEL:
        return OpenTelemetry()
    msg = f"BROKERWQ_TELEMETRY is {setting!r:.200}; write otel, or off"
    raise ConfigError(msg)

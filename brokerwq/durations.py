"""Durations and moments as users write them, checked once at the door."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from brokerwq.errors import ConfigError

Seconds: TypeAlias = float | timedelta
"""A duration: seconds, or a ``timedelta``."""


def seconds_of(
    value: object, name: str, *, floor: float | None = None, limit: float = math.inf
) -> float:
    """Return ``value`` in seconds.

    Args:
        value: Seconds or ``timedelta``.
        name: What it is called, for the error.
        floor: Smaller values are raised to this one.
        limit: Larger values are refused.

    Raises:
        ConfigError: it is not a finite number of seconds, or above the limit.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} must be seconds or a timedelta, not {value!r:.200}"
        raise ConfigError(msg)
    else:
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
    if not math.isfinite(seconds):
        msg = f"{name} must be a finite number of seconds, not {seconds!r}"
        raise ConfigError(msg)
    if seconds > limit:
        msg = f"{name} is {seconds:g} seconds; the limit is {limit:g}"
        raise ConfigError(msg)
    return seconds if floor is None else max(seconds, floor)


def positive_seconds(
    value: object, name: str, *, limit: float = math.inf, least: float = 0.0
) -> float:
    """Return ``value`` in seconds, above zero, at least ``least`` and at most ``limit``.

    Raises:
        ConfigError: it is zero, negative, not finite, below the least or above the limit.
    """
    seconds = seconds_of(value, name, limit=limit)
    if seconds <= 0:
        msg = f"{name} must be above 0 seconds, not {value!r}"
        raise ConfigError(msg)
    if seconds < least:
        msg = f"{name} is {seconds:g} seconds; the least is {least:g}"
        raise ConfigError(msg)
    return seconds


def aware_utc(moment: datetime, name: str) -> datetime:
    """Return ``moment`` in UTC.

    Raises:
        ConfigError: it has no time zone, so that it could mean any of two dozen moments, or it
            is beyond the calendar.
    """
    if moment.tzinfo is None or moment.utcoffset() is None:
        msg = f"{name} must have a time zone, e.g. datetime.now(UTC); {moment!r} has none"
        raise ConfigError(msg)
    try:
        return moment.astimezone(UTC)
    except OverflowError as exc:
        msg = f"{name} is {moment!r}, which is beyond the years 1 to 9999 in UTC"
        raise ConfigError(msg) from exc

"""Values as people write them on a command line, read exactly."""

from __future__ import annotations

import re
from fractions import Fraction

import click

_UNITS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86_400),
}
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(ms|min|[smhd])?\s*", re.ASCII)


def seconds_of(text: str) -> Fraction:
    """A duration: ``90``, ``1.5``, ``250ms``, ``15m``, ``1h30m``, ``2d``.

    Raises:
        ValueError: it is none.
    """
    total, at, stripped = Fraction(0), 0, text.strip().lower()
    bare = False
    while at < len(stripped):
        found = _PART.match(stripped, at)
        if found is None or bare or (at and not found[2]):
            raise ValueError(text)
        bare = not found[2]
        total += Fraction(found[1]) * _UNITS[found[2] or "s"]
        at = found.end()
    if not stripped:
        raise ValueError(text)
    return total


def duration(_: click.Context, parameter: click.Parameter, value: str | None) -> Fraction | None:
    """Callback of an option: a duration above zero."""
    if value is None:
        return None
    try:
        seconds = seconds_of(value)
    except ValueError:
        seconds = Fraction(0)
    if seconds <= 0:
        msg = f"{value!r:.100} is no duration above 0; write for example 90, 250ms, 15m or 1h30m"
        raise click.BadParameter(msg, param=parameter)
    return seconds


def duration_or_zero(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> Fraction | None:
    """Callback of an option: a duration, zero allowed."""
    if value is not None and re.fullmatch(r"0+(\.0+)?\s*(ms|min|[smhd])?", value.strip().lower()):
        return Fraction(0)
    return duration(context, parameter, value)


def rate_a_second(_: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Callback of an option: how many a second, from 0.001 to a million."""
    if value is None:
        return None
    try:
        rate = float(value)
    except ValueError:
        rate = 0.0
    if not 0.001 <= rate <= 1_000_000:  # noqa: PLR2004  -- said below; also false for NaN
        msg = f"{value!r:.100} is no rate; write a number from 0.001 to 1000000"
        raise click.BadParameter(msg, param=parameter)
    return rate

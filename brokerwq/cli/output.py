"""Tables, numbers and times for people; JSON for programs. All on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click

from brokerwq.driver import Certainty, Count
from brokerwq.sizing import readable

MAX_SHOWN = 200


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns; a column whose heading ends in ``>`` is aligned to the right.

    Nothing is cut to the terminal's width, so that what is piped is whole.
    """
    right = [heading.endswith(">") for heading in headings]
    lines = [[heading.rstrip(">") for heading in headings], *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Print one thing's properties, a line each; empty ones are left out."""
    shown_pairs = [(name, text) for name, text in pairs if text]
    width = max((len(name) for name, _ in shown_pairs), default=0)
    for name, text in shown_pairs:
        click.echo(f"{name.ljust(width)}  {text}")


def as_json(value: object) -> None:
    """Print ``value`` as indented JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def shown(text: str, limit: int = MAX_SHOWN) -> str:
    """``text`` fit for a terminal: cut, and without characters that would steer it."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(char if char.isprintable() else _escaped(char) for char in cut)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def number(count: Count) -> str:
    """A count: ``12``, ``~12`` for an estimate, ``?`` where unknown."""
    match count.certainty:
        case Certainty.EXACT:
            return f"{count.value:,}"
        case Certainty.ESTIMATE:
            return f"~{count.value:,}"
        case Certainty.UNKNOWN:
            return "?"


def number_json(count: Count) -> int | None:
    """A count for programs; None where unknown."""
    return None if count.certainty is Certainty.UNKNOWN else count.value


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago ``moment`` was; ``?`` where unknown."""
    if moment is None:
        return "?"
    return span(((now or datetime.now(UTC)) - moment).total_seconds())


def span(seconds: float | None) -> str:
    """A duration in whole seconds; ``-`` for None."""
    return "-" if seconds is None else readable(round(max(0.0, seconds)))


def stamp(moment: datetime | None) -> str:
    """A moment in UTC to the second; empty for None."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def stamp_json(moment: datetime | None) -> str | None:
    """A moment by ISO 8601, for programs."""
    return None if moment is None else moment.astimezone(UTC).isoformat()

"""Progress on standard error: a bar on a terminal, now and then a plain line in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.sizing import readable

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

SECONDS_BETWEEN_LINES = 2.0


class Progress(Protocol):
    """How far a verb has come."""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """``done`` of ``total`` items are done (None: it is not known how many there are).

        ``note`` is a few words about the items, such as ``2 retried``.
        """
        ...


@contextmanager
def progress(verb: str, total: int | None = None) -> Generator[Progress]:
    """Show progress while the block runs."""
    if sys.stderr.isatty():
        with _bar(verb, total) as bar:
            yield bar
    else:
        lines = PlainLines(verb, total)
        yield lines
        lines.close()


class PlainLines:
    """One line every few seconds, and one at the end if it differs from the last."""

    def __init__(
        self,
        verb: str,
        total: int | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        every: float = SECONDS_BETWEEN_LINES,
    ) -> None:
        self._verb = verb
        self._total = total
        self._clock = clock
        self._every = every
        self._start = self._last = clock.now()
        self._line = ""
        self._printed = ""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """See ``Progress.update``."""
        self._total = self._total if total is None else total
        now = self._clock.now()
        self._line = _line(self._verb, done, self._total, now - self._start, note)
        if now - self._last >= self._every:
            self._last = now
            self._print()

    def close(self) -> None:
        """Print the last state."""
        self._print()

    def _print(self) -> None:
        if self._line and self._line != self._printed:
            self._printed = self._line
            click.echo(self._line, err=True)


def _line(verb: str, done: int, total: int | None, elapsed: float, note: str) -> str:
    rate = done / elapsed if elapsed > 0 else 0.0
    if total is None:
        parts = [f"{verb}: {done:,}"]
    else:
        share = f" ({done * 100 // total} %)" if total else ""
        parts = [f"{verb}: {done:,} of {total:,}{share}"]
    if note:
        parts.append(note)
    if rate > 0:
        parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")  # noqa: PLR2004
        if total is not None and done < total:
            parts.append(f"{readable(round((total - done) / rate))} left")
    return ", ".join(parts)


@contextmanager
def _bar(verb: str, total: int | None) -> Generator[Progress]:
    import rich.progress
    from rich.console import Console

    columns: tuple[ProgressColumn, ...] = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[note]}"),
        _rate_column(),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task(verb, total=total, note="")

        class Bar:
            def update(self, done: int, total: int | None = None, note: str = "") -> None:
                if total is None:
                    display.update(task, completed=done, note=note)
                else:
                    display.update(task, completed=done, total=total, note=note)

        yield Bar()


def _rate_column() -> ProgressColumn:
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s")

    return Rate()

"""What ``run`` and ``drain`` have in common: what is to be run, its log, and its report."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn

import click

from brokerwq.cli.failure import ExitCode, say
from brokerwq.cli.link import Link
from brokerwq.cli.options import Verb, with_options
from brokerwq.cli.target import default_spec, is_spec, load_app
from brokerwq.cli.values import duration_or_zero
from brokerwq.driver.registry import scheme_of
from brokerwq.errors import ConfigError
from brokerwq.reports import RunReport
from brokerwq.sizing import readable

if TYPE_CHECKING:
    from brokerwq.app import App
    from brokerwq.runner import Runner


_WORKER_THREAD = "AnyIO worker thread"
_THREAD_PATIENCE = 0.3

_OPTIONS = (
    click.argument("arguments", nargs=-1, metavar="[MODULE:ATTR] [QUEUE]..."),
    click.option("--processes", type=click.IntRange(1, 1024), help="Runner processes.  [1]"),
    click.option("--slots", type=click.IntRange(1), help="Jobs at once in each.  [10]"),
    click.option(
        "--grace",
        callback=duration_or_zero,
        metavar="DURATION",
        help="Time that running jobs get at a stop.  [15 s]",
    ),
    click.option("--log", type=click.Choice(["text", "json"]), default="text", show_default=True),
)


@dataclass(frozen=True, kw_only=True)
class Shift:
    """What is to be run, and by how many.

    Attributes:
        app: The app.
        spec: Its MODULE:ATTR, if it was named on the command line.
        queues: Only these queues; empty for all.
        slots: Jobs at once in each process.
        grace: Seconds that running jobs get at a stop.
        count: Processes.
        log: ``text`` or ``json``.
        link: To the parent, in a process of a crew.
    """

    app: App
    spec: str | None
    queues: tuple[str, ...]
    slots: int
    grace: float
    count: int
    log: str
    link: Link | None

    def runner(self) -> Runner:
        """A runner for this process."""
        from brokerwq.runner import Runner

        return Runner(self.app, *self.queues, slots=self.slots, grace=self.grace)

    def arguments(self) -> list[str]:
        """The command line of one process of the crew."""
        return [
            *([self.spec] if self.spec else []),
            *self.queues,
            *("--slots", str(self.slots), "--grace", f"{self.grace:.9f}", "--log", self.log),
        ]


def shift_options(command: Verb) -> Verb:
    """Add the arguments that say what is to be run; the verb gets a ``shift``."""

    @functools.wraps(command)
    def verb(
        *,
        arguments: tuple[str, ...],
        processes: int | None,
        slots: int | None,
        grace: Fraction | None,
        log: str,
        **others: Any,
    ) -> None:
        link = Link.from_environment()
        app, spec, queues = app_and_rest(arguments)
        settings = app.settings
        shift = Shift(
            app=app,
            spec=spec,
            queues=queues,
            slots=slots or settings.slots,
            grace=settings.grace if grace is None else float(grace),
            count=1 if link else processes or settings.processes,
            log=log,
            link=link,
        )
        _set_up_log(settings.log_level, log)
        if link is None:
            _announce(shift)
        command(shift=shift, **others)

    return with_options(_OPTIONS, verb)


def warn_of_misspelt_settings() -> None:
    """Say which environment variables set nothing, though they were meant to."""
    from brokerwq.settings import misspelt

    for variable, meant in misspelt(os.environ).items():
        say(f"{variable} is no setting and changes nothing; is {meant} meant?")


def app_and_rest(
    arguments: tuple[str, ...], what: str = "queue"
) -> tuple[App, str | None, tuple[str, ...]]:
    """The app, its MODULE:ATTR if that stood first, and the arguments behind it.

    Raises:
        ConfigError: no app is named, or it cannot be loaded; says that the first argument was
            taken for a ``what``.
    """
    spec, rest = (
        (arguments[0], arguments[1:]) if arguments and is_spec(arguments[0]) else (None, arguments)
    )
    if spec is None and rest and default_spec() is None:
        first = rest[0]
        named = f"{first}:app" if is_spec(f"{first}:app") else f"MODULE:ATTR before {first}"
        msg = f"{first!r:.100} is taken for a {what}, and no app is named: write {named:.100}"
        raise ConfigError(msg)
    return load_app(spec), spec, rest


def is_memory(url: str) -> bool:
    """Whether the broker at ``url`` is nothing but a process's memory."""
    return scheme_of(url) == "memory"


class _StderrHandler(logging.Handler):
    """Writes to what standard error is now: a progress bar replaces it to stay below."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)  # noqa: T201
        except Exception:  # noqa: BLE001  -- as every handler of the standard library
            self.handleError(record)


def _set_up_log(level: str, style: str) -> None:
    """Log to standard error, unless the program has set up logging by itself."""
    from brokerwq.telemetry import JsonFormatter, TerseFormatter

    if logging.getLogger().handlers or logging.getLogger("brokerwq").handlers:
        return
    handler = _StderrHandler()
    handler.setFormatter(JsonFormatter() if style == "json" else TerseFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("brokerwq").setLevel(level)


def _announce(shift: Shift) -> None:
    """Say which broker it is, where its URL came from, and what will run."""
    from brokerwq.version import __version__

    app, slots, count = shift.app, shift.slots, shift.count
    url = next(setting for setting in app.settings.describe() if setting.name == "url")
    origin = url.variable if url.origin == "environment" else url.origin
    names = ", ".join(shift.queues or (spec.name for spec in app.queue_specs()))
    crew = f"{count} processes with {slots} slots each" if count > 1 else f"{slots} slots"
    warn_of_misspelt_settings()
    if count > 1 and is_memory(app.url):
        say(f"memory:// is a process's own: {count} processes have {count} memories")
    stop = f"a stop gives running jobs {shift.grace:g} s, a second one none"
    say(f"{__version__} on {url.value} ({origin}), queues: {names}; {crew}; {stop}")


def run_runner(shift: Shift, work: Callable[[Runner], Awaitable[RunReport]]) -> RunReport:
    """Make a runner on a fresh loop and let it work to its end.

    A handler that does not end would keep the process. It is left behind, after the settles
    have been flushed and the report has been made.
    """
    link = shift.link

    async def main() -> RunReport:
        runner = shift.runner()
        if link is not None:
            link.stop_with_parent()
            link.follow(runner)
        report = await work(runner)
        if link is not None:
            link.tell(state="stopped", report=as_record(report))
        if report.stuck:
            _leave_behind(report, report.stuck)
        return report

    report = asyncio.run(main())
    if stuck := _threads_that_do_not_end():
        _leave_behind(report, stuck)
    return report


def _threads_that_do_not_end() -> int:
    # The loop has told its idle threads to end; what lives on is inside a handler.
    threads = [t for t in threading.enumerate() if t.name.startswith(_WORKER_THREAD)]
    for thread in threads:
        thread.join(_THREAD_PATIENCE / len(threads))
    return sum(thread.is_alive() for thread in threads)


def _leave_behind(report: RunReport, stuck: int) -> NoReturn:
    say(f"{stuck} {'handler' if stuck == 1 else 'handlers'} did not end and are left behind")
    say(summary(as_record(report)))
    sys.stdout.flush()
    os._exit(report.exit_code or ExitCode.TERMINATED)


def as_record(report: RunReport) -> dict[str, Any]:
    """The report for programs."""
    return {**asdict(report), "dead": dict(report.dead)}


def summary(record: dict[str, Any]) -> str:
    """The report for people, on one line."""
    report = RunReport(**record)
    rate = f", {report.rate:,.1f}/s" if report.seconds > 0 else ""
    return f"{report} in {readable(report.seconds)}{rate}"

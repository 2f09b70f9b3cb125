"""``brokerwq drain``: run workers until their queues are empty."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from brokerwq.cli.failure import ExitCode, FinishedWithError, say
from brokerwq.cli.output import as_json
from brokerwq.cli.progress import Progress, progress
from brokerwq.cli.running import Shift, as_record, run_runner, shift_options, summary
from brokerwq.cli.size import deadline_of
from brokerwq.cli.values import duration_or_zero

if TYPE_CHECKING:
    from brokerwq.reports import RunReport
    from brokerwq.runner import Runner

_SUMMED = (
    "done",
    "failed",
    "timeouts",
    "snoozed",
    "discarded",
    "duplicates",
    "put_back",
    "lost",
    "unsettled",
    "stuck",
)


class Countdown:
    """Turns "so many are left" into a progress of what there ever was."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._most = 0

    def left(self, count: int) -> None:
        """So many are left now."""
        self._most = max(self._most, count)
        self._bar.update(self._most - count, self._most)


@click.command()
@shift_options
@click.option("--by", metavar="DURATION|HH:MM", help="Stop then, done or not: 8h, 06:00.")
@click.option(
    "--include-delayed",
    is_flag=True,
    help="Wait for messages that are delayed beyond the longest backoff, too.",
)
@click.option(
    "--settle",
    callback=duration_or_zero,
    default="5",
    show_default=True,
    metavar="DURATION",
    help="Where counts are estimates: how long they must stay at zero.",
)
@click.option("--json", "json_", is_flag=True, help="Print the report as JSON.")
def drain(
    *, shift: Shift, by: str | None, include_delayed: bool, settle: Fraction, json_: bool
) -> None:
    """Run workers until their queues are empty.

    Ends with 0 if everything was done, with 1 if there are dead letters or the time of --by
    was up first. MODULE:ATTR and QUEUE are as for run. Failed messages that wait for their
    next attempt are waited for.
    """
    goal = Goal(
        limit=None if by is None else float(deadline_of(by, datetime.now(UTC)).within),
        include_delayed=include_delayed,
        settle=float(settle),
    )
    record, code = _drain_here(shift, goal) if shift.count == 1 else _drain_crew(shift, goal)
    if not code and (record["dead"] or not record["drained"]):
        code = ExitCode.DEAD_LETTERS
    if shift.link is None:
        if json_:
            as_json({**record, "exit_code": int(code)})
        else:
            click.echo(summary(record))
        if not record["drained"] and code == ExitCode.DEAD_LETTERS:
            why = "stopped" if by is None else "the time was up, or it was stopped,"
            say(f"{why} before the queues were empty")
    if code:
        raise FinishedWithError(code)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """When a drain is over; durations in seconds."""

    limit: float | None
    include_delayed: bool
    settle: float

    def arguments(self) -> list[str]:
        """The same for a process of a crew, which is stopped by its parent."""
        delayed = ["--include-delayed"] if self.include_delayed else []
        return ["--settle", f"{self.settle:.9f}", *delayed]


def _drain_here(shift: Shift, goal: Goal) -> tuple[dict[str, Any], int]:
    link = shift.link

    async def work(runner: Runner) -> RunReport:
        if goal.limit is not None:
            asyncio.get_running_loop().call_later(goal.limit, runner.stop)
        drain = functools.partial(
            runner.drain, include_delayed=goal.include_delayed, settle=goal.settle
        )
        if link is not None:
            tell = link.tell
            return await drain(progress=lambda left: tell(left=left))
        with progress("drain") as bar:
            return await drain(progress=Countdown(bar).left)

    report = run_runner(shift, work)
    return as_record(report), report.exit_code


def _drain_crew(shift: Shift, goal: Goal) -> tuple[dict[str, Any], int]:
    from brokerwq.cli.crew import Crew, Member, same_command
    from brokerwq.clock import SYSTEM_CLOCK

    started = SYSTEM_CLOCK.now()
    records: list[dict[str, Any]] = []

    async def main(left: Callable[[int], object]) -> int:
        def hear(_: Member, news: dict[str, Any]) -> None:
            if "left" in news:
                left(news["left"])
            if "report" in news:
                records.append(news["report"])

        command = same_command("drain", *shift.arguments(), *goal.arguments())
        crew = Crew(command, shift.count, grace=shift.grace, until_done=True, on_news=hear)
        if goal.limit is not None:
            asyncio.get_running_loop().call_later(goal.limit, crew.stop)
        return await crew.run()

    with progress("drain") as bar:
        code = asyncio.run(main(Countdown(bar).left))
    record = joined(records, SYSTEM_CLOCK.now() - started)
    # A process says 1 for its dead letters, as this one will for all of them.
    return record, 0 if code == ExitCode.DEAD_LETTERS else code


def joined(records: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The reports of several processes as one; what a killed one did is not in it."""
    dead: dict[str, int] = {}
    for record in records:
        for reason, count in record["dead"].items():
            dead[reason] = dead.get(reason, 0) + count
    return {
        **{name: sum(record[name] for record in records) for name in _SUMMED},
        "dead": dead,
        "seconds": seconds,
        "drained": bool(records) and all(record["drained"] for record in records),
        "left_delayed": max((record["left_delayed"] for record in records), default=0),
        "estimated": any(record["estimated"] for record in records),
        "exit_code": max((record["exit_code"] for record in records), default=0),
    }

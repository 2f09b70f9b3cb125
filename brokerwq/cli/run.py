"""``brokerwq run``: run workers until told to stop."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from brokerwq.cli.failure import FinishedWithError, say
from brokerwq.cli.running import Shift, as_record, run_runner, shift_options, summary

if TYPE_CHECKING:
    from brokerwq.reports import RunReport
    from brokerwq.runner import Runner


@click.command()
@shift_options
@click.option("--health", metavar="HOST:PORT", help="Answer /live and /ready there.")
def run(*, shift: Shift, health: str | None) -> None:
    """Run workers until told to stop.

    MODULE:ATTR names the App; else BROKERWQ_APP does, or [tool.brokerwq] in ./pyproject.toml.
    Without QUEUE all its queues are worked on. SIGTERM or SIGINT stops it once the running
    jobs have ended or the grace is over; a second one does not wait for them. With several
    processes, one that dies is replaced.
    """
    health = health or shift.app.settings.health
    code = _run_here(shift, health) if shift.count == 1 else _run_crew(shift, health)
    if code:
        raise FinishedWithError(code)


def _run_here(shift: Shift, health: str | None) -> int:
    from brokerwq.health import serve_health

    async def work(runner: Runner) -> RunReport:
        with ExitStack() as stack:
            # In a crew the parent answers for all.
            if health is not None and shift.link is None:
                stack.enter_context(serve_health(runner, health))
            return await runner.run()

    report = run_runner(shift, work)
    if shift.link is None:
        say(summary(as_record(report)))
    return report.exit_code


def _run_crew(shift: Shift, health: str | None) -> int:
    from brokerwq.cli.crew import Crew, same_command
    from brokerwq.health import serve_health

    async def main() -> int:
        crew = Crew(same_command("run", *shift.arguments()), shift.count, grace=shift.grace)
        with ExitStack() as stack:
            if health is not None:
                stack.enter_context(serve_health(crew, health))
            return await crew.run()

    return asyncio.run(main())

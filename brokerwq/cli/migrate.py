"""``brokerwq migrate``: move queues to another broker while work goes on, and prove it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import click

from brokerwq.cli import migrate_words as words
from brokerwq.cli.failure import ExitCode, FinishedWithError, say
from brokerwq.cli.loop import run_async
from brokerwq.cli.migrate_options import (
    Sides,
    moving_options,
    sample_option,
    settle_option,
    sides_options,
)
from brokerwq.cli.options import json_option
from brokerwq.cli.output import as_json
from brokerwq.cli.progress import progress
from brokerwq.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from brokerwq.migrate import Migration
    from brokerwq.migrate.migration import Status

T = TypeVar("T")

_LOOK_SECONDS = 2.0


def _ask(
    sides: Sides, question: Callable[[Migration], Awaitable[T]], *, creates: bool = False
) -> T:
    """What the migration, connected to both sides, answers to ``question``."""

    async def ask() -> T:
        async with sides.opened(creates=creates) as migration:
            return await question(migration)

    return run_async(ask)


def _tell(
    found: T,
    to_json: Callable[[T], object],
    show: Callable[[T], object],
    *,
    json_: bool,
    is_well: bool,
) -> None:
    """Print ``found``, for programs or for people; exit code 1 unless it ``is_well``."""
    if json_:
        as_json(to_json(found))
    else:
        show(found)
    if not is_well:
        raise FinishedWithError(ExitCode.DEAD_LETTERS)


@click.group()
def migrate() -> None:
    """Move queues to another broker while producers and workers go on.

    SRC and DST are broker URLs. The playbook is in docs/migration.md.
    """


@migrate.command("plan")
@sides_options
@sample_option
@json_option
def plan(*, sides: Sides, sample: int, json_: bool) -> None:
    """Say what would change and what cannot be moved.

    Nothing is changed: messages are claimed for a moment and put back uncounted. Exit code 1 if
    a message does not fit, or if DST is known not to let one send.
    """
    _show_plan(sides, sample, back=False, json_=json_)


def _show_plan(sides: Sides, sample: int, *, back: bool, json_: bool) -> None:
    found = _ask(sides, lambda migration: migration.plan(sample=sample, back=back))
    _tell(found, words.plan_json, words.show_plan, json_=json_, is_well=found.fits)


@migrate.command("run")
@sides_options
@moving_options
def run(*, sides: Sides, **options: Any) -> None:
    """Move messages until SRC is empty.

    Each is copied under its own id, and deleted at SRC once DST has confirmed the copy. It may
    be killed and started again at any time, and several may run at once. Exit code 1 if
    messages that do not fit were left.
    """
    _move(sides, back=False, **options)


@migrate.command("rollback")
@sides_options
@moving_options
def rollback(*, sides: Sides, **options: Any) -> None:
    """Move everything back, from DST to SRC.

    SRC and DST are as they were for run.
    """
    _move(sides, back=True, **options)


def _move(
    sides: Sides,
    *,
    back: bool,
    rate: float | None,
    settle: Fraction,
    patience: Fraction,
    lease: Fraction,
    no_wait: bool,
    no_declare: bool,
    sample: int,
    dry_run: bool,
    json_: bool,
) -> None:
    if dry_run:
        _show_plan(sides, sample, back=back, json_=json_)
        return
    with progress("rollback" if back else "migrate") as bar:
        report = _ask(
            sides,
            lambda migration: migration.run(
                back=back,
                declare=not no_declare,
                rate=rate,
                settle=float(settle),
                patience=float(patience),
                lease=float(lease),
                waits=not no_wait,
                on_progress=lambda report: bar.update(report.moved, note=words.note_of(report)),
            ),
            creates=True,
        )
    _tell(report, words.report_json, words.show_report, json_=json_, is_well=not report.refused)


@migrate.command("status")
@sides_options
@settle_option("60s", "The old side must have stayed empty for so long.")
@click.option("--wait", is_flag=True, help="Look again until it has.")
@click.option("--back", is_flag=True, help="Of the rollback.")
@json_option
def status(*, sides: Sides, settle: Fraction, wait: bool, back: bool, json_: bool) -> None:
    """Count both sides, and say whether the old one is empty.

    Exit code 1 as long as it is not empty, or has not stayed so for --settle.
    """
    seconds = float(settle)

    async def look(migration: Migration) -> Status:
        while True:
            found = await migration.status(back=back)
            if not wait or found.is_empty(seconds):
                return found
            await SYSTEM_CLOCK.sleep(min(_LOOK_SECONDS, max(seconds / 4, 0.1)))

    found = _ask(sides, look)
    _tell(
        found,
        lambda found: words.status_json(found, seconds),
        lambda found: words.show_status(found, seconds),
        json_=json_,
        is_well=found.is_empty(seconds),
    )


@migrate.command("verify")
@sides_options
@click.option(
    "--workers-run", is_flag=True, help="Workers take messages at DST: what is gone was run."
)
@json_option
def verify(*, sides: Sides, workers_run: bool, json_: bool) -> None:
    """Compare both sides with the ledger, message by message.

    What is looked at is claimed for the time of the look and put back uncounted. Exit code 1 if
    it does not add up.
    """
    found = _ask(sides, lambda migration: migration.verify(workers_run=workers_run))
    _tell(
        found, words.verification_json, words.show_verification, json_=json_, is_well=found.adds_up
    )


@migrate.command("finish")
@sides_options
@settle_option("60s", "The old side must have stayed empty for so long, by status.")
@click.option("--leave-refused", is_flag=True, help="What does not fit may stay at SRC.")
@click.option(
    "--assume-idle", is_flag=True, help="No worker holds messages at SRC, though it cannot tell."
)
@click.option("--dry-run", is_flag=True, help="Only say what speaks against it.")
def finish(
    *,
    sides: Sides,
    settle: Fraction,
    leave_refused: bool,
    assume_idle: bool,
    dry_run: bool,
) -> None:
    """Close the migration, if the old side is empty.

    No mover can start any more. Exit code 1 if something speaks against it.
    """
    objections = _ask(
        sides,
        lambda migration: migration.finish(
            settle=float(settle),
            leave_refused=leave_refused,
            assume_idle=assume_idle,
            dry_run=dry_run,
        ),
    )
    for objection in objections:
        say(objection)
    if objections:
        raise FinishedWithError(ExitCode.DEAD_LETTERS)
    click.echo("nothing speaks against it" if dry_run else "finished")

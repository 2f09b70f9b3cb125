"""``brokerwq migrate``: move queues to another broker while work goes on, and prove it."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from brokerwq.cli import migrate_words as words
from brokerwq.cli.connection import CONNECT_TIMEOUT
from brokerwq.cli.failure import ExitCode, FinishedWithError, say
from brokerwq.cli.loop import run_async
from brokerwq.cli.output import as_json
from brokerwq.cli.progress import progress
from brokerwq.cli.values import duration, duration_or_zero, rate_a_second
from brokerwq.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from brokerwq.migrate import Migration
    from brokerwq.migrate.migration import Status

T = TypeVar("T")
Verb: TypeAlias = Callable[..., None]

_LOOK_SECONDS = 2.0
_EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class Sides:
    """What a verb works on: from where to where, and which queues."""

    source: str
    target: str
    queues: dict[str, str]
    ledger: str
    app_spec: str | None

    @asynccontextmanager
    async def opened(self, *, creates: bool) -> AsyncGenerator[Migration]:
        """The migration, connected to both sides; a look makes no file."""
        from brokerwq.cli.target import load_app
        from brokerwq.migrate import Migration

        specs = [] if self.app_spec is None else load_app(self.app_spec).queue_specs()
        async with Migration(
            self.source,
            self.target,
            self.queues,
            ledger=self.ledger,
            specs=specs,
            connect_timeout=CONNECT_TIMEOUT,
            creates=creates,
        ) as migration:
            yield migration


def _sides_options(command: Verb) -> Verb:
    """Add SRC, DST and what names the migration; the verb gets ``sides``."""

    @functools.wraps(command)
    def verb(
        *,
        src: str,
        dst: str,
        names: tuple[str, ...],
        ledger: str,
        app_spec: str | None,
        **others: Any,
    ) -> None:
        command(sides=Sides(src, dst, _queues(names), ledger, app_spec), **others)

    options = (
        click.argument("src"),
        click.argument("dst"),
        click.option(
            "--queue",
            "names",
            multiple=True,
            metavar="OLD[=NEW]",
            help="This queue, under another name there; may be repeated. Without it: those of "
            "the ledger, or all that SRC lists.",
        ),
        click.option(
            "--ledger",
            default="sqlite:///brokerwq-migration.db",
            show_default=True,
            metavar="URL",
            help="What was moved, by id; shared by all movers of one migration.",
        ),
        click.option(
            "--app", "app_spec", metavar="MODULE:ATTR", help="The app that says how queues are."
        ),
    )
    return functools.reduce(lambda inner, option: option(inner), reversed(options), verb)


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


def _queues(names: tuple[str, ...]) -> dict[str, str]:
    queues: dict[str, str] = {}
    for name in names:
        old, separator, new = name.partition("=")
        if not old or (separator and not new) or old in queues:
            msg = f"--queue {name!r:.200} must be OLD or OLD=NEW, each OLD once"
            raise click.UsageError(msg, click.get_current_context())
        queues[old] = new or old
    return queues


def _sample(_: click.Context, parameter: click.Parameter, value: str) -> int:
    from brokerwq.migrate.looking import ALL

    if value == _EVERYTHING:
        return ALL
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:10]) <= ALL:
        msg = f"{value!r:.100} must be a number from 1 to {ALL:,}, or all"
        raise click.BadParameter(msg, param=parameter)
    return int(value)


_sample_option = click.option(
    "--sample",
    default="1000",
    show_default=True,
    metavar="N",
    callback=_sample,
    help="Messages of each queue to look at, or all.",
)


def _settle_option(default: str, meaning: str) -> Callable[[Verb], Verb]:
    return click.option(
        "--settle",
        callback=duration_or_zero,
        default=default,
        show_default=True,
        metavar="DURATION",
        help=meaning,
    )


_json_option = click.option("--json", "json_", is_flag=True, help="Print JSON.")


@click.group()
def migrate() -> None:
    """Move queues to another broker while producers and workers go on.

    SRC and DST are broker URLs. The playbook is in docs/migration.md.
    """


@migrate.command("plan")
@_sides_options
@_sample_option
@_json_option
def plan(*, sides: Sides, sample: int, json_: bool) -> None:
    """Say what would change and what cannot be moved.

    Nothing is changed: messages are claimed for a moment and put back uncounted. Exit code 1 if
    a message does not fit.
    """
    _show_plan(sides, sample, back=False, json_=json_)


def _show_plan(sides: Sides, sample: int, *, back: bool, json_: bool) -> None:
    found = _ask(sides, lambda migration: migration.plan(sample=sample, back=back))
    _tell(found, words.plan_json, words.show_plan, json_=json_, is_well=found.fits)


def _moving_options(command: Verb) -> Verb:
    options = (
        click.option(
            "--rate", callback=rate_a_second, metavar="N", help="Messages a second at most."
        ),
        _settle_option("5s", "Nothing must be left for so long before it ends."),
        click.option(
            "--patience",
            callback=duration,
            default="60s",
            show_default=True,
            metavar="DURATION",
            help="How long a broker in trouble is asked again.",
        ),
        click.option(
            "--lease",
            callback=duration,
            default="60s",
            show_default=True,
            metavar="DURATION",
            help="What a killed mover held comes back after so long.",
        ),
        click.option(
            "--no-wait", is_flag=True, help="Do not wait for what is delayed or held by workers."
        ),
        click.option(
            "--no-declare", is_flag=True, help="Do not make queues that are missing there."
        ),
        _sample_option,
        click.option("--dry-run", is_flag=True, help="The same as plan: move nothing."),
        _json_option,
    )
    return functools.reduce(lambda inner, option: option(inner), reversed(options), command)


@migrate.command("run")
@_sides_options
@_moving_options
def run(*, sides: Sides, **options: Any) -> None:
    """Move messages until SRC is empty.

    Each is copied under its own id, and deleted at SRC once DST has confirmed the copy. It may
    be killed and started again at any time, and several may run at once. Exit code 1 if
    messages that do not fit were left.
    """
    _move(sides, back=False, **options)


@migrate.command("rollback")
@_sides_options
@_moving_options
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
@_sides_options
@_settle_option("60s", "The old side must have stayed empty for so long.")
@click.option("--wait", is_flag=True, help="Look again until it has.")
@click.option("--back", is_flag=True, help="Of the rollback.")
@_json_option
def status(*, sides: Sides, settle: Fraction, wait: bool, back: bool, json_: bool) -> None:
    """Count both sides, and say whether the old one is empty and stays empty.

    Exit code 1 as long as it is not.
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
@_sides_options
@click.option(
    "--workers-run", is_flag=True, help="Workers take messages at DST: what is gone was run."
)
@_json_option
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
@_sides_options
@_settle_option("60s", "The old side must have stayed empty for so long, by status.")
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
    """Close the migration, if the old side is empty: no mover can start any more.

    Exit code 1 if something speaks against it.
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

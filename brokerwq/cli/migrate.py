"""``brokerwq migrate``: move queues to another broker while work goes on, and prove it."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from brokerwq.cli import migrate_words as words
from brokerwq.cli.connection import CONNECT_TIMEOUT
from brokerwq.cli.failure import ExitCode, FinishedWithError, say
from brokerwq.cli.loop import run_async
from brokerwq.cli.output import as_json
from brokerwq.cli.progress import Progress, progress
from brokerwq.cli.values import duration, duration_or_zero, rate_a_second
from brokerwq.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from brokerwq.migrate import Migration, MigrationPlan, MoveReport, Verification
    from brokerwq.migrate.migration import Status

Verb: TypeAlias = Callable[..., None]

_LOOK_SECONDS = 2.0
_EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class Route:
    """From where to where, opened when a verb needs it."""

    source: str
    target: str
    queues: dict[str, str]
    ledger: str
    app_spec: str | None

    @asynccontextmanager
    async def opened(self, *, creates: bool = False) -> AsyncGenerator[Migration]:
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


def _route_options(command: Verb) -> Verb:
    """Add SRC, DST and what names the migration; the verb gets a ``route``."""

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
        command(route=Route(src, dst, _queues(names), ledger, app_spec), **others)

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
_json_option = click.option("--json", "json_", is_flag=True, help="Print JSON.")


@click.group()
def migrate() -> None:
    """Move queues to another broker while producers and workers go on.

    SRC and DST are broker URLs. The playbook is in docs/migration.md.
    """


@migrate.command("plan")
@_route_options
@_sample_option
@_json_option
def plan(*, route: Route, sample: int, json_: bool) -> None:
    """Say what would change and what cannot be moved.

    Nothing is changed: messages are claimed for a moment and put back uncounted. Exit code 1 if
    a message does not fit.
    """
    _show_plan(run_async(lambda: _plan(route, sample)), json_=json_)


async def _plan(route: Route, sample: int) -> MigrationPlan:
    async with route.opened() as migration:
        return await migration.plan(sample=sample)


def _show_plan(found: MigrationPlan, *, json_: bool) -> None:
    if json_:
        as_json(words.plan_json(found))
    else:
        words.show_plan(found)
    if not found.fits:
        raise FinishedWithError(ExitCode.DEAD_LETTERS)


def _moving_options(command: Verb) -> Verb:
    options = (
        click.option(
            "--rate", callback=rate_a_second, metavar="N", help="Messages a second at most."
        ),
        click.option(
            "--settle",
            callback=duration_or_zero,
            default="5s",
            show_default=True,
            metavar="DURATION",
            help="Nothing must be left for so long before it ends.",
        ),
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
@_route_options
@_moving_options
def run(*, route: Route, **options: Any) -> None:
    """Move messages until SRC is empty.

    Each is copied under its own id, and deleted at SRC once DST has confirmed the copy. It may
    be killed and started again at any time, and several may run at once. Exit code 1 if
    messages that do not fit were left.
    """
    _move(route, back=False, **options)


@migrate.command("rollback")
@_route_options
@_moving_options
def rollback(*, route: Route, **options: Any) -> None:
    """Move everything back, from DST to SRC.

    SRC and DST are as they were for run.
    """
    _move(route, back=True, **options)


def _move(
    route: Route,
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
        _show_plan(run_async(lambda: _plan_of(route, sample, back=back)), json_=json_)
        return

    async def move(bar: Progress) -> MoveReport:
        async with route.opened(creates=True) as migration:
            return await migration.run(
                back=back,
                declare=not no_declare,
                rate=rate,
                settle=float(settle),
                patience=float(patience),
                lease=float(lease),
                waits=not no_wait,
                on_progress=lambda report: bar.update(report.moved, note=words.note_of(report)),
            )

    with progress("rollback" if back else "migrate") as bar:
        report = run_async(lambda: move(bar))
    if json_:
        as_json(words.report_json(report))
    else:
        words.show_report(report)
    if report.refused:
        raise FinishedWithError(ExitCode.DEAD_LETTERS)


async def _plan_of(route: Route, sample: int, *, back: bool) -> MigrationPlan:
    async with route.opened() as migration:
        return await migration.plan(sample=sample, back=back)


@migrate.command("status")
@_route_options
@click.option(
    "--settle",
    callback=duration_or_zero,
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="The old side must have stayed empty for so long.",
)
@click.option("--wait", is_flag=True, help="Look again until it has.")
@click.option("--back", is_flag=True, help="Of the rollback.")
@_json_option
def status(*, route: Route, settle: Fraction, wait: bool, back: bool, json_: bool) -> None:
    """Count both sides, and say whether the old one is empty and stays empty.

    Exit code 1 as long as it is not.
    """

    async def look() -> Status:
        async with route.opened() as migration:
            while True:
                found = await migration.status(back=back)
                if not wait or found.is_empty(float(settle)):
                    return found
                await SYSTEM_CLOCK.sleep(min(_LOOK_SECONDS, max(float(settle) / 4, 0.1)))

    found = run_async(look)
    if json_:
        as_json(words.status_json(found, float(settle)))
    else:
        words.show_status(found, float(settle))
    if not found.is_empty(float(settle)):
        raise FinishedWithError(ExitCode.DEAD_LETTERS)


@migrate.command("verify")
@_route_options
@click.option(
    "--workers-run", is_flag=True, help="Workers take messages at DST: what is gone was run."
)
@_json_option
def verify(*, route: Route, workers_run: bool, json_: bool) -> None:
    """Compare both sides with the ledger, message by message.

    What is looked at is claimed for the time of the look and put back uncounted. Exit code 1 if
    it does not add up.
    """

    async def compare() -> Verification:
        async with route.opened() as migration:
            return await migration.verify(workers_run=workers_run)

    found = run_async(compare)
    if json_:
        as_json(words.verification_json(found))
    else:
        words.show_verification(found)
    if not found.adds_up:
        raise FinishedWithError(ExitCode.DEAD_LETTERS)


@migrate.command("finish")
@_route_options
@click.option(
    "--settle",
    callback=duration_or_zero,
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="The old side must have stayed empty for so long, by status.",
)
@click.option("--leave-refused", is_flag=True, help="What does not fit may stay at SRC.")
@click.option(
    "--assume-idle", is_flag=True, help="No worker holds messages at SRC, though it cannot tell."
)
@click.option("--dry-run", is_flag=True, help="Only say what speaks against it.")
def finish(
    *,
    route: Route,
    settle: Fraction,
    leave_refused: bool,
    assume_idle: bool,
    dry_run: bool,
) -> None:
    """Close the migration, if the old side is empty: no mover can start any more.

    Exit code 1 if something speaks against it.
    """

    async def close() -> list[str]:
        async with route.opened() as migration:
            return await migration.finish(
                settle=float(settle),
                leave_refused=leave_refused,
                assume_idle=assume_idle,
                dry_run=dry_run,
            )

    objections = run_async(close)
    for objection in objections:
        say(objection)
    if objections:
        raise FinishedWithError(ExitCode.DEAD_LETTERS)
    click.echo("nothing speaks against it" if dry_run else "finished")

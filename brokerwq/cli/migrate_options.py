"""What the verbs of ``brokerwq migrate`` take."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from brokerwq.cli.connection import CONNECT_TIMEOUT
from brokerwq.cli.options import Verb, json_option, with_options
from brokerwq.cli.values import duration, duration_or_zero, rate_a_second

if TYPE_CHECKING:
    from brokerwq.migrate import Migration


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


def sides_options(command: Verb) -> Verb:
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
            help="What was moved, by id; shared by all movers of one migration. On several "
            "machines: postgresql://…",
        ),
        click.option(
            "--app", "app_spec", metavar="MODULE:ATTR", help="The app that says how queues are."
        ),
    )
    return with_options(options, verb)


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


sample_option = click.option(
    "--sample",
    default="1000",
    show_default=True,
    metavar="N",
    callback=_sample,
    help="Messages of each queue to look at, or all.",
)


def settle_option(default: str, meaning: str) -> Callable[[Verb], Verb]:
    """How long nothing may have been there, ``default`` if it is not said."""
    return click.option(
        "--settle",
        callback=duration_or_zero,
        default=default,
        show_default=True,
        metavar="DURATION",
        help=meaning,
    )


def moving_options(command: Verb) -> Verb:
    """Add what ``run`` and ``rollback`` take."""
    options = (
        click.option(
            "--rate", callback=rate_a_second, metavar="N", help="Messages a second at most."
        ),
        settle_option("5s", "Nothing must be left for so long before it ends."),
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
        sample_option,
        click.option("--dry-run", is_flag=True, help="The same as plan: move nothing."),
        json_option,
    )
    return with_options(options, command)

"""``brokerwq queues declare``: makes what is missing, and compares what is there."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from brokerwq.cli.connection import Target, broker_options, opened, targets_of
from brokerwq.cli.failure import ExitCode, FinishedWithError, code_of, say
from brokerwq.cli.loop import run_async
from brokerwq.cli.output import shown
from brokerwq.cli.values import duration
from brokerwq.driver.registry import redacted
from brokerwq.errors import (
    BrokerMissingError,
    BrokerwqError,
    ConfigError,
    QueueNotFoundError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from brokerwq.driver import Difference, Driver, QueueSpec


@click.command("declare")
@click.argument("queue", required=False)
@broker_options
@click.option("--lease", callback=duration, metavar="DURATION", help="How long a claim lasts.")
@click.option("--dead-letter", metavar="QUEUE", help="Its dead-letter queue; else QUEUE-dead.")
@click.option("--dead-letters-only", is_flag=True, help="Create its dead-letter queue alone.")
@click.option("--retention", callback=duration, metavar="DURATION", help="How long it keeps.")
@click.option("--ordered", is_flag=True, help="Keep the order within groups.")
@click.option("--dry-run", is_flag=True, help="Compare only, create nothing.")
def declare(
    *,
    queue: str | None,
    url: str | None,
    app_spec: str | None,
    lease: Fraction | None,
    dead_letter: str | None,
    dead_letters_only: bool,
    retention: Fraction | None,
    ordered: bool,
    dry_run: bool,
) -> None:
    """Create QUEUE and its dead-letter queue, or all of an app.

    For an app with several brokers it does so at each of them. What exists is compared and
    never changed; a difference ends with exit code 4. With
    --dead-letters-only, QUEUE belongs to others and is left alone; without QUEUE, that is
    done for each such queue of the app.
    """
    from brokerwq.driver import QueueSpec

    targets = targets_of(url, app_spec)
    target = targets[0]
    if queue is None:
        if dead_letter is not None or lease is not None or retention is not None or ordered:
            msg = "say of which QUEUE: an app says all of its queues by itself"
            raise click.UsageError(msg, click.get_current_context())
        specs = _specs_of_app(target, dead_letters_only=dead_letters_only)
    elif dead_letters_only:
        if lease is not None or retention is not None or ordered:
            msg = "--dead-letters-only leaves QUEUE as it is: no --lease, --retention, --ordered"
            raise click.UsageError(msg, click.get_current_context())
        known = {spec.name: spec for spec in target.specs()}
        spec = known.get(queue, QueueSpec(name=queue))
        specs = [spec if dead_letter is None else replace(spec, dead_letter=dead_letter)]
    else:
        from brokerwq.workers.names import check_name

        specs = [
            QueueSpec(
                name=check_name(queue, "queue"),
                dead_letter=dead_letter,
                lease=None if lease is None else float(lease),
                retention=None if retention is None else float(retention),
                ordered=ordered,
            )
        ]
    declared = partial(
        _declare_all, specs=specs, dead_letters_only=dead_letters_only, dry_run=dry_run
    )
    if len(targets) == 1:
        code = _told(run_async(partial(declared, target.url)))
    else:
        code = max(_at_one_of_several(each.url, declared) for each in targets)
    if code is not ExitCode.DONE:
        raise FinishedWithError(code)


def _at_one_of_several(
    url: str, declared: Callable[[str], Coroutine[Any, Any, Sequence[Difference]]]
) -> ExitCode:
    """Declare at one broker; its trouble keeps nobody from the others."""
    click.echo(redacted(url))
    try:
        return _told(run_async(partial(declared, url)))
    except BrokerwqError as error:
        say(f"{redacted(url)}: {error}")
        return code_of(error)


def _told(differences: Sequence[Difference]) -> ExitCode:
    """Say what differs, and what mends it."""
    fixes: dict[str, None] = {}
    for difference in differences:
        click.echo(str(difference))
        fixes |= {difference.fix: None} if difference.fix else {}
    for fix in fixes:
        click.echo(f"  to mend it: {fix}")
    return ExitCode.DIFFERS if differences else ExitCode.DONE


def _specs_of_app(target: Target, *, dead_letters_only: bool) -> list[QueueSpec]:
    """The queues of the app that are to be declared; says which are not, and why."""
    specs = target.specs()
    if not specs:
        msg = "name a queue, or an app that has queues"
        raise click.UsageError(msg, click.get_current_context())
    theirs = [spec for spec in specs if spec.declare == "never"]
    if not dead_letters_only:
        for spec in theirs:
            click.echo(f"{shown(spec.name)}: belongs to others, is not declared")
        return [spec for spec in specs if spec.declare != "never"]
    if not theirs:
        msg = "none of the app's queues belongs to others; name a QUEUE"
        raise ConfigError(msg)
    for spec in theirs:
        if not _needs_dead_letter_queue(spec):
            click.echo(f"{shown(spec.name)}: needs no dead-letter queue")
    return [spec for spec in theirs if _needs_dead_letter_queue(spec)]


def _needs_dead_letter_queue(spec: QueueSpec) -> bool:
    return spec.on_dead != "hold" and spec.dead_letter_via is None


async def _declare_all(
    url: str, *, specs: Sequence[QueueSpec], dead_letters_only: bool, dry_run: bool
) -> list[Difference]:
    from brokerwq.driver.spec import check_spec

    for spec in specs:
        check_spec(spec)
    differences: list[Difference] = []
    try:
        async with opened(url, creates=not dry_run) as driver:
            for spec in specs:
                if dead_letters_only:
                    differences += await _declare_dead_letter(driver, spec, dry_run=dry_run)
                else:
                    differences += await _declare(driver, spec, dry_run=dry_run)
    except BrokerMissingError:
        if not dry_run:  # by create=false in the URL
            raise
        say(f"{redacted(url)} is not there; it would be made")
        for spec in specs:
            name, dead = shown(spec.name), shown(spec.dead_letter_queue)
            if dead_letters_only:
                click.echo(f"{dead}: would be created")
            else:
                click.echo(f"{name}: would be created, with {dead}")
    return differences


async def _declare(driver: Driver, spec: QueueSpec, *, dry_run: bool) -> Sequence[Difference]:
    may_create = spec.declare == "create"
    is_there, is_whole = True, True
    found: Sequence[Difference] = ()
    try:
        found = await driver.declare(spec, check_only=True)
    except QueueNotFoundError:
        if not may_create:
            raise
        is_whole, is_there = False, await _is_there(driver, spec.name)
    if may_create and not dry_run:
        found = await driver.declare(spec)
    if not found:
        name, dead = shown(spec.name), shown(spec.dead_letter_queue)
        would = "would be " if dry_run else ""
        if is_whole:
            click.echo(f"{name}: as it should be")
        elif is_there:
            click.echo(f"{name}: what it lacked {would or 'was '}created")
        else:
            click.echo(f"{name}: {would}created, with {dead}")
    return found


async def _is_there(driver: Driver, queue: str) -> bool:
    try:
        await driver.inspect(queue)
    except QueueNotFoundError:
        return False
    return True


async def _declare_dead_letter(
    driver: Driver, spec: QueueSpec, *, dry_run: bool
) -> Sequence[Difference]:
    from brokerwq.driver.doctor import DeadLetterMaker

    if not isinstance(driver, DeadLetterMaker):
        msg = f"this broker cannot make the dead-letter queue of {spec.name} alone"
        raise UnsupportedError(msg)
    name = shown(spec.dead_letter_queue)
    try:
        found = await driver.declare_dead_letter(spec, check_only=True)
    except QueueNotFoundError:
        if dry_run:
            click.echo(f"{name}: would be created")
            return ()
        found = await driver.declare_dead_letter(spec)
        if not found:
            click.echo(f"{name}: created")
        return found
    if not found:
        click.echo(f"{name}: as it should be")
    return found

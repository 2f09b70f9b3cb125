"""``brokerwq services``: RabbitMQ and SQS on this machine, for tests and for trying things out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from brokerwq.cli.failure import ExitCode, FinishedWithError, say
from brokerwq.cli.options import json_option
from brokerwq.cli.output import as_json, table

if TYPE_CHECKING:
    from brokerwq.testing.servers.kinds import Kind, Service

_KINDS = ("rabbitmq", "sqs")
_names = click.argument("kinds", nargs=-1, type=click.Choice(_KINDS), metavar="[rabbitmq|sqs]...")


@click.group()
def services() -> None:
    """Start and stop a RabbitMQ and an SQS on this machine.

    SQS is LocalStack's. In Docker where an engine answers, else as processes. What they need is
    installed first, which takes minutes the first time.
    """


@services.command()
@_names
@json_option
@click.option("--env", "env_", is_flag=True, help="Print export lines for a shell.")
def up(*, kinds: tuple[str, ...], json_: bool, env_: bool) -> None:
    """Start them, or those that are named, and leave them running.

    What runs already is left as it is. eval "$(brokerwq services up --env)" makes a shell, and
    the tests that are run in it, use them.
    """
    if json_ and env_:
        msg = "--json and --env exclude each other"
        raise click.UsageError(msg, click.get_current_context())
    with ThreadPoolExecutor(len(_KINDS)) as pool:
        outcomes = list(pool.map(_up, _chosen(kinds)))
    started = [each for each in outcomes if not isinstance(each, str)]
    if json_:
        as_json([_record(service.kind, service) for service in started])
    elif env_:
        _print_exports(started)
    else:
        _print_table([(service.kind, service) for service in started])
    for error in outcomes:
        if isinstance(error, str):
            say(error)
    if len(started) < len(outcomes):
        raise FinishedWithError(ExitCode.UNREACHABLE)


@services.command()
@_names
def down(*, kinds: tuple[str, ...]) -> None:
    """Stop what "services up" has started, and nothing else."""
    from brokerwq.testing.servers import shared
    from brokerwq.testing.servers.installation import ServerUnavailableError

    for kind in _chosen(kinds):
        try:
            stopped = shared.down(kind, _folder())
        except ServerUnavailableError as exc:
            say(str(exc))
            raise FinishedWithError(ExitCode.UNREACHABLE) from exc
        click.echo(f"{kind} stopped" if stopped else f"{kind} was not running")


@services.command()
@_names
@json_option
def status(*, kinds: tuple[str, ...], json_: bool) -> None:
    """Tell what "services up" has started, and whether it answers.

    Exit code 3 if any does not.
    """
    from brokerwq.testing.servers import shared

    found = [(kind, shared.running(kind, _folder())) for kind in _chosen(kinds)]
    if json_:
        as_json([_record(kind, service) for kind, service in found])
    else:
        _print_table(found)
    asked = [service for _, service in found if kinds or service is not None]
    if not asked or any(_state(service) != "running" for service in asked):
        raise FinishedWithError(ExitCode.UNREACHABLE)


def _chosen(kinds: tuple[str, ...]) -> list[Kind]:
    return [cast("Kind", kind) for kind in dict.fromkeys(kinds or _KINDS)]


def _folder() -> Path:
    from brokerwq.testing.servers.installation import cache_folder

    return cache_folder() / "services"


def _up(kind: Kind) -> Service | str:
    from brokerwq.testing.servers import shared
    from brokerwq.testing.servers.installation import ServerUnavailableError

    if shared.running(kind, _folder()) is None:
        say(f"starting {kind}")
    try:
        return shared.up(kind, _folder())
    except ServerUnavailableError as exc:
        return f"{kind} cannot be started: {exc}"


def _state(service: Service | None) -> str:
    from brokerwq.testing.servers.kinds import answers

    if service is None:
        return "not running"
    return "running" if answers(service) else "does not answer"


def _record(kind: str, service: Service | None) -> dict[str, Any]:
    record: dict[str, Any] = {"service": kind, "state": _state(service)}
    if service is not None:
        record |= {"url": service.url, "environment": dict(service.environment)}
    return record


def _print_table(found: Sequence[tuple[str, Service | None]]) -> None:
    table(
        ["SERVICE", "STATE", "URL"],
        [[kind, _state(service), service.url if service else ""] for kind, service in found],
    )


def _print_exports(started: list[Service]) -> None:
    if not started:
        return
    lines = {"BROKERWQ_URL": started[0].url}
    for service in started:
        lines |= service.environment
    for name, value in lines.items():
        click.echo(f"export {name}={shlex.quote(value)}")

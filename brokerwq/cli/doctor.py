"""``brokerwq doctor``: what of a broker's set-up is missing or weak, and what would mend it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from brokerwq.cli.connection import Target, broker_options, opened, targets_of
from brokerwq.cli.failure import ExitCode, FinishedWithError, code_of, one_line
from brokerwq.cli.loop import run_async
from brokerwq.cli.options import json_option
from brokerwq.cli.output import as_json, shown, table
from brokerwq.cli.target import is_spec
from brokerwq.driver.registry import redacted
from brokerwq.errors import BrokerwqError, ConfigError, DriverError, QueueNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerwq.driver import Capabilities, Driver, QueueSpec
    from brokerwq.driver.doctor import Finding


@click.command()
@click.argument("names", nargs=-1, metavar="[MODULE:ATTR] [QUEUE]...")
@broker_options
@json_option
def doctor(*, names: tuple[str, ...], url: str | None, app_spec: str | None, json_: bool) -> None:
    """Examine queues, and change nothing.

    Those of an app, or those that are named. Prints what the broker can do, then each finding
    with what would mend it; of an app with several brokers, for each of them. An error is exit
    code 4; where it only keeps a run from a queue of others, the exit code of that run.
    """
    if names and url is None and app_spec is None and is_spec(names[0]):
        app_spec, names = names[0], names[1:]  # as run takes it
    targets = targets_of(url, app_spec)
    specs = _specs(targets[0], names)
    reports: list[_Report] = []
    for target in targets:
        try:
            report = run_async(partial(_examine, target, specs))
        except BrokerwqError as error:
            if len(targets) == 1:
                raise
            report = _Report(target.url, None, [_out_of_reach(target, error)], code_of(error))
        if not json_:
            report.show(is_first=not reports)
        reports.append(report)
    if json_:
        told = [report.told() for report in reports]
        as_json(told if len(targets) > 1 else told[0])
    code = max(report.code for report in reports)
    if code is not ExitCode.DONE:
        raise FinishedWithError(code)


@dataclass(frozen=True, slots=True)
class _Report:
    """What was found at one broker; no capabilities where it could not be asked."""

    url: str
    capabilities: Capabilities | None
    findings: list[Finding]
    code: ExitCode

    def told(self) -> dict[str, Any]:
        """For programs."""
        return {
            "url": redacted(self.url),
            "capabilities": _capabilities(self.capabilities),
            "findings": [asdict(finding) for finding in self.findings],
        }

    def show(self, *, is_first: bool) -> None:
        """For people."""
        if not is_first:
            click.echo()
        click.echo(redacted(self.url))
        if capabilities := _capabilities(self.capabilities):
            table(
                ["CAPABILITY", "VALUE"],
                [[name, str(value)] for name, value in capabilities.items()],
            )
            click.echo()
        table(
            ["LEVEL", "SUBJECT", "FINDING", "FIX"],
            [[each.level, each.subject, shown(each.text), each.fix] for each in self.findings],
        )


def _out_of_reach(target: Target, error: BrokerwqError) -> Finding:
    from brokerwq.driver.doctor import Finding

    return Finding(subject=redacted(target.url), level="error", text=one_line(str(error)), fix="")


async def _examine(target: Target, specs: Sequence[QueueSpec]) -> _Report:
    from brokerwq.driver.doctor import Doctor

    async with opened(target.url) as driver:
        findings: list[Finding] = []
        codes: set[ExitCode] = set()
        for spec in specs:
            if isinstance(driver, Doctor):
                found = await driver.examine(spec)
            else:
                found = await _compare(driver, spec)
            findings += found
            if any(finding.level == "error" for finding in found):
                codes.add(await _code(driver, spec))
        code = max(codes, default=ExitCode.DONE)
        # What is true of the broker as a whole comes with each of its queues.
        once = list(dict.fromkeys(findings))
        return _Report(target.url, driver.capabilities, once, code)


async def _code(driver: Driver, spec: QueueSpec) -> ExitCode:
    """The exit code for errors that were found with the queue of ``spec``."""
    if spec.declare == "never":
        try:
            await driver.declare(spec.asked, check_only=True)
        except DriverError as error:
            return code_of(error)
    return ExitCode.DIFFERS


def _specs(target: Target, names: tuple[str, ...]) -> list[QueueSpec]:
    from brokerwq.driver import QueueSpec

    known = {spec.name: spec for spec in target.specs()}
    if not names and not known:
        msg = "no queue to examine: name some, or an app with --app"
        raise ConfigError(msg)
    return [known.get(name) or QueueSpec(name=name) for name in names or known]


async def _compare(driver: Driver, spec: QueueSpec) -> Sequence[Finding]:
    """What can be said of any broker: whether the queue is there, and as it should be."""
    from brokerwq.driver.doctor import Finding

    try:
        differences = await driver.declare(spec.asked, check_only=True)
    except QueueNotFoundError as error:
        fix = await _fix(driver, spec)
        return [Finding(subject=spec.name, level="error", text=str(error), fix=fix)]
    if not differences:
        return [Finding(subject=spec.name, level="ok", text="the queue is as it should be")]
    return [
        Finding(subject=spec.name, level="error", text=str(each), fix=each.fix)
        for each in differences
    ]


async def _fix(driver: Driver, spec: QueueSpec) -> str:
    """What makes the queue that is missing."""
    from brokerwq.driver.support import declare_command

    if spec.declare != "never":
        return declare_command(spec)
    try:
        await driver.inspect(spec.name)
    except QueueNotFoundError:
        return f"its owner makes it; if it is yours: {declare_command(spec)}"
    return declare_command(spec, dead_letters_only=True)


def _capabilities(capabilities: Capabilities | None) -> dict[str, Any]:
    if capabilities is None:
        return {}
    return {field.name: _plain(getattr(capabilities, field.name)) for field in fields(capabilities)}


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return "no limit" if value == math.inf else value

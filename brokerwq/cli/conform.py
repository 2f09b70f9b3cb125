"""``brokerwq conform``: whether a broker does what its adapter says."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from brokerwq.cli.failure import ExitCode, FinishedWithError
from brokerwq.cli.loop import run_async
from brokerwq.cli.options import json_option
from brokerwq.cli.output import as_json, shown
from brokerwq.cli.values import duration

if TYPE_CHECKING:
    from brokerwq.testing import CheckResult

_SIGNS = {"passed": "ok", "failed": "FAILED", "not applicable": "-", "not run": "not run"}


@click.command()
@click.argument("url")
@click.option("--only", "patterns", multiple=True, metavar="TEXT", help="Checks named like that.")
@click.option(
    "--lease", callback=duration, metavar="DURATION", help="Shortest lease it keeps well.  [1 s]"
)
@click.option("--list", "list_", is_flag=True, help="List the checks, run none.")
@json_option
def conform(
    *, url: str, patterns: tuple[str, ...], lease: Fraction | None, list_: bool, json_: bool
) -> None:
    """Run the conformance checks against the broker at URL.

    They make queues of their own, named bwq-conform-…, and touch no other. A check that does
    not apply to such a broker, or that needs more than a URL, is said not to have been run.
    Ends with 1 if a check failed.
    """
    from brokerwq.testing import select

    checks = select(patterns)
    if not checks:
        msg = f"no check is named like {' or '.join(patterns)}"
        raise click.UsageError(msg, click.get_current_context())
    if list_:
        for check in checks:
            click.echo(f"{check.name}  {check.summary}")
        return
    results = run_async(lambda: _run(url, patterns, lease, quiet=json_))
    counts = Counter(result.verdict.value for result in results)
    if json_:
        as_json([_record(result) for result in results])
    else:
        click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if counts["failed"]:
        raise FinishedWithError(ExitCode.DEAD_LETTERS)


async def _run(
    url: str, patterns: tuple[str, ...], lease: Fraction | None, *, quiet: bool
) -> list[CheckResult]:
    from brokerwq.testing import Harness, run_checks, select

    harness = Harness.from_url(url)
    if lease is not None:
        seconds = float(lease)
        harness = replace(
            harness, shortest_lease=seconds, patience=max(harness.patience, 5 * seconds)
        )
    results: list[CheckResult] = []
    async with aclosing(run_checks(harness, select(patterns))) as running:
        async for result in running:
            results.append(result)
            if not quiet:
                click.echo(_line(result))
    return results


def _line(result: CheckResult) -> str:
    reason = f"  {shown(result.reason, 400)}" if result.reason else ""
    sign = _SIGNS[result.verdict.value]
    return f"{sign:8} {result.check.name} ({result.seconds:.1f} s){reason}"


def _record(result: CheckResult) -> dict[str, object]:
    return {
        "check": result.check.name,
        "summary": result.check.summary,
        "verdict": result.verdict.value,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
    }

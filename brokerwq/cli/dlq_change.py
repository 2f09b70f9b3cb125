"""The verbs of ``brokerwq dlq`` that send back, delete, save and restore."""

from __future__ import annotations

import tempfile
from typing import IO, TYPE_CHECKING

import click

from brokerwq.cli.asking import confirm_by_name
from brokerwq.cli.choosing import require_choice, selection_options
from brokerwq.cli.dlq import Graveyard, graveyard_options, warn_if_partial
from brokerwq.cli.failure import ExitCode, FinishedWithError, say
from brokerwq.cli.loop import run_async
from brokerwq.cli.progress import Progress, progress
from brokerwq.cli.values import rate_a_second
from brokerwq.errors import EnvelopeError

if TYPE_CHECKING:
    from brokerwq.dead_letters import Report
    from brokerwq.dead_letters.selection import Letter, Selection
    from brokerwq.message import Message

MAX_FAILURES_SHOWN = 10


@click.command("redrive")
@graveyard_options
@selection_options
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--to", metavar="QUEUE", help="Send them there, not where each came from.")
@click.option("--limit", type=click.IntRange(1), help="So many at most.")
@click.option(
    "--rate", callback=rate_a_second, metavar="N", help="So many a second at most, e.g. 50 or 0.5."
)
@click.option("--dry-run", is_flag=True, help="Say how many it would be, change nothing.")
def redrive(
    *,
    graveyard: Graveyard,
    selection: Selection,
    everything: bool,
    to: str | None,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
) -> None:
    """Send them back to be run again.

    Attempts start afresh. A message keeps its id, body, headers and the note of why it died.
    It is deleted here once the broker has the copy; stopped half-way, a message may be there
    twice, never lost.
    """
    require_choice(selection, everything=everything)
    if dry_run:
        _say_how_many(graveyard, selection, limit, f"be sent to {to or 'where they came from'}")
        return

    async def send_back(bar: Progress) -> Report:
        async with graveyard.opened() as letters:
            return await letters.redrive(
                selection,
                to=to,
                limit=limit,
                rate=rate,
                on_progress=lambda report: bar.update(report.done),
            )

    with progress("redrive") as bar:
        report = run_async(lambda: send_back(bar))
    _finish(report, "sent back", limit)


@click.command("delete")
@graveyard_options
@selection_options
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--limit", type=click.IntRange(1), help="So many at most.")
@click.option("--yes", metavar="QUEUE", help="The queue's name once more, instead of being asked.")
@click.option("--dry-run", is_flag=True, help="Say how many it would be, delete nothing.")
def delete(
    *,
    graveyard: Graveyard,
    selection: Selection,
    everything: bool,
    limit: int | None,
    yes: str | None,
    dry_run: bool,
) -> None:
    """Delete them for good."""
    require_choice(selection, everything=everything)
    if dry_run:
        _say_how_many(graveyard, selection, limit, "be deleted")
        return
    which = "all" if everything else "the chosen"
    confirm_by_name(graveyard.queue, yes, f"delete {which} dead letters of {graveyard.queue}")

    async def remove(bar: Progress) -> Report:
        async with graveyard.opened() as letters:
            return await letters.delete(
                selection, limit=limit, on_progress=lambda report: bar.update(report.done)
            )

    with progress("delete") as bar:
        report = run_async(lambda: remove(bar))
    _finish(report, "deleted", limit)


@click.command("export")
@graveyard_options
@selection_options
@click.option("--limit", type=click.IntRange(1), help="So many at most.")
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=False), default="-")
def export(*, graveyard: Graveyard, selection: Selection, limit: int | None, file: IO[str]) -> None:
    """Write them as JSON lines.

    To FILE, or to standard output; they also stay where they are.
    """
    from brokerwq.dead_letters.export import left_out, line_of

    bare = 0
    examples: dict[str, None] = {}

    def write_one(letter: Letter) -> None:
        nonlocal bare
        file.write(f"{line_of(letter.message)}\n")
        names = left_out(letter.message)
        bare += bool(names)
        examples.update(dict.fromkeys(names))

    async def write() -> Report:
        async with graveyard.opened() as letters:
            return await letters.each(write_one, selection, limit=limit)

    report = run_async(write)
    file.flush()
    say(f"{report.matched:,} written")
    if bare:
        named = ", ".join(list(examples)[:3])
        say(
            f"{bare:,} without what only their own broker carries, such as {named}: "
            "dlq redrive keeps that, dlq import does not bring it back"
        )
    warn_if_partial(report)


@click.command("import")
@graveyard_options
@click.argument("file", type=click.File("r", encoding="utf-8", errors="surrogateescape"))
@click.option("--dry-run", is_flag=True, help="Read and check every line, send nothing.")
def import_(*, graveyard: Graveyard, file: IO[str], dry_run: bool) -> None:
    """Put exported ones back.

    Reads FILE; - reads a pipe. All lines are checked first: with one that is wrong, named by
    its number, nothing is sent.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape") as checked:
        count = 0
        for number, line in enumerate(file, 1):
            if line.strip():
                _message(line, number)
                checked.write(line if line.endswith("\n") else f"{line}\n")
                count += 1
        if dry_run:
            click.echo(f"{count:,} would be put into {graveyard.name}")
            return
        checked.seek(0)
        messages = (_message(line, number) for number, line in enumerate(checked, 1))

        async def put_in(bar: Progress) -> Report:
            async with graveyard.opened() as letters:
                return await letters.restore(
                    messages, on_progress=lambda report: bar.update(report.done, count)
                )

        with progress("import", count) as bar:
            report = run_async(lambda: put_in(bar))
    _finish(report, f"put into {graveyard.name}")


def _message(line: str, number: int) -> Message:
    from brokerwq.dead_letters.export import message_of

    try:
        return message_of(line)
    except EnvelopeError as exc:
        msg = f"line {number}: {exc}; nothing was sent"
        raise EnvelopeError(msg) from exc


def _say_how_many(graveyard: Graveyard, selection: Selection, limit: int | None, what: str) -> None:
    async def count() -> Report:
        async with graveyard.opened() as letters:
            return await letters.each(lambda _: None, selection, limit=limit)

    report = run_async(count)
    click.echo(f"{report.matched:,} would {what}")
    if limit is None:
        warn_if_partial(report)


def _finish(report: Report, done: str, limit: int | None = None) -> None:
    click.echo(f"{report.done:,} {done}" + (f", {report.failed:,} not" if report.failed else ""))
    for message_id, error in report.failures[:MAX_FAILURES_SHOWN]:
        say(f"{message_id or 'a message without id'}: {error}")
    if limit is None:
        warn_if_partial(report)
    if report.failed:
        raise FinishedWithError(ExitCode.UNREACHABLE)

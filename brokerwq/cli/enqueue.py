"""``brokerwq enqueue``: send messages from arguments, JSON, a file or a pipe."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from brokerwq.cli.failure import ExitCode, FinishedWithError, say
from brokerwq.cli.loop import run_async
from brokerwq.cli.progress import Progress, progress
from brokerwq.cli.running import app_and_rest, is_memory
from brokerwq.cli.values import duration_or_zero
from brokerwq.errors import ConfigError, EnvelopeError

if TYPE_CHECKING:
    from brokerwq.app import App
    from brokerwq.reports import SendReport
    from brokerwq.workers.decorating import AnyWorker

MAX_FAULTS_SHOWN = 10
_STDIN = "-"


@click.command()
@click.argument("arguments", nargs=-1, metavar="[MODULE:ATTR] WORKER [FIELD=TEXT]... [-]")
@click.option("--json", "document", metavar="JSON", help="The payload as JSON.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with a payload on each line, as JSON.",
)
@click.option("--queue", help="Its queue, where two workers have one name.")
@click.option(
    "--delay",
    callback=duration_or_zero,
    default="0",
    metavar="DURATION",
    help="Run them no sooner than so long from now.",
)
@click.option("--dry-run", is_flag=True, help="Check every payload, send nothing.")
def enqueue(
    *,
    arguments: tuple[str, ...],
    document: str | None,
    file: Path | None,
    queue: str | None,
    delay: Fraction,
    dry_run: bool,
) -> None:
    """Send messages to a worker of an app.

    FIELD=TEXT gives a field as text, which becomes a number where the worker wants one;
    FIELD:=JSON gives it as JSON. With --file, or - for a pipe, each line is one payload. A
    line that does not fit the worker is named and left out, and the exit code is 2.
    """
    app, _, rest = app_and_rest(arguments, "worker")
    if not rest:
        msg = f"name a worker: {', '.join(sorted(w.name for w in app.workers)) or 'there is none'}"
        raise click.UsageError(msg, click.get_current_context())
    worker = _worker_of(app, rest[0], queue)
    fields = rest[1:]
    if sum((bool(fields), document is not None, file is not None)) > 1:
        msg = "give fields, --json, --file or -, only one of them"
        raise click.UsageError(msg, click.get_current_context())
    if file is not None or fields == (_STDIN,):
        _send_lines(app, worker, file, float(delay), dry_run=dry_run)
    else:
        body = document if document is not None else json.dumps(_object_of(fields))
        _send_one(app, worker, body.encode(), float(delay), dry_run=dry_run)
    if is_memory(app.url) and not dry_run:
        say("memory:// ends with this command, and its messages with it")


def _worker_of(app: App, name: str, queue: str | None) -> AnyWorker:
    found = [w for w in app.workers if w.name == name and queue in (None, w.queue)]
    if len(found) == 1:
        return found[0]
    if found:
        msg = (
            f"{name} is on several queues: name one with --queue {'|'.join(w.queue for w in found)}"
        )
        raise ConfigError(msg)
    known = ", ".join(sorted(f"{w.name} (on {w.queue})" for w in app.workers)) or "none"
    where = f" on queue {queue}" if queue else ""
    msg = f"the app has no worker {name!r:.100}{where}; it has: {known}"
    raise ConfigError(msg)


def _object_of(fields: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields:
        name, sign, text = field.partition("=")
        if not sign or not name.rstrip(":"):
            msg = f"{field!r:.100} is no FIELD=TEXT"
            raise click.UsageError(msg, click.get_current_context())
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if name in found:
            msg = f"field {name!r:.100} is given twice"
            raise click.UsageError(msg, click.get_current_context())
        try:
            found[name] = json.loads(text) if is_json else text
        except ValueError as exc:
            msg = f"field {name!r:.100}: this is no JSON: {text!r:.100}"
            raise click.UsageError(msg, click.get_current_context()) from exc
    return found


def _send_one(app: App, worker: AnyWorker, body: bytes, delay: float, *, dry_run: bool) -> None:
    sender = _Sender(worker, delay)
    payload = sender.parse(body)
    if dry_run:
        click.echo(f"1 would be sent to {worker.queue}")
        return

    async def send() -> SendReport:
        async with app:
            return await sender.send([payload])

    report = run_async(send)
    for failed in report.failed:
        raise failed.error
    click.echo(f"1 sent to {worker.queue}")


class _Sender:
    """The two kinds of workers as one."""

    def __init__(self, worker: AnyWorker, delay: float) -> None:
        from brokerwq.workers.worker import KeywordWorker

        self._parse: Callable[[bytes], Any] = worker.parse
        self._send: Callable[..., Coroutine[Any, Any, SendReport]] = worker.enqueue_many
        if isinstance(worker, KeywordWorker):
            if delay:
                self._parse = worker.options(delay=delay).parse
        else:
            self._send = functools.partial(worker.enqueue_many, delay=delay)

    def parse(self, body: bytes) -> Any:
        """The payload in ``body``.

        Raises:
            EnvelopeError: it does not fit the worker.
        """
        return self._parse(body)

    async def send(self, payloads: Iterable[Any]) -> SendReport:
        """Send them all; failures are in the report."""
        return await self._send(payloads, errors="return")


def _send_lines(
    app: App, worker: AnyWorker, file: Path | None, delay: float, *, dry_run: bool
) -> None:
    sender = _Sender(worker, delay)
    total = None if file is None else _count_lines(file)
    source: BinaryIO = sys.stdin.buffer if file is None else file.open("rb")
    with source, progress("check" if dry_run else "enqueue", total) as bar:
        payloads = _Payloads(source, sender, bar)
        if dry_run:
            sent = sum(1 for _ in payloads)
            report = None
        else:

            async def send() -> SendReport:
                async with app:
                    return await sender.send(payloads)

            report = run_async(send)
            sent = report.sent
    click.echo(f"{sent:,} {'would be sent' if dry_run else 'sent'} to {worker.queue}")
    if report is not None and report.failed_count:
        say(f"{report.failed_count:,} were not confirmed by the broker: {report}")
        raise FinishedWithError(ExitCode.UNREACHABLE)
    if payloads.faults:
        say(f"{payloads.faults:,} lines do not fit {worker.name} and were left out")
        raise FinishedWithError(ExitCode.USAGE)


def _count_lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


class _Payloads:
    """The payloads of a file's lines, read as they are asked for."""

    def __init__(self, source: BinaryIO, sender: _Sender, bar: Progress) -> None:
        self._source = source
        self._sender = sender
        self._bar = bar
        self.faults = 0

    def __iter__(self) -> Iterator[Any]:
        taken = 0
        for number, line in enumerate(self._source, 1):
            if not line.strip():
                continue
            try:
                payload = self._sender.parse(line.rstrip(b"\r\n"))
            except EnvelopeError as exc:
                self.faults += 1
                if self.faults <= MAX_FAULTS_SHOWN:
                    say(f"line {number}: {exc}")
                continue
            yield payload
            taken += 1
            self._bar.update(taken)

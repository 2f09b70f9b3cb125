"""``brokerwq dlq``: the verbs that look; those that change something are in ``dlq_change``."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from brokerwq.cli.choosing import selection_options
from brokerwq.cli.connection import Target, broker_options, opened, target_of
from brokerwq.cli.failure import say
from brokerwq.cli.loop import run_async
from brokerwq.cli.options import Verb, json_option
from brokerwq.cli.output import age, as_json, fields, shown, stamp, stamp_json, table
from brokerwq.errors import ConfigError

if TYPE_CHECKING:
    from brokerwq.dead_letters import DeadLetters, Group, Report
    from brokerwq.dead_letters.selection import Letter, Selection


class Graveyard:
    """The dead letters of one queue, by name; opened when a verb needs them."""

    def __init__(self, target: Target, queue: str, dead_letter_queue: str) -> None:
        self.queue = queue
        self.name = dead_letter_queue
        self._target = target

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[DeadLetters]:
        """The dead letters over an open driver."""
        from brokerwq.dead_letters import DeadLetters

        target = self._target
        async with opened(target.url) as driver:
            yield DeadLetters(
                driver,
                self.queue,
                dead_letter_queue=self.name,
                seen=lambda delivery: target.seen(self.queue, delivery),
            )


def graveyard_options(command: Verb) -> Verb:
    """Add QUEUE and the options that find its dead letters; the verb gets a ``graveyard``."""

    @functools.wraps(command)
    def verb(
        *,
        queue: str,
        url: str | None,
        app_spec: str | None,
        dead_letter_queue: str | None,
        **others: Any,
    ) -> None:
        target = target_of(url, app_spec)
        name = dead_letter_queue or target.dead_letter_queue(queue)
        command(graveyard=Graveyard(target, queue, name), **others)

    named = click.option(
        "--dead-letter-queue", metavar="NAME", help="Where they are; else QUEUE-dead."
    )(verb)
    return click.argument("queue")(broker_options(named))


@click.group()
def dlq() -> None:
    """Look at dead letters, send them back, delete them.

    QUEUE is the queue they were taken from. Looking claims them for a moment and puts them
    back uncounted.
    """


def warn_if_partial(report: Report) -> None:
    """Tell people that a pass did not see the whole queue."""
    if not report.is_complete:
        say(f"looked at {report.seen:,} messages; there may be more (see --limit)")


@dlq.command("ls")
@graveyard_options
@selection_options
@click.option("--limit", type=click.IntRange(1, 50_000), default=100, show_default=True)
@json_option
def ls(*, graveyard: Graveyard, selection: Selection, limit: int, json_: bool) -> None:
    """List dead letters and why they died, the oldest first."""
    letters, report = run_async(lambda: _find(graveyard, selection, limit))
    letters.sort(key=_time_of_death)  # brokers hand out in an order of their own, each time anew
    if json_:
        as_json([_letter_json(letter) for letter in letters])
    else:
        table(
            ["ID", "TYPE", "REASON", "ATTEMPTS>", "DEAD FOR>", "ERROR"],
            [
                [
                    shown(letter.id) or "-",
                    shown(letter.type) or "-",
                    shown(letter.note.reason),
                    str(letter.note.attempts or "?"),
                    age(letter.note.dead_at),
                    shown(_error(letter), 100),
                ]
                for letter in letters
            ],
        )
    warn_if_partial(report)


async def _find(
    graveyard: Graveyard, selection: Selection, limit: int
) -> tuple[list[Letter], Report]:
    async with graveyard.opened() as letters:
        return await letters.find(selection, limit=limit)


def _time_of_death(letter: Letter) -> tuple[datetime, str]:
    return letter.note.dead_at or datetime.min.replace(tzinfo=UTC), letter.id


def _error(letter: Letter) -> str:
    note = letter.note
    return f"{note.error_type}: {note.error}" if note.error_type else note.error


def _letter_json(letter: Letter) -> dict[str, object]:
    message, note = letter.message, letter.note
    return {
        "id": letter.id,
        "type": letter.type,
        "reason": note.reason,
        "error_type": note.error_type,
        "error": note.error,
        "digest": note.digest,
        "attempts": note.attempts,
        "queue": note.queue,
        "first_at": stamp_json(note.first_at or message.created_at),
        "dead_at": stamp_json(note.dead_at),
        "redrives": message.redrives,
        "bytes": len(message.body),
    }


@dlq.command("groups")
@graveyard_options
@selection_options
@json_option
def groups(*, graveyard: Graveyard, selection: Selection, json_: bool) -> None:
    """Count those that are alike.

    Alike are those of one reason, type, exception type and traceback digest.
    """

    async def count() -> tuple[list[tuple[Group, int]], Report]:
        async with graveyard.opened() as letters:
            return await letters.groups(selection)

    counted, report = run_async(count)
    if json_:
        as_json(
            [
                {
                    "count": number,
                    "reason": group.reason,
                    "type": group.type,
                    "error_type": group.error_type,
                    "digest": group.digest,
                }
                for group, number in counted
            ]
        )
    else:
        table(
            ["COUNT>", "REASON", "TYPE", "ERROR", "DIGEST"],
            [
                [
                    f"{number:,}",
                    *map(shown, (group.reason, group.type, group.error_type, group.digest)),
                ]
                for group, number in counted
            ],
        )
    warn_if_partial(report)


@dlq.command("show")
@graveyard_options
@click.argument("message_id", metavar="ID")
@json_option
def show(*, graveyard: Graveyard, message_id: str, json_: bool) -> None:
    """Show one of them whole."""
    from brokerwq.dead_letters.selection import Selection

    found, _ = run_async(lambda: _find(graveyard, Selection(ids=frozenset({message_id})), 1))
    if not found:
        msg = f"there is no message {message_id!r:.200} in {graveyard.name}"
        raise ConfigError(msg)
    if json_:
        from brokerwq.dead_letters.export import record_of

        as_json({**_letter_json(found[0]), **record_of(found[0].message)})
    else:
        _show(found[0], graveyard)


def _show(letter: Letter, graveyard: Graveyard) -> None:
    message, note = letter.message, letter.note
    fields(
        [
            ("id", shown(letter.id)),
            ("type", shown(letter.type)),
            ("queue", shown(note.queue or graveyard.queue)),
            ("reason", shown(note.reason)),
            ("error", shown(_error(letter), 2000)),
            ("digest", shown(note.digest)),
            ("attempts", str(note.attempts or "")),
            ("first sent", stamp(note.first_at or message.created_at)),
            ("dead since", stamp(note.dead_at)),
            ("redrives", str(message.redrives)),
            ("key", shown(message.key or "")),
            ("caused by", shown(message.cause or "")),
            ("content type", shown(message.content_type)),
            *[(f"header {shown(name)}", shown(text)) for name, text in message.headers.items()],
            *[(f"native {shown(name)}", shown(repr(value))) for name, value in message.raw.items()],
            ("body", f"{len(message.body):,} bytes"),
        ]
    )
    click.echo(shown(message.body.decode(errors="backslashreplace"), 10_000))

"""``brokerwq queues``: what queues there are, what is in them, and what they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from brokerwq.cli.asking import confirm_by_name
from brokerwq.cli.connection import Target, broker_options, opened, target_of
from brokerwq.cli.failure import say
from brokerwq.cli.loop import run_async
from brokerwq.cli.options import json_option
from brokerwq.cli.output import (
    age,
    as_json,
    fields,
    number,
    number_json,
    shown,
    span,
    stamp_json,
    table,
)
from brokerwq.cli.queues_declare import declare
from brokerwq.driver.registry import redacted
from brokerwq.errors import ConfigError

if TYPE_CHECKING:
    from brokerwq.driver import Delivery, QueueStats


@click.group()
def queues() -> None:
    """List, look into, declare and empty queues."""


queues.add_command(declare)


@queues.command("ls")
@broker_options
@json_option
def ls(*, url: str | None, app_spec: str | None, json_: bool) -> None:
    """List the queues with their counts.

    The broker is asked which there are; where it cannot tell, the app's queues are listed.
    """
    target = target_of(url, app_spec)
    stats = run_async(lambda: _inspect_all(target))
    _tell_missing(target, {name for name, _ in stats})
    if json_:
        as_json([{"queue": name, **_stats_json(found)} for name, found in stats])
        return
    table(
        ["QUEUE", "READY>", "LEASED>", "DELAYED>", "DEAD>", "OLDEST>"],
        [
            [
                name,
                *map(number, (found.ready, found.leased, found.delayed, found.dead)),
                span(found.oldest_age),
            ]
            for name, found in stats
        ],
    )


async def _inspect_all(target: Target) -> list[tuple[str, QueueStats]]:
    async with opened(target.url) as driver:
        if driver.capabilities.lists_queues:
            names = list(await driver.queues())
        elif target.app is not None:
            names = sorted({spec.name for spec in target.specs()})
        else:
            msg = "this broker cannot list its queues; name an app with --app, or use queues show"
            raise ConfigError(msg)
        return [(name, await driver.inspect(name)) for name in names]


def _tell_missing(target: Target, found: set[str]) -> None:
    """Say what somebody who has a typo in the URL, or has not run anything, wonders about."""
    missing = sorted({spec.name for spec in target.specs()} - found)
    if missing:
        say(f"not there yet: {', '.join(missing)}; the first enqueue or run makes a queue")
    elif not found:
        say(f"there are no queues on {redacted(target.url)}")


@queues.command("show")
@click.argument("queue")
@broker_options
@json_option
def show(*, queue: str, url: str | None, app_spec: str | None, json_: bool) -> None:
    """Show the counts of one queue."""
    target = target_of(url, app_spec)

    async def inspect() -> QueueStats:
        async with opened(target.url) as driver:
            return await driver.inspect(queue)

    stats = run_async(inspect)
    dead_letter_queue = target.dead_letter_queue(queue)
    if json_:
        as_json({"queue": queue, "dead_letter_queue": dead_letter_queue, **_stats_json(stats)})
        return
    fields(
        [
            ("queue", queue),
            ("dead-letter queue", dead_letter_queue),
            ("ready", number(stats.ready)),
            ("leased", number(stats.leased)),
            ("delayed", number(stats.delayed)),
            ("dead", number(stats.dead)),
            ("oldest", span(stats.oldest_age)),
            ("next due in", span(stats.next_due)),
        ]
    )


def _stats_json(stats: QueueStats) -> dict[str, object]:
    counts = {
        "ready": stats.ready,
        "leased": stats.leased,
        "delayed": stats.delayed,
        "dead": stats.dead,
    }
    return {
        **{name: number_json(count) for name, count in counts.items()},
        "certainty": {name: count.certainty.value for name, count in counts.items()},
        "oldest_age": stats.oldest_age,
        "next_due": stats.next_due,
    }


@queues.command("peek")
@click.argument("queue")
@broker_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=10, show_default=True)
@click.option("--json", "json_", is_flag=True, help="Print JSON, bodies included.")
def peek(*, queue: str, url: str | None, app_spec: str | None, limit: int, json_: bool) -> None:
    """Look at the next messages of a queue.

    They are claimed for a moment and put back; no attempt is counted. The id and type of
    another program's message are read by the app's codec for that queue.
    """
    from brokerwq.dead_letters.selection import Letter

    target = target_of(url, app_spec)
    deliveries = run_async(lambda: _peek(target, queue, limit))
    if json_:
        as_json([_delivery_json(each, target.seen(queue, each)) for each in deliveries])
        return
    table(
        ["ID", "TYPE", "ATTEMPTS>", "AGE>", "BYTES>", "BODY"],
        [
            [
                shown(letter.id) or "-",
                shown(letter.type) or "-",
                str(message.attempts + delivery.receives - 1),
                age(message.created_at),
                f"{len(message.body):,}",
                shown(message.body[:200].decode(errors="replace"), 60),
            ]
            for delivery in deliveries
            for letter in [Letter.of(delivery, target.seen(queue, delivery))]
            for message in [letter.message]
        ],
    )


async def _peek(target: Target, queue: str, limit: int) -> list[Delivery]:
    from brokerwq.dead_letters.sweep import Sweep
    from brokerwq.driver import QueueSpec

    spec = QueueSpec(
        name=queue,
        dead_letter=target.dead_letter_queue(queue),
        declare="never",
        on_dead="hold",  # who only looks needs none
    )
    deliveries: list[Delivery] = []
    async with (
        opened(target.url) as driver,
        Sweep(driver, queue, max_held=limit, spec=spec) as sweep,
    ):
        while claimed := await sweep.claim(limit - len(deliveries)):
            deliveries.extend(claimed)
    return deliveries


def _delivery_json(delivery: Delivery, seen: Delivery) -> dict[str, object]:
    from brokerwq.dead_letters.export import record_of
    from brokerwq.dead_letters.selection import Letter

    message, letter = delivery.message, Letter.of(delivery, seen)
    return {
        "id": letter.id,
        "type": letter.type,
        "attempts": message.attempts + delivery.receives - 1,
        "created_at": stamp_json(message.created_at),
        "defect": seen.defect,
        **record_of(message),
    }


@queues.command("purge")
@click.argument("queue")
@broker_options
@click.option("--yes", metavar="QUEUE", help="The queue's name once more, instead of being asked.")
@click.option("--dry-run", is_flag=True, help="Say how many there are, delete nothing.")
def purge(
    *, queue: str, url: str | None, app_spec: str | None, yes: str | None, dry_run: bool
) -> None:
    """Delete every message of a queue that no runner holds, for good."""
    target = target_of(url, app_spec)

    async def count() -> QueueStats:
        async with opened(target.url) as driver:
            return await driver.inspect(queue)

    async def empty() -> None:
        async with opened(target.url) as driver:
            await driver.purge(queue)

    stats = run_async(count)
    counted = f"{number(stats.ready)} ready and {number(stats.delayed)} delayed messages"
    if dry_run:
        click.echo(f"{queue}: would delete {counted}")
        return
    confirm_by_name(queue, yes, f"delete {counted} of {queue}")
    run_async(empty)
    click.echo(f"{queue}: deleted {counted}")

"""``brokerwq size``: how long a batch takes, or how many slots a deadline needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from fractions import Fraction

import click

from brokerwq.cli.options import json_option
from brokerwq.cli.output import as_json
from brokerwq.cli.values import duration, seconds_of
from brokerwq.errors import ConfigError
from brokerwq.sizing import SlotPlan, next_local, plan_for_deadline, plan_for_slots, readable

DEFAULT_SLOTS_A_PROCESS = 10


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time to be done by, or the time there is; ``at`` where the user named a time of day."""

    within: Fraction
    at: datetime | None = None


def deadline_of(text: str, now: datetime) -> Deadline:
    """``1h``, ``90m``, ``3600``: that long from now; ``06:00``: when the wall shows it next.

    Raises:
        ConfigError: it is neither.
    """
    if found := re.fullmatch(r"(\d{1,2}):(\d{2})", text.strip(), re.ASCII):
        try:
            moment = time(int(found[1]), int(found[2]))
        except ValueError:
            msg = f"{text!r} is no time of day; write 00:00 to 23:59"
            raise ConfigError(msg) from None
        at = next_local(moment, now)
        return Deadline(Fraction((at - now) / timedelta(microseconds=1)) / 10**6, at)
    try:
        return Deadline(seconds_of(text))
    except ValueError:
        msg = f"--by takes a duration (1h, 90m) or a time of day (06:00), not {text!r:.100}"
        raise ConfigError(msg) from None


@click.command()
@click.option("--items", type=int, required=True, help="How many messages there are.")
@click.option(
    "--seconds",
    callback=duration,
    required=True,
    metavar="DURATION",
    help="How long one takes: 2, 0.25, 250ms, 3m.",
)
@click.option("--slots", type=int, help="Jobs that run at once, over all runners.")
@click.option("--by", metavar="DURATION|HH:MM", help="The deadline: 1h, or 06:00 local time.")
@click.option(
    "--slots-a-process",
    type=click.IntRange(1, 10_000),
    default=DEFAULT_SLOTS_A_PROCESS,
    show_default=True,
    help="Slots of one process, to say how many processes that makes.",
)
@json_option
def size(
    *,
    items: int,
    seconds: Fraction,
    slots: int | None,
    by: str | None,
    slots_a_process: int,
    json_: bool,
) -> None:
    """Say how long a batch takes, or how many slots a deadline needs.

    Give --slots to learn when the batch is done, or --by to learn the least number of slots.
    Every item is taken to last equally long; leave some room for what is not.
    """
    if (slots is None) == (by is None):
        msg = "give either --slots, to learn the time, or --by, to learn the slots"
        raise click.UsageError(msg, click.get_current_context())
    now = datetime.now(UTC)
    deadline = None if by is None else deadline_of(by, now)
    if deadline is None:
        plan = plan_for_slots(items, seconds, slots or 0)
    else:
        plan = plan_for_deadline(items, seconds, deadline.within)
    processes = -(-plan.slots // slots_a_process)
    finish_at = (now + timedelta(seconds=float(plan.finish))).astimezone()
    if json_:
        as_json(_record(plan, processes, finish_at, deadline))
    else:
        for line in _lines(plan, processes, slots_a_process, finish_at, deadline):
            click.echo(line)


def _record(
    plan: SlotPlan, processes: int, finish_at: datetime, deadline: Deadline | None
) -> dict[str, object]:
    return {
        "items": plan.items,
        "seconds": float(plan.seconds),
        "slots": plan.slots,
        "processes": processes,
        "finish_seconds": float(plan.finish),
        "finish_at": finish_at.isoformat(timespec="seconds"),
        "items_per_second": float(plan.per_second),
        "deadline_seconds": None if deadline is None else float(deadline.within),
    }


def _lines(
    plan: SlotPlan,
    processes: int,
    slots_a_process: int,
    finish_at: datetime,
    deadline: Deadline | None,
) -> list[str]:
    batch = f"{plan.items:,} items of {readable(plan.seconds)}"
    crew = f"{plan.slots:,} {'slot' if plan.slots == 1 else 'slots'}"
    if processes > 1:
        crew += f" ({processes:,} processes with {slots_a_process:,} slots each)"
    end = f"{finish_at:%Y-%m-%d %H:%M:%S %Z}"
    rate = f"{float(plan.per_second):,.3g} items a second"
    if deadline is None:
        return [f"{batch} on {crew}: {readable(plan.finish)}, done at {end}; {rate}"]
    limit = readable(deadline.within)
    if deadline.at is not None:
        limit = f"{limit}, by {deadline.at:%Y-%m-%d %H:%M %Z}"
    return [
        f"{batch} in {limit}: {crew}",
        f"done after {readable(plan.finish)}, at {end}; {rate}",
    ]

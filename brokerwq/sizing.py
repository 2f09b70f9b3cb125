"""How long a batch takes, and how many slots a deadline needs: exact arithmetic, no I/O.

The model: every item takes the same time, every slot is always busy, and a slot runs whole
items one after another. A real run is slower by what the broker costs and by uneven items.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from fractions import Fraction

from brokerwq.errors import ConfigError

MAX_ITEMS = 10**15
MAX_SLOTS = 10**6
MAX_SECONDS = Fraction(100 * 366 * 86_400)
"""A century: no plan looks further, and every date up to there can be written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """A batch and the slots to run it.

    Attributes:
        items: How many.
        seconds: Time in seconds that one item takes.
        slots: Jobs that run at once, over all runners.
        finish: Seconds from the start to the end of the last item.
    """

    items: int
    seconds: Fraction
    slots: int
    finish: Fraction

    @property
    def per_second(self) -> Fraction:
        """Items finished in a second, on average."""
        return self.items / self.finish


def plan_for_slots(items: int, seconds: Fraction, slots: int) -> SlotPlan:
    """How long ``slots`` slots take: the fullest slot runs ``ceil(items / slots)`` items.

    Raises:
        ConfigError: a number is out of its range, or the end is more than a century away.
    """
    _check(items, seconds)
    if not 1 <= slots <= MAX_SLOTS:
        msg = f"slots must be 1 to {MAX_SLOTS:,}, not {_shown(slots)}"
        raise ConfigError(msg)
    finish = -(-items // slots) * seconds
    if finish > MAX_SECONDS:
        msg = f"{items:,} items of {readable(seconds)} on {slots:,} slots take over 100 years"
        raise ConfigError(msg)
    return SlotPlan(items=items, seconds=seconds, slots=slots, finish=finish)


def plan_for_deadline(items: int, seconds: Fraction, within: Fraction) -> SlotPlan:
    """The least number of slots that finish in ``within`` seconds.

    Raises:
        ConfigError: a number is out of its range, or no number of slots is enough.
    """
    _check(items, seconds)
    if not 0 < within <= MAX_SECONDS:
        msg = f"the deadline must be above 0 and at most 100 years, not {readable(within)}"
        raise ConfigError(msg)
    each = math.floor(within / seconds)
    if each == 0:
        msg = (
            f"one item takes {readable(seconds)}, longer than the {readable(within)} there are: "
            "no number of slots is enough; make the items smaller"
        )
        raise ConfigError(msg)
    slots = -(-items // each)
    if slots > MAX_SLOTS:
        msg = (
            f"{items:,} items of {readable(seconds)} in {readable(within)} need {slots:,} slots; "
            f"the limit is {MAX_SLOTS:,}: allow more time or make the items smaller"
        )
        raise ConfigError(msg)
    return plan_for_slots(items, seconds, slots)


def next_local(moment: time, now: datetime, zone: tzinfo | None = None) -> datetime:
    """The next time after ``now`` that a clock on the wall shows ``moment``.

    Args:
        moment: Naive, as read on the wall. One that a change of the clock leaves out that day
            means as much later as the clock is put forward.
        now: Aware, in any zone.
        zone: Where the wall is; None takes the machine's own zone.
    """
    today = now.astimezone(zone).date()
    candidate = _on_the_wall(datetime.combine(today, moment), zone)
    if candidate <= now:
        candidate = _on_the_wall(datetime.combine(today + timedelta(days=1), moment), zone)
    return candidate.astimezone(zone)


def _on_the_wall(naive: datetime, zone: tzinfo | None) -> datetime:
    local = naive.astimezone() if zone is None else naive.replace(tzinfo=zone)
    # In UTC two moments are compared by when they are, not by what the wall shows.
    return local.astimezone(UTC)


def readable(seconds: Fraction | float) -> str:
    """A duration for people, two units at most: ``1 h 5 min``, ``2.5 s``, ``400 ms``."""
    value = Fraction(seconds)
    if value < 0:
        return f"-{readable(-value)}"
    if value > MAX_SECONDS:
        return "more than 100 years"
    if 0 < value < 1:
        return f"{float(value * 1000):.3g} ms"
    if value < 60:  # noqa: PLR2004
        return f"{float(value):.3g} s"
    whole = round(value)
    for size, unit, below, below_unit in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            count, rest = divmod(whole, size)
            return f"{count:,} {unit}" + (f" {rest // below} {below_unit}" if rest // below else "")
    return f"{whole} s"


def _check(items: int, seconds: Fraction) -> None:
    if not 1 <= items <= MAX_ITEMS:
        msg = f"items must be 1 to {MAX_ITEMS:,}, not {_shown(items)}"
        raise ConfigError(msg)
    if not 0 < seconds <= MAX_SECONDS:
        msg = f"seconds must be above 0 and at most 100 years, not {readable(seconds)}"
        raise ConfigError(msg)


def _shown(number: int) -> str:
    return f"{number:,}" if abs(number) < 10**30 else "a number of over 30 digits"

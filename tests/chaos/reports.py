"""The sums of the nightly table: what a part of its jobs says about all of them."""

from __future__ import annotations

from tests.chaos.campaign import Found, Setting

WHOLE = 800_000
"""Jobs of the whole table, each of which appends one row."""


def part_of_whole(pilot: Found, jobs: int, seconds: float, least: int) -> int:
    """How many jobs this machine does in ``seconds``, in hundreds, by a pilot of ``jobs``."""
    wanted = int(jobs / pilot.seconds * seconds) // 100 * 100
    return max(least, min(wanted, WHOLE))


def sums(setting: Setting, found: Found, control: Found, control_jobs: int) -> str:
    """All of the arithmetic.

    Args:
        setting: The campaign with ``once``.
        found: What it found.
        control: What one without ``once`` found, at the same pace of kills.
        control_jobs: The jobs of that.
    """
    jobs = setting.keys
    rows, control_rows = sum(found.effects.values()), sum(control.effects.values())
    share = WHOLE / jobs
    rate = jobs / found.seconds
    kills = found.kills * share
    per_kill = control.extra / max(control.kills, 1)
    per_kill_with = found.extra / max(found.kills, 1)
    hours = WHOLE / rate / 3600
    return f"""\
{WHOLE:,} reports append a row each. Here {jobs:,} of them: {WHOLE:,} / {jobs:,} = 1 in {share:.1f};
{setting.processes} runners of {setting.slots} slots, one killed every \
{found.seconds:.1f} s / {found.kills} = {found.seconds / max(found.kills, 1):.2f} s.
  once={setting.strategy!r}: {found.kills} kills; {rows:,} rows for {jobs:,} jobs: \
{found.extra} too many, {found.lost} missing
  without once: {control.kills} kills; {control_rows:,} rows for {control_jobs:,} jobs: \
{control.extra} too many, {control.lost} missing; {control.extra} / {control.kills} = \
{per_kill:.3f} too many a kill
  pace: {jobs:,} jobs / {found.seconds:.1f} s = {rate:.1f} jobs/s; \
all of them: {WHOLE:,} / {rate:.1f} = {WHOLE / rate:,.0f} s = {hours:.1f} h
  kills in that time: {found.kills} x {share:.1f} = {kills:,.0f}
  rows too many by then: without once {kills:,.0f} x {per_kill:.3f} = {kills * per_kill:,.0f}; \
with it {kills:,.0f} x {found.extra} / {found.kills} = {kills * per_kill_with:,.0f}
  what {found.extra} in {found.kills} kills proves by itself: at 95 % fewer than \
3 / {found.kills} = {3 / max(found.kills, 1):.2%} of all kills add a row"""

"""Processes on one SQLite file that are killed at any moment."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cases.site import Note, Site
from tests.chaos.sqlite_kill import Campaign


@pytest.fixture
def site(tmp_path: Path) -> Generator[Site]:
    site = Site(tmp_path, lease=3.0, attempts=100)
    yield site
    site.close()


@pytest.mark.slow
async def test_processes_killed_at_random_lose_and_double_nothing(site: Site) -> None:
    campaign = Campaign(site, messages=1000, seconds=0.1, every=0.5)
    await campaign.run()
    await campaign.check()
    assert len(campaign.kills) >= 3


def test_the_check_finds_a_double(site: Site) -> None:
    """A check that finds nothing must be able to find something."""
    campaign = Campaign(site, messages=1, seconds=0, every=1)
    campaign.kills[1] = 5.0
    alive = [(1.0, 2, "start"), (2.0, 3, "start"), (3.0, 3, "end")]
    killed = [(1.0, 1, "start"), (6.0, 3, "start"), (7.0, 3, "end")]
    too_soon = [(1.0, 1, "start"), (4.0, 3, "start"), (7.0, 3, "end")]
    for notes, doubles in ((alive, 1), (killed, 0), (too_soon, 1)):
        lines = [f"{at} {pid} {what} 0 1" for at, pid, what in notes]
        site.notes_file.write_text("\n".join(lines))
        assert site.notes("end") == [Note(*notes[-1], 0, 1)]
        assert len(campaign.doubles()) == doubles

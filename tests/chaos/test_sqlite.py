"""The long campaign on SQLite: ``make chaos-sqlite``."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cases.site import Site
from tests.chaos.sqlite_kill import Campaign

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = int(os.environ.get("BROKERWQ_CHAOS_MESSAGES", "5000"))


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Site]:
    if not any("chaos" in argument for argument in request.config.args):
        pytest.skip("takes minutes; a short form is in tests/cases: make chaos-sqlite")
    site = Site(tmp_path, lease=4.0, attempts=100)
    yield site
    site.close()


async def test_processes_killed_every_second_lose_and_double_nothing(site: Site) -> None:
    campaign = Campaign(site, messages=MESSAGES, seconds=0.1, every=1.0)
    await campaign.run()
    print(campaign.summary())
    await campaign.check()
    assert len(campaign.kills) >= 5

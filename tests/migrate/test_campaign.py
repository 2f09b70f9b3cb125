"""The short form of ``make chaos-migration``: a few hundred messages, files on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.migrate.campaign")

from tests.migrate.campaign import Campaign, Sizes  # noqa: E402  -- to show what it asserts
from tests.migrate.lab import Lab  # noqa: E402  -- as above

SMALL = Sizes(
    messages=300,
    held=20,
    delayed=8,
    dead=5,
    misfits=0,
    rate=20.0,
    kills=2,
    seconds=0.02,
    mover_rate=200,
    patience=90.0,
)


@pytest.mark.timeout(240)
async def test_a_move_there_and_back_loses_nothing_and_runs_everything_once(
    tmp_path: Path,
) -> None:
    campaign = Campaign(Lab(tmp_path, source=f"sqlite:///{tmp_path}/source.db"), SMALL)

    await campaign.run()

    assert campaign.kills >= 2

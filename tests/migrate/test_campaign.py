"""The short forms of ``make chaos-migration``: between two files, and from RabbitMQ to one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.migrate.campaign")

from tests.migrate.campaign import Campaign, Sizes  # noqa: E402  -- to show what it asserts
from tests.migrate.lab import Lab  # noqa: E402  -- as above
from tests.migrate.places import rabbit  # noqa: E402  -- as above

SMALL = Sizes(
    messages=150,
    held=20,
    delayed=8,
    dead=5,
    misfits=0,
    rate=20.0,
    kills=2,
    seconds=0.02,
    mover_rate=150,
    settle=0.5,
    patience=90.0,
)


TINY = replace(SMALL, messages=80, held=10, kills=1, mover_rate=60, settle=1.0)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_move_there_and_back_loses_nothing_and_runs_everything_once(
    tmp_path: Path,
) -> None:
    campaign = Campaign(Lab(tmp_path, source=f"sqlite:///{tmp_path}/source.db"), SMALL)

    await campaign.run()

    assert campaign.kills >= 2


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_move_from_rabbitmq_and_back_is_the_same(tmp_path: Path) -> None:
    lab = Lab(tmp_path, source=rabbit("3.10"), target=f"sqlite:///{tmp_path}/target.db")

    await Campaign(lab, TINY).run()

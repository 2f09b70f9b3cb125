"""The kill-and-freeze campaign of ``tests/chaos/test_idempotency.py``, for a few seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.campaign import Found, Setting, run_campaign

KEYS = 30
COPIES = 6
TRIES = 4
"""For the controls: a fault need not strike where it hurts, but not that often."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


async def campaign(folder: Path, strategy: str, seed: int = 1, **more: Any) -> Found:
    folder = folder / f"{strategy}-{seed}"
    folder.mkdir()
    values: dict[str, Any] = {"pause": 0.1, "faults_every": 0.15, "fault_seconds": 3.0, **more}
    setting = Setting(
        strategy=strategy,
        url=f"sqlite:///{folder / 'queue.db'}",
        folder=folder,
        keys=KEYS,
        duplicate_share=COPIES / KEYS,
        processes=3,
        seed=seed,
        **values,
    )
    found = await run_campaign(setting)
    print(f"{strategy}: {found}")
    return found


@pytest.mark.parametrize("strategy", ["transactional", "lease_tx"])
async def test_killed_and_frozen_runners_leave_one_effect_a_key(
    tmp_path: Path, strategy: str
) -> None:
    found = await campaign(tmp_path, strategy)

    assert (found.extra, found.lost, found.left, found.dead, found.fences_fall) == (0, 0, 0, 0, 0)
    assert found.kills + found.freezes > 0


async def test_without_a_record_copies_and_faults_repeat_effects(tmp_path: Path) -> None:
    for seed in range(TRIES):
        found = await campaign(tmp_path, "none", seed, pause=0.3, faults_every=0.3)
        assert (found.lost, found.left) == (0, 0)
        assert found.extra >= COPIES
        if found.extra > COPIES:
            return
    pytest.fail("no fault has repeated an effect: the campaign does not bite")


async def test_with_the_mark_first_faults_lose_keys(tmp_path: Path) -> None:
    for seed in range(TRIES):
        found = await campaign(
            tmp_path, "mark-first", seed, pause=0.6, faults_every=0.4, freezes=0.0
        )
        assert (found.extra, found.left) == (0, 0)
        if found.lost:
            return
    pytest.fail("no kill has lost a key: the campaign does not bite")

"""Runners are killed and frozen at random; every key has its one effect all the same.

``none`` and ``mark-first`` are the positive controls: were there no extra effects and no lost
keys in them, the campaign would not bite. By default a short form runs; the environment
variable ``CAMPAIGN=full`` asks for 500 keys and three seeds, ``make chaos-idempotency`` sets it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.campaign import Found, Setting, run_campaign

FULL = os.environ.get("CAMPAIGN") == "full"
KEYS = 500 if FULL else 120
SEEDS = (1, 2, 3) if FULL else (1,)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def campaign(folder: Path, strategy: str, seed: int) -> Found:
    setting = Setting(
        strategy=strategy,
        url=f"sqlite:///{folder / 'queue.db'}",
        folder=folder,
        keys=KEYS,
        seed=seed,
        fault_seconds=40.0 if FULL else 10.0,
    )
    found = await run_campaign(setting)
    print(f"{strategy}, seed {seed}: {found}")
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("strategy", ["transactional", "lease_tx"])
async def test_every_key_has_exactly_one_effect(tmp_path: Path, strategy: str, seed: int) -> None:
    found = await campaign(tmp_path, strategy, seed)

    assert (found.extra, found.lost, found.left, found.dead) == (0, 0, 0, 0)
    assert found.fences_fall == 0
    assert found.kills + found.freezes > 10


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_marker_loses_nothing_and_has_fewer_extra_effects_than_kills(
    tmp_path: Path, seed: int
) -> None:
    found = await campaign(tmp_path, "marker", seed)

    assert (found.lost, found.left, found.dead, found.fences_fall) == (0, 0, 0, 0)
    # Each fault can strike between effect and completion in each slot of one runner.
    assert found.extra <= 2 * (found.kills + found.freezes)


async def test_without_a_store_there_are_extra_effects(tmp_path: Path) -> None:
    found = await campaign(tmp_path, "none", 1)

    assert found.extra > KEYS / 10
    assert found.lost == 0


async def test_marking_first_loses_keys(tmp_path: Path) -> None:
    found = await campaign(tmp_path, "mark-first", 1)

    assert found.lost > 0
    assert found.left == 0

"""Runners that are killed between effect, record and ack, on every SQL store."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases.lab import ROOT, counts, reasons
from tests.idempotency.store_shop import StoreShop, open_shop
from tests.idempotency.stores import TRANSACTIONAL
from tests.idempotency.victims import CASES, build

pytestmark = pytest.mark.slow


async def killed(shop: StoreShop, name: str, times: int = 1) -> None:
    """Let runners of case ``name`` die, one after the other."""
    library, _, dsn = shop.bench.where.partition(" ")
    library = library.replace("+", ", ")
    arguments = [shop.place.url, library, dsn, name, CASES[name].point]
    for _ in range(times):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.idempotency.victims",
            *arguments,
            cwd=ROOT,
            stdout=asyncio.subprocess.DEVNULL,
        )
        assert await asyncio.wait_for(process.wait(), 60) == -9, name


@pytest.mark.parametrize("store", TRANSACTIONAL)
async def test_what_a_killed_runner_left_is_finished_once(store: str, tmp_path: Path) -> None:
    notes: list[Any] = []
    async with open_shop(store, tmp_path) as shop:
        workers = {name: build(shop.app, name, shop.db.write, notes.append) for name in CASES}
        for name, case in CASES.items():
            await workers[name].enqueue(case.n, id=name)
        await asyncio.gather(
            *(killed(shop, name, 3 if name == "marker-crash" else 1) for name in CASES)
        )
        async with shop.place.running(shop.app) as running:
            async with asyncio.timeout(30):
                while any([any((await counts(shop.app, name))[:3]) for name in CASES]):
                    await asyncio.sleep(0.05)
            report = await running.stop()
        effects = await shop.db.effects()
        records = await shop.records()
        dead = await reasons(shop.app, "marker-crash")

    ran = {note[0]: note[1:] for note in notes if note[0] != "mail"}
    mails = [note[1:] for note in notes if note[0] == "mail"]
    # Between effect and record: again, by an owner that takes over where a lease was left.
    assert ran == {
        "transactional-effect": (2, False),
        "lease_tx-effect": (2, True),
        "marker-effect": (2, True),
    }
    # Between record and ack: never again. What kills every runner is given up on, unrun.
    assert report.duplicates == 3
    assert dead == ["lost"]
    assert effects == [1, 2, 4, 5]
    # Whatever was committed has sent its child, and nothing else has.
    assert sorted(n for _, n in mails) == [1, 2, 3, 4, 5, 6]
    assert len({id_ for id_, _ in mails}) == 6
    done = {record.worker.partition("/")[2] for record in records if record.state == 2}
    assert done == set(CASES) - {"marker-crash"}

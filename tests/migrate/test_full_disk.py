"""A file system without room, on either side of a move."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from brokerwq.errors import StorageFullError
from tests.migrate.lab import QUEUE, Lab, made

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
BODY = b"x" * 2000


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("may not mount here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
@needs_root
async def test_a_target_whose_disk_is_full_gets_what_it_takes_and_the_rest_stays(
    small_disk: Path, tmp_path: Path
) -> None:
    lab = Lab(tmp_path, target=f"sqlite:///{small_disk}/target.db")
    await lab.declare(lab.source, lab.target)
    sent = [made(n, body=BODY) for n in range(600)]
    await lab.send(sent)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 400_000)

    with pytest.raises(StorageFullError, match=r"^target sqlite://.*no room left for .*target\.db"):
        await asyncio.wait_for(lab.run(patience=1.0), 60)

    ready, leased, delayed = await lab.counts(lab.source)
    assert (leased, delayed) == (0, 0)
    assert 0 < ready <= 600
    arrived, _, _ = await lab.counts(lab.target)
    assert arrived + ready == 600
    filler.unlink()
    _enlarge(small_disk)
    report = await asyncio.wait_for(lab.run(), 60)

    assert report.moved == ready
    found = await lab.take(lab.target)
    assert sorted(each.message.id for each in found) == sorted(message.id for message in sent)
    assert {each.attempt for each in found} == {1}


@pytest.mark.slow
@needs_root
async def test_a_ledger_whose_disk_is_full_stops_the_mover_before_anything_is_deleted(
    small_disk: Path, tmp_path: Path
) -> None:
    lab = Lab(tmp_path, ledger=f"sqlite:///{small_disk}/ledger.db")
    await lab.declare(lab.source, lab.target)
    sent = [made(n) for n in range(400)]
    await lab.send(sent)
    await lab.run(waits=False, rate=None)  # so that there is a ledger
    await lab.send([made(n) for n in range(4000)])
    (small_disk / "filler").write_bytes(b"x" * (1024 * 1024 - _used(small_disk) - 60_000))

    with pytest.raises(Exception, match=r"ledger .*ledger\.db cannot be used: .*full"):
        await asyncio.wait_for(lab.run(), 60)

    left, leased, _ = await lab.counts(lab.source)
    arrived = {found.message.id for found in await lab.take(lab.target)}
    assert leased == 0
    assert left > 0
    assert len(arrived) + left >= 4400
    (small_disk / "filler").unlink()
    _enlarge(small_disk)
    await asyncio.wait_for(lab.run(), 60)

    assert await lab.counts(lab.source) == (0, 0, 0)
    arrived |= {found.message.id for found in await lab.take(lab.target, QUEUE)}
    assert len(arrived) == 4400


def _enlarge(place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", str(place)], check=True)


def _used(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())

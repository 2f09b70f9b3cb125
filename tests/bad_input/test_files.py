"""What happens to the file under a runner at work: nothing lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from brokerwq import App, RetryPolicy, Runner, RunReport
from brokerwq.errors import StorageFullError

MESSAGES = 150
_PARTS = ("", "-wal", "-shm")


class Site:
    """A runner on a file, and what it has run."""

    def __init__(self, folder: Path, *, lease: float = 30.0) -> None:
        self.path = folder / "queue.db"
        self.app = App(
            f"sqlite:///{self.path}?busy_timeout=0.2",
            retry=RetryPolicy(max_attempts=5, base=0.01, cap=0.01),
            lease=lease,
        )
        self.ran: Counter[int] = Counter()

        @self.app.worker("q")
        async def work(n: int) -> None:
            self.ran[n] += 1
            await asyncio.sleep(0.005)

        self.work = work
        self.runner = Runner(self.app, slots=5, log=False)

    async def start(self) -> asyncio.Task[RunReport]:
        async with self.app:
            await self.work.enqueue_many(range(MESSAGES))
        task = asyncio.create_task(self.runner.run(handle_signals=False))
        await self.until(lambda: len(self.ran) >= 10)
        return task

    async def until(self, condition: object) -> None:
        assert callable(condition)
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)

    def left(self) -> int:
        with closing(sqlite3.connect(self.path, timeout=5)) as connection:
            found: int = connection.execute("SELECT count(*) FROM message").fetchone()[0]
        return found

    async def ends_well(self, task: asyncio.Task[RunReport]) -> None:
        """The trouble is over: all is done, and the runner is well."""
        await self.until(lambda: len(self.ran) == MESSAGES and not self.left())
        await self.until(lambda: self.runner.state == "ready")
        self.runner.stop()
        report = await asyncio.wait_for(task, 20)
        assert report.dead == {}
        with closing(sqlite3.connect(self.path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    def move(self, source: Path, target: Path) -> None:
        for part in _PARTS:
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{source}{part}", f"{target}{part}")  # noqa: PTH105


@pytest.mark.slow
async def test_a_file_that_is_away_for_a_while_is_waited_for(tmp_path: Path) -> None:
    site = Site(tmp_path, lease=2)
    task = await site.start()
    away = tmp_path / "away.db"
    site.move(site.path, away)
    await site.until(lambda: site.runner.state == "degraded")
    assert "queue.db" in site.runner.reasons[0]
    assert not site.path.exists()  # it was not made anew
    site.move(away, site.path)
    await site.ends_well(task)


@pytest.mark.slow
async def test_another_applications_file_in_its_place_is_left_alone(tmp_path: Path) -> None:
    site = Site(tmp_path, lease=2)
    task = await site.start()
    away = tmp_path / "away.db"
    site.move(site.path, away)
    with closing(sqlite3.connect(site.path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    before = site.path.read_bytes()
    await site.until(lambda: any("another application" in why for why in site.runner.reasons))
    assert site.path.read_bytes() == before
    site.path.unlink()
    site.move(away, site.path)
    await site.ends_well(task)


@pytest.mark.slow
async def test_a_lock_that_another_process_holds_for_long_is_waited_out(tmp_path: Path) -> None:
    site = Site(tmp_path, lease=2)
    task = await site.start()
    with closing(sqlite3.connect(site.path, isolation_level=None, timeout=5)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        await site.until(lambda: site.runner.state == "degraded")
        assert "written to by another process" in site.runner.reasons[0]
        connection.execute("ROLLBACK")
    await site.ends_well(task)


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounting.returncode:
        pytest.skip("a small disk can only be mounted by root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.slow
async def test_a_disk_that_is_full_for_a_while_loses_nothing(small_disk: Path) -> None:
    site = Site(small_disk, lease=2)
    task = await site.start()
    filler = small_disk / "filler"
    handle = os.open(filler, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(handle, bytes(4096))
    os.close(handle)
    await site.until(lambda: any("no room left" in why for why in site.runner.reasons))
    sending = asyncio.create_task(site.work.enqueue(MESSAGES - 1))
    await asyncio.sleep(2.5)  # longer than the leases
    assert not task.done()
    sending.cancel()
    with pytest.raises((StorageFullError, asyncio.CancelledError)):
        await sending
    filler.unlink()
    await site.ends_well(task)

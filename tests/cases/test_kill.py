"""Processes on one SQLite file that are killed at any moment."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import closing
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


@pytest.mark.slow
async def test_a_reader_a_writer_and_a_backup_beside_the_runners_do_no_harm(site: Site) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []
    disturbers = [
        threading.Thread(target=_until_stopped, args=(act, site, stop, failures))
        for act in (_write_other_table, _read_for_long, _back_up)
    ]
    campaign = Campaign(site, messages=600, seconds=0.02, every=60.0, processes=2, slots=8)
    await site.send("q")
    for disturber in disturbers:
        disturber.start()
    try:
        await campaign.run()
    finally:
        stop.set()
        for disturber in disturbers:
            disturber.join()
    assert failures == []
    await campaign.check()
    copy = site.folder / "copy.db"
    with closing(sqlite3.connect(copy)) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)


Disturbance = Callable[[Site, threading.Event], None]


def _until_stopped(
    act: Disturbance, site: Site, stop: threading.Event, failures: list[BaseException]
) -> None:
    try:
        while not stop.is_set():
            act(site, stop)
    except BaseException as error:  # noqa: BLE001 -- shown by the test
        failures.append(error)


def _opened(site: Site) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(site.folder / "queue.db", timeout=20, isolation_level=None))


def _write_other_table(site: Site, stop: threading.Event) -> None:
    with _opened(site) as file:
        file.execute("CREATE TABLE IF NOT EXISTS mine (n INTEGER)")
        file.execute("BEGIN IMMEDIATE")
        file.execute("INSERT INTO mine VALUES (1)")
        stop.wait(0.02)
        file.execute("COMMIT")
    stop.wait(0.02)


def _read_for_long(site: Site, stop: threading.Event) -> None:
    with _opened(site) as file:
        file.execute("BEGIN")
        file.execute("SELECT count(*) FROM message").fetchall()
        stop.wait(4)
        file.execute("COMMIT")


def _back_up(site: Site, stop: threading.Event) -> None:
    with _opened(site) as file, closing(sqlite3.connect(site.folder / "copy.db")) as copy:
        file.backup(copy, pages=50, sleep=0.01)
    stop.wait(0.3)


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

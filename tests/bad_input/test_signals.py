"""A process that stood still for longer than its leases has lost them, and knows it."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.program import Program, wait_until

APP = """
import asyncio, os
from brokerwq import App

app = App("sqlite:///queue.db", lease=1.5)

@app.worker("q")
async def work(*, n: int) -> None:
    log(f"start {os.getpid()}")
    while not os.path.exists("go"):
        await asyncio.sleep(0.02)
    log(f"end {os.getpid()}")

def log(text):
    with open("log", "a") as file:
        print(text, file=file)
"""


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.signal(signal.SIGCONT)
        program.kill()


def leases(folder: Path) -> list[tuple[int, int]]:
    """State and token of every message."""
    with closing(sqlite3.connect(folder / "queue.db", timeout=10)) as connection:
        return connection.execute("SELECT state, token FROM message").fetchall()


@pytest.mark.slow
def test_a_stopped_process_settles_nothing_that_others_have_by_now(
    tmp_path: Path, programs: list[Program]
) -> None:
    (tmp_path / "jobs.py").write_text(APP)
    log = tmp_path / "log"
    Program(tmp_path, "enqueue", "jobs:app", "work", "n=1").end()
    stale = Program(tmp_path, "run", "jobs:app")
    programs.append(stale)
    wait_until(log.exists, lambda: stale.said)
    stale.signal(signal.SIGSTOP)

    fresh = Program(tmp_path, "run", "jobs:app")
    programs.append(fresh)
    wait_until(lambda: log.read_text().count("start") == 2, lambda: fresh.said)
    held = leases(tmp_path)
    stale.signal(signal.SIGCONT)
    stale.wait_until_said("lease lost")
    stale.signal(signal.SIGTERM)
    assert stale.end() == 0
    assert leases(tmp_path) == held  # not acked, not put back: it is another one's

    (tmp_path / "go").touch()
    wait_until(lambda: not leases(tmp_path), lambda: fresh.said)
    fresh.signal(signal.SIGTERM)
    assert fresh.end() == 0
    assert log.read_text().count("end") == 1
    assert "1 done" in fresh.said
    assert "0 done" in stale.said

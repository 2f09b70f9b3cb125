"""Runners that are killed and frozen at a known instant, with their records in another store."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from brokerwq.idempotency import Record, State, Store, open_store
from tests.cases.lab import PATIENCE, ROOT, Place, counts, declare, reasons, send, sqlite
from tests.idempotency.dynamodb_lab import dynamodb_server, table_name
from tests.idempotency.redis_lab import redis_url

PROGRAM = Path(__file__).with_name("doomed.py")

pytestmark = pytest.mark.slow


@dataclass
class Ward:
    """A queue with one message, a store, and what runners note of their runs."""

    place: Place
    app: Any
    store: Store
    url: str
    file: Path

    def start(self, fault: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), self.place.url, self.url, str(self.file), fault],
            env={**os.environ, "PYTHONPATH": path},
        )

    async def run(self, fault: str) -> int:
        """Run until its end; the exit code."""
        process = self.start(fault)
        try:
            return await asyncio.to_thread(process.wait, 60)
        finally:
            process.kill()
            process.wait()

    def noted(self, kind: str) -> list[list[str]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(f"{kind} ")]

    async def until_noted(self, kind: str, times: int = 1) -> None:
        for _ in range(int(PATIENCE / 0.02)):
            if len(self.noted(kind)) >= times:
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"{kind} was not noted {times} times")

    async def record(self) -> Record:
        (record,) = await self.store.list(10, state=None, worker=None)
        return record


def store_url(kind: str) -> str:
    if kind == "redis":
        return f"{redis_url()}?namespace=t{uuid.uuid4().hex}"
    return dynamodb_server().url(table_name(), skew=0.1)


@pytest.fixture(params=["redis", "dynamodb"])
async def ward(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Ward]:
    url = await asyncio.to_thread(store_url, request.param)
    store = open_store(url)
    await store.init()
    place = sqlite(tmp_path)
    app = place.app()
    await declare(app, "q")
    await send(app, "q", "work", n=1)
    yield Ward(place, app, store, url, tmp_path / "noted")
    await place.aclose()
    await store.aclose()


async def test_killed_between_effect_and_record_the_effect_is_repeated_by_a_newer_owner(
    ward: Ward,
) -> None:
    """The window of a marker, as documented."""
    assert await ward.run("after-effect") == -signal.SIGKILL
    assert await ward.run("none") == 0

    first, second = ward.noted("effect")
    assert int(second[2]) > int(first[2])
    assert (first[3], second[3]) == ("False", "True")
    assert ward.noted("report") == [["1", "0", "0"]]
    assert (await ward.record()).state is State.COMPLETED


async def test_killed_between_record_and_ack_the_work_is_not_repeated(ward: Ward) -> None:
    assert await ward.run("after-record") == -signal.SIGKILL
    assert await ward.run("none") == 0

    assert len(ward.noted("effect")) == 1
    assert ward.noted("report") == [["0", "1", "0"]]


async def test_what_kills_every_runner_becomes_a_dead_letter(ward: Ward) -> None:
    for _ in range(6):
        if (await counts(ward.app, "q"))[3]:
            break
        process = ward.start("crash")
        while process.poll() is None and not (await counts(ward.app, "q"))[3]:
            await asyncio.sleep(0.05)
        process.kill()
        await asyncio.to_thread(process.wait)

    # Where the machine is slow a lease can end before the run begins, which counts as well.
    assert 1 <= len(ward.noted("run")) <= 3
    assert ward.noted("effect") == []
    assert await reasons(ward.app, "q") == ["lost"]


async def test_a_frozen_owner_that_wakes_up_late_leaves_its_successors_record_alone(
    ward: Ward,
) -> None:
    frozen = ward.start("freeze")
    try:
        await ward.until_noted("run")
        assert await ward.run("none") == 0
        before = await ward.record()

        os.kill(frozen.pid, signal.SIGCONT)
        await ward.until_noted("effect", 2)
        frozen.terminate()
        code = await asyncio.to_thread(frozen.wait, 30)
    finally:
        frozen.kill()
        frozen.wait()

    after = await ward.record()
    assert code in (0, 143)
    assert (after.owner, after.state, after.fence) == (before.owner, before.state, before.fence)
    assert before.attempt >= 2
    assert await counts(ward.app, "q") == (0, 0, 0, 0)

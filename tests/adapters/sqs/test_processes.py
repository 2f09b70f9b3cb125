"""Runner processes on SQS that are stopped, killed and poisoned; nothing may be lost for it.

``make chaos-sqs`` runs the longer forms.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.testing.servers.localstack import SqsServer
from tests.adapters.sqs import campaign
from tests.adapters.sqs.campaign import STALE
from tests.adapters.sqs.processes import BOOT, works
from tests.cases.lab import counts

pytestmark = [pytest.mark.slow, pytest.mark.beside, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("ways", "base"),
    [
        (("fail", "fail", "fail"), 0.01),
        (("kill", "fail", "kill"), 0.01),
        (("fail", "kill", "fail"), 1.2),
    ],
    ids=["failures", "kills", "with delay"],
)
async def test_three_runs_and_one_dead_letter_whether_it_fails_or_kills(
    server: SqsServer, ways: tuple[str, ...], base: float
) -> None:
    await campaign.three_runs_and_one_dead_letter(server, ways, base=base)


async def test_one_message_that_kills_its_process_dies_alone(server: SqsServer) -> None:
    await campaign.the_culprit_dies_alone(server, max_attempts=2)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_stop_at_any_moment_strands_nothing_and_kills_nothing(
    server: SqsServer, seed: int
) -> None:
    await campaign.stops_strand_nothing(server, 2, seed)


@pytest.mark.parametrize("broker_limit", [100, 1])
async def test_a_message_sent_into_the_poll_of_a_stopping_runner_is_there_for_the_next(
    server: SqsServer, broker_limit: int
) -> None:
    environment = {"MAX_ATTEMPTS": 1, "LEASE": 300, "BROKER_LIMIT": broker_limit}
    async with works(server, **environment) as place:
        first = await place.start("--log", "json")
        await place.until_ready(1)
        await asyncio.sleep(1)
        first.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        await place.enqueue(1)
        assert await asyncio.wait_for(first.wait(), 30) == 0
        await asyncio.sleep(STALE)
        assert (await counts(place.app, "q"))[1] == 0

        async with place.supervised():
            await place.until_noted("end", 1, 15)

        assert place.notes("start")[0][1] == 1
        assert (await counts(place.app, "q"))[3] == 0


async def test_a_job_that_a_stop_interrupts_is_there_for_the_next_at_once_and_not_dead(
    server: SqsServer,
) -> None:
    async with works(server, MAX_ATTEMPTS=1, LEASE=300) as place:
        first = await place.start("--log", "json", "--grace", "1")
        await place.until_ready(1)
        await place.enqueue(1, seconds=60)
        await place.until_noted("start", 1, 30)
        first.send_signal(signal.SIGTERM)

        assert await asyncio.wait_for(first.wait(), 30) == 0

        await asyncio.sleep(STALE)
        assert await counts(place.app, "q") == (1, 0, 0, 0)
        async with place.supervised():
            await place.until_noted("start", 2, 15)
        assert [attempt for _, attempt, _ in place.notes("start")] == [1, 1]


async def test_what_waits_behind_a_job_is_there_for_others_while_its_runner_stops(
    server: SqsServer,
) -> None:
    async with works(server, LEASE=300) as place:
        first = await place.start("--log", "json", "--slots", "1", "--grace", "20")
        await place.until_ready(1)
        for n in range(10):
            await place.enqueue(n, seconds=8.0 if n == 0 else 0.0)
            if n == 0:
                await place.until_noted("start", 1, 30)
        await asyncio.sleep(STALE)
        first.send_signal(signal.SIGTERM)
        signalled_at = SYSTEM_CLOCK.now()

        while (await counts(place.app, "q"))[:2] != (9, 1):
            assert SYSTEM_CLOCK.now() - signalled_at < 2 + STALE, place.log()
            await asyncio.sleep(0.05)

        assert await asyncio.wait_for(first.wait(), 40) == 0
        assert {n for n, _, _ in place.notes("end")} == {0}


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["in a poll", "in a job"])
async def test_a_second_signal_waits_for_neither_job_nor_poll(
    server: SqsServer, seconds: float
) -> None:
    async with works(server, LEASE=30) as place:
        process = await place.start("--log", "json")
        await place.until_ready(1)
        await place.enqueue(1, seconds=seconds)
        await place.until_noted("start", 1, 30)
        await asyncio.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(1)
        process.send_signal(signal.SIGTERM)
        signalled_at = SYSTEM_CLOCK.now()

        code = await asyncio.wait_for(process.wait(), 30)

        assert SYSTEM_CLOCK.now() - signalled_at < 3
        assert code == 143
        if seconds:
            async with place.supervised():
                await place.until_noted("start", 2, 45)


async def test_leases_are_kept_while_a_stopping_runner_finishes_its_job(
    server: SqsServer,
) -> None:
    async with works(server, LEASE=3) as place:
        first = await place.start("--log", "json", "--grace", "30")
        await place.until_ready(1)
        await place.enqueue(1, seconds=9.0)
        await place.until_noted("start", 1, 30)
        async with place.supervised():
            first.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(first.wait(), 40) == 0
            await asyncio.sleep(4)

        assert len(place.notes("start")) == len(place.notes("end")) == 1


async def test_a_runner_ends_with_the_test_that_started_it(server: SqsServer) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "jobs.py").write_text(
            "from brokerwq import App\n"
            "app = App()\n"
            "@app.worker('q')\n"
            "async def work(*, n: int) -> None: ...\n"
        )
        code = (
            "import subprocess, sys, time\n"
            f"child = subprocess.Popen([sys.executable, '-c', {BOOT!r}, 'run', 'jobs:app'],"
            " stdin=subprocess.PIPE, start_new_session=True)\n"
            "print(child.pid, flush=True); time.sleep(60)"
        )
        starter = started(code, folder, server)
        try:
            assert starter.stdout is not None
            with starter.stdout:
                child = int(await asyncio.to_thread(starter.stdout.readline))
        finally:
            starter.kill()
            starter.wait(10)

        until = SYSTEM_CLOCK.now() + 20
        while is_alive(child):
            assert SYSTEM_CLOCK.now() < until
            await asyncio.sleep(0.05)


def started(code: str, folder: Path, server: SqsServer) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **server.environment, "BROKERWQ_URL": server.url("orphan")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"

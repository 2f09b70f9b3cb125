"""Runner processes on SQS that are stopped, killed and poisoned; nothing may be lost for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import secrets
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from brokerwq import App
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.testing.servers.installation import ServerUnavailableError
from brokerwq.testing.servers.localstack import SqsServer, localstack
from tests.cases.lab import counts, dead_letters, reasons

REQUIRED = "sqs" in os.environ.get("BROKERWQ_REQUIRE", "").split(",")
if not REQUIRED:
    pytest.importorskip("aiobotocore")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = int(os.environ.get("BROKERWQ_CHAOS_ROUNDS", "50"))
LANES = 5
GRACE = 2.0
POLL = 10.0

WORKERS = """
import asyncio, json, os, signal, sys, time
from brokerwq import App, Job, RetryPolicy

app = App()
calls = open(os.environ["CALLS"], "a", buffering=1)
policy = RetryPolicy(
    max_attempts=int(os.environ.get("MAX_ATTEMPTS", "3")),
    base=float(os.environ.get("BASE", "0.01")),
    jitter="none",
)

def note(what, job, n):
    calls.write(json.dumps([what, n, job.attempt, time.time()]) + "\\n")

@app.worker("q", lease=float(os.environ.get("LEASE", "4")), retry=policy)
async def work(job: Job, *, n: int, ways: list[str] = [], seconds: float = 0.0) -> None:
    note("start", job, n)
    way = ways[job.attempt - 1] if job.attempt <= len(ways) else "end"
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "exit":
        os._exit(9)
    await asyncio.sleep(seconds)
    if way == "fail":
        raise ValueError(n)
    note("end", job, n)
"""


@pytest.fixture(scope="module")
def server() -> Generator[SqsServer]:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in SqsServer(endpoint="").environment.items():
            patch.setenv(name, value)
        try:
            yield stack.enter_context(localstack())
        except ServerUnavailableError as exc:
            if REQUIRED:
                raise
            pytest.skip(str(exc))


class Lab:
    """A queue of its own, the processes that work on it, and what their jobs wrote down."""

    def __init__(self, server: SqsServer, folder: Path, **environment: object) -> None:
        self.url = server.url(f"x{secrets.token_hex(4)}")
        self.folder = folder / secrets.token_hex(4)
        self.folder.mkdir()
        (self.folder / "jobs.py").write_text(WORKERS)
        self.calls = self.folder / "calls"
        self.calls.touch()
        self.environment = {
            **os.environ,
            **{name: str(value) for name, value in environment.items()},
            "BROKERWQ_URL": self.url,
            "CALLS": str(self.calls),
        }
        self.app = App(self.url)

        @self.app.worker("q", name="work")
        async def work(*, n: int, ways: list[str], seconds: float) -> None: ...

        self._work = work

    async def enqueue(self, n: int, ways: Sequence[str] = (), seconds: float = 0.0) -> None:
        await self._work.enqueue(n=n, ways=list(ways), seconds=seconds)

    async def start(self, *options: str) -> asyncio.subprocess.Process:
        log = (self.folder / "log").open("ab")
        with log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "brokerwq", "run", "jobs:app", *options),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    @asynccontextmanager
    async def supervised(self, *options: str) -> AsyncGenerator[None]:
        """A runner that is started again whenever it dies."""

        async def supervise() -> None:
            while True:
                process = await self.start(*options)
                try:
                    await process.wait()
                except asyncio.CancelledError:
                    process.kill()
                    await process.wait()
                    raise

        task = asyncio.ensure_future(supervise())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def states(self, state: str) -> list[datetime]:
        """When the runners came to ``state``, by their own logs."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [datetime.fromisoformat(x["time"]) for x in lines if x.get("state") == state]

    def last_stop(self) -> float:
        return (self.states("stopped")[-1] - self.states("draining")[-1]).total_seconds()

    async def until_ready(self, times: int) -> None:
        until = SYSTEM_CLOCK.now() + 60
        while len(self.states("ready")) < times:
            assert SYSTEM_CLOCK.now() < until, self.log()
            await asyncio.sleep(0.05)

    def notes(self, what: str) -> list[tuple[int, int, float]]:
        lines = self.calls.read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [(n, attempt, at) for kind, n, attempt, at in found if kind == what]

    async def until_dead(self, count: int, seconds: float) -> None:
        until = SYSTEM_CLOCK.now() + seconds
        while (await counts(self.app, "q"))[3] < count:
            assert SYSTEM_CLOCK.now() < until, self.log()
            await asyncio.sleep(0.1)

    async def until_noted(self, what: str, count: int, seconds: float) -> None:
        until = SYSTEM_CLOCK.now() + seconds
        while len(self.notes(what)) < count:
            assert SYSTEM_CLOCK.now() < until, self.log()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("base", [0.01, 1.2], ids=["at once", "with delay"])
async def test_three_runs_and_one_dead_letter_in_every_mix_of_failing_and_dying(
    server: SqsServer, tmp_path: Path, base: float
) -> None:
    async def mix(ways: tuple[str, ...]) -> None:
        lab = Lab(server, tmp_path, BASE=base, LEASE=3)
        await lab.enqueue(1, ways)
        async with lab.supervised("--slots", "1"):
            await lab.until_dead(1, 90)
            if ways[-1] == "fail":
                # Nothing but the third failure itself is needed for the move.
                (_, _, died_at) = lab.notes("start")[-1]
                assert SYSTEM_CLOCK.utcnow().timestamp() - died_at < 2
        assert [attempt for _, attempt, _ in lab.notes("start")] == [1, 2, 3], ways
        wanted = "failed" if ways[-1] == "fail" else "lost"
        assert await reasons(lab.app, "q") == [wanted], ways
        await lab.app.aclose()

    mixes = list(itertools.product(["fail", "kill"], repeat=3))
    for at in range(0, len(mixes), 4):
        await asyncio.gather(*(mix(ways) for ways in mixes[at : at + 4]))


@pytest.mark.parametrize("max_attempts", [2, 3])
async def test_one_message_that_kills_its_process_dies_alone(
    server: SqsServer, tmp_path: Path, max_attempts: int
) -> None:
    lab = Lab(server, tmp_path, MAX_ATTEMPTS=max_attempts, LEASE=4)
    for n in range(40):
        await lab.enqueue(n, ["exit"] * 9 if n == 20 else [], 0.2)

    async with lab.supervised("--slots", "8"):
        await lab.until_dead(1, 120)
        await lab.until_noted("end", 39, 120)

    assert {n for n, _, _ in lab.notes("end")} == set(range(40)) - {20}
    (letter,) = await dead_letters(lab.app, "q")
    assert json.loads(letter.body)["n"] == 20
    await lab.app.aclose()


async def test_a_stop_at_any_moment_strands_nothing_and_kills_nothing(
    server: SqsServer, tmp_path: Path
) -> None:
    chance = random.Random(5)  # noqa: S311  -- repeatable moments

    async def lane(rounds: int) -> None:
        lab = Lab(server, tmp_path, MAX_ATTEMPTS=1, LEASE=30)
        sent = 0
        for number in range(rounds):
            process = await lab.start("--slots", "3", "--grace", str(GRACE), "--log", "json")
            await lab.until_ready(number + 1)
            for _ in range(4):
                await asyncio.sleep(chance.random() * 0.7)
                await lab.enqueue(sent, seconds=chance.choice([0.0, 0.3, 1.5, 4.0]))
                sent += 1
            await asyncio.sleep(chance.random())
            process.send_signal(signal.SIGTERM)
            if chance.random() < 0.5:  # into a poll that is let finish
                await lab.enqueue(sent)
                sent += 1
            code = await asyncio.wait_for(process.wait(), 60)
            assert code == 0, lab.log()
            assert lab.last_stop() < GRACE + POLL + 1
            await asyncio.sleep(1.2)  # LocalStack's counts are a second old
            _, leased, _, dead = await counts(lab.app, "q")
            assert (leased, dead) == (0, 0), lab.log()
        async with lab.supervised("--slots", "3"):
            await lab.until_noted("end", sent, 120)
        ends = Counter(n for n, _, _ in lab.notes("end"))
        assert ends == Counter(range(sent))
        assert (await counts(lab.app, "q"))[3] == 0
        await lab.app.aclose()

    await asyncio.gather(*(lane(ROUNDS // LANES) for _ in range(LANES)))


async def test_a_message_sent_into_the_poll_of_a_stopping_runner_is_there_for_the_next(
    server: SqsServer, tmp_path: Path
) -> None:
    lab = Lab(server, tmp_path, MAX_ATTEMPTS=1, LEASE=300)
    first = await lab.start("--log", "json")
    await lab.until_ready(1)
    await asyncio.sleep(1)
    first.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.1)
    await lab.enqueue(1)
    assert await asyncio.wait_for(first.wait(), 30) == 0
    await asyncio.sleep(1.2)  # LocalStack's counts are a second old
    assert (await counts(lab.app, "q"))[1] == 0

    async with lab.supervised():
        await lab.until_noted("end", 1, 15)

    assert lab.notes("start")[0][1] == 1
    assert (await counts(lab.app, "q"))[3] == 0
    await lab.app.aclose()


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["in a poll", "in a job"])
async def test_a_second_signal_waits_for_neither_job_nor_poll(
    server: SqsServer, tmp_path: Path, seconds: float
) -> None:
    lab = Lab(server, tmp_path, LEASE=30)
    process = await lab.start("--log", "json")
    await lab.until_ready(1)
    await lab.enqueue(1, seconds=seconds)
    await lab.until_noted("start", 1, 30)
    await asyncio.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    await asyncio.sleep(1)
    process.send_signal(signal.SIGTERM)
    signalled_at = SYSTEM_CLOCK.now()

    code = await asyncio.wait_for(process.wait(), 30)

    assert SYSTEM_CLOCK.now() - signalled_at < 3
    assert code == 143
    if seconds:
        async with lab.supervised():
            await lab.until_noted("start", 2, 45)
    await lab.app.aclose()


async def test_leases_are_kept_while_a_stopping_runner_finishes_its_job(
    server: SqsServer, tmp_path: Path
) -> None:
    lab = Lab(server, tmp_path, LEASE=3)
    first = await lab.start("--log", "json", "--grace", "30")
    await lab.until_ready(1)
    await lab.enqueue(1, seconds=9.0)
    await lab.until_noted("start", 1, 30)
    async with lab.supervised():
        first.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(first.wait(), 40) == 0
        await asyncio.sleep(5)

    assert len(lab.notes("start")) == len(lab.notes("end")) == 1
    await lab.app.aclose()


@pytest.mark.parametrize(
    ("environment", "words", "code"),
    [
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no complete credentials", 3),
        ({"AWS_PROFILE": "nobody"}, "nobody", 2),
    ],
)
async def test_what_cannot_work_ends_the_start_with_one_clear_line(
    server: SqsServer, tmp_path: Path, environment: dict[str, str], words: str, code: int
) -> None:
    none = str(tmp_path / "none")
    lab = Lab(
        server,
        tmp_path,
        AWS_CONFIG_FILE=none,
        AWS_SHARED_CREDENTIALS_FILE=none,
        **environment,
    )
    started_at = SYSTEM_CLOCK.now()

    process = await lab.start()

    assert await asyncio.wait_for(process.wait(), 30) == code
    assert SYSTEM_CLOCK.now() - started_at < 10
    assert lab.log().count(words) == 1
    assert "Traceback" not in lab.log()
    await lab.app.aclose()

"""Runner processes on a queue of their own, and what their jobs wrote down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from brokerwq import App, QueueSpec
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver.protocol import DEFAULT_BROKER_LIMIT
from brokerwq.testing.servers.localstack import SqsServer
from tests.cases.lab import counts

WORKERS = """
import asyncio, json, os, signal, sys, time
from brokerwq import App, Job, QueueSpec, RetryPolicy

spec = {}
if "BROKER_LIMIT" in os.environ:
    spec["broker_limit"] = int(os.environ["BROKER_LIMIT"])
if "DECLARE" in os.environ:
    spec["declare"] = os.environ["DECLARE"]
app = App(queues=[QueueSpec(name="q", **spec)])
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

# The runner ends with the test that started it, even with one that is killed: its standard
# input is a pipe that nobody writes to, and it closes when the test's process is gone.
BOOT = """
import os, runpy, sys, threading
def watch():
    while os.read(0, 1):
        pass
    os._exit(86)
threading.Thread(target=watch, daemon=True).start()
sys.argv[0] = "brokerwq"
runpy.run_module("brokerwq", run_name="__main__", alter_sys=True)
"""


class Works:
    """A queue, the processes that work on it, and their notes; made by ``works``."""

    def __init__(self, server: SqsServer, folder: Path, environment: dict[str, object]) -> None:
        self.url = server.url(f"x{secrets.token_hex(4)}")
        self.folder = folder
        (self.folder / "jobs.py").write_text(WORKERS)
        self.calls = self.folder / "calls"
        self.calls.touch()
        self.environment = {
            **os.environ,
            **server.environment,
            **{name: str(value) for name, value in environment.items()},
            "BROKERWQ_URL": self.url,
            "CALLS": str(self.calls),
        }
        limit = int(str(environment.get("BROKER_LIMIT", DEFAULT_BROKER_LIMIT)))
        self.app = App(self.url, queues=[QueueSpec(name="q", broker_limit=limit)])
        self._processes: list[asyncio.subprocess.Process] = []

        @self.app.worker("q", name="work")
        async def work(*, n: int, ways: list[str], seconds: float) -> None: ...

        self._work = work

    async def enqueue(self, n: int, ways: Sequence[str] = (), seconds: float = 0.0) -> None:
        await self._work.enqueue(n=n, ways=list(ways), seconds=seconds)

    async def start(self, *options: str) -> asyncio.subprocess.Process:
        """Start ``brokerwq run`` with ``options``, or another of its verbs."""
        command = () if options and not options[0].startswith("-") else ("run", "jobs:app")
        with (self.folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", BOOT, *command, *options),
                cwd=self.folder,
                env=self.environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    @asynccontextmanager
    async def supervised(self, *options: str) -> AsyncGenerator[None]:
        """A runner that is started again whenever it dies."""

        async def supervise() -> None:
            while True:
                process = await self.start(*options)
                try:
                    await process.wait()
                except asyncio.CancelledError:
                    await kill(process)
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

    async def until_logged(self, text: str) -> None:
        until = SYSTEM_CLOCK.now() + 60
        while text not in self.log():
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

    async def aclose(self) -> None:
        """End every process, whatever became of the test."""
        for process in self._processes:
            await kill(process)
        await self.app.aclose()


async def kill(process: asyncio.subprocess.Process) -> None:
    """Kill a runner and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


@asynccontextmanager
async def works(server: SqsServer, **environment: object) -> AsyncGenerator[Works]:
    """A queue of its own, and no process left when the block ends."""
    with tempfile.TemporaryDirectory(prefix="brokerwq-sqs-") as folder:
        found = Works(server, Path(folder), environment)
        try:
            yield found
        finally:
            await found.aclose()

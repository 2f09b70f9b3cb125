"""Handlers that do what no handler should: the runner and the other messages bear it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from brokerwq import App, Job, RetryPolicy, Runner, RunReport
from brokerwq.errors import ConfigError

CHILDREN = 10_000
_LEASE = 0.8
INNOCENTS = 10


def cancel_every_slot(_: int) -> None:
    for task in asyncio.all_tasks():
        if "_slot" in repr(task.get_coro()):
            task.cancel()


def cancel_every_call(_: int) -> None:
    for task in asyncio.all_tasks():
        if "Batcher" in repr(task.get_coro()):
            task.cancel()


def set_back_the_clock(_: int) -> None:
    time.time = lambda: 0.0
    time.sleep = lambda _seconds: None


def leave_threads(_: int) -> None:
    for _n in range(20):
        threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()


def change_folder(_: int) -> None:
    os.chdir("/")


def take_signals(_: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)


def recurse(n: int) -> int:
    return recurse(n + 1) + 1


def allocate(_: int) -> None:
    bytearray(1 << 62)


class Finalized:
    def __del__(self) -> None:
        raise RuntimeError


def raise_in_a_finalizer(_: int) -> Finalized:
    Finalized()
    return Finalized()


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    url = f"memory://{uuid.uuid4().hex}"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'queue.db'}"
    return App(url, retry=RetryPolicy(max_attempts=2, base=0.01, cap=0.01))


async def with_innocents(
    app: App, evil: Callable[..., Any], **options: Any
) -> tuple[RunReport, set[int]]:
    done: set[int] = set()

    @app.worker("q")
    async def innocent(n: int) -> None:
        await asyncio.sleep(0)
        done.add(n)

    untyped: Any = app
    worker = untyped.worker("q", name="evil", **options)(evil)
    async with app:
        await innocent.enqueue_many(range(INNOCENTS // 2))
        await worker.enqueue(1)
        await innocent.enqueue_many(range(INNOCENTS // 2, INNOCENTS))
    report = await asyncio.wait_for(
        Runner(app, grace=1, log=False).drain(handle_signals=False), timeout=20
    )
    stats = await app.broker().inspect("q")
    assert (stats.ready.value, stats.leased.value, stats.delayed.value) == (0, 0, 0)
    return report, done


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("evil", "dies"),
    [
        (cancel_every_call, False),
        (set_back_the_clock, False),
        (leave_threads, False),
        (change_folder, False),
        (take_signals, False),
        (raise_in_a_finalizer, False),
        (recurse, True),
        (allocate, True),
    ],
)
async def test_everybody_else_is_served(
    app: App, evil: Callable[[int], Any], *, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", time.time)
    monkeypatch.setattr(time, "sleep", time.sleep)
    monkeypatch.chdir(Path.cwd())
    handler = signal.getsignal(signal.SIGTERM)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)

    async def work(n: int) -> None:
        evil(n)

    try:
        report, done = await with_innocents(app, work)
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.set_wakeup_fd(wakeup)
    assert done == set(range(INNOCENTS))
    assert report.done == INNOCENTS + (not dies)
    assert report.dead == ({"failed": 1} if dies else {})


@pytest.mark.slow
async def test_a_worker_that_cancels_every_slot_costs_nobody_a_message(app: App) -> None:
    tries = 0

    async def work(n: int) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            cancel_every_slot(n)
            await asyncio.sleep(0)

    report, done = await with_innocents(app, work)
    assert done == set(range(INNOCENTS))
    assert report.done == INNOCENTS + 1


@pytest.mark.slow
async def test_ten_thousand_children_are_sent_together(app: App) -> None:
    seen = 0

    @app.worker("q")
    async def child(n: int) -> None:
        nonlocal seen
        seen += n >= 0

    @app.worker("q")
    async def parent(job: Job, n: int) -> None:
        for number in range(n):
            job.enqueue(child, number)

    async with app:
        await parent.enqueue(CHILDREN)
    runner = Runner(app, log=False)
    await asyncio.wait_for(runner.drain(handle_signals=False), timeout=30)
    assert seen == CHILDREN


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["run", "drain"])
async def test_a_worker_cannot_wait_for_its_own_app(app: App, verb: str) -> None:
    errors: list[BaseException] = []
    call: Callable[..., Awaitable[object]] = getattr(app, verb)

    async def work(_: int) -> None:
        try:
            await call(log=False)
        except ConfigError as error:
            errors.append(error)

    await with_innocents(app, work)
    assert "its own app" in str(errors[0])


@pytest.mark.slow
async def test_a_plain_worker_may_run_a_loop_of_its_own(app: App) -> None:
    answers: list[int] = []

    def work(n: int) -> None:
        async def answer() -> int:
            await asyncio.sleep(0.001)
            return n

        answers.append(asyncio.run(answer()))

    report, _ = await with_innocents(app, work)
    assert answers == [1]
    assert report.done == INNOCENTS + 1


@pytest.mark.slow
async def test_a_loop_that_stands_still_beyond_the_lease_loses_nothing(app: App) -> None:
    async def work(_: int) -> None:
        time.sleep(1.1)  # noqa: ASYNC251  -- the very mistake

    report, done = await with_innocents(app, work, lease=_LEASE)
    assert report.done == len(done) + 1 == INNOCENTS + 1
    assert report.lost == 0


def in_a_process(folder: Path, program: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


_FORK = """
import asyncio, os
from brokerwq import App
app = App("sqlite:///q.db")
pids = []

@app.worker("q")
{prefix}def work(n: int) -> None:
    pid = os.fork()
    if pid:
        pids.append(os.waitpid(pid, 0)[1])
    else:
        {child}

async def main():
    async with app:
        await work.enqueue(1)
    print(await app.drain(log=False), pids)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefix", "child"), [("async ", "raise ValueError"), ("", "pass"), ("async ", "pass")]
)
def test_a_fork_that_comes_back_is_ended_and_its_parent_goes_on(
    tmp_path: Path, prefix: str, child: str
) -> None:
    code, said = in_a_process(tmp_path, _FORK.format(prefix=prefix, child=child))
    assert code == 0, said
    assert "os._exit()" in said
    assert said.count("1 done") == 1


_CANCEL_ALL = """
import asyncio
from brokerwq import App
app = App("sqlite:///q.db")

@app.worker("q")
async def work(n: int) -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(1)
"""


@pytest.mark.slow
def test_a_worker_that_cancels_the_whole_loop_ends_the_runner_in_order(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(_CANCEL_ALL)
    code = (
        "import asyncio, sys, time\n"
        "from brokerwq.cli import main\n"
        "import jobs\n"
        "async def send():\n"
        "    async with jobs.app:\n"
        "        await jobs.work.enqueue(1)\n"
        "asyncio.run(send())\n"
        "sys.exit(main(['drain', 'jobs:app', '--grace', '0']))\n"
    )
    ended, said = in_a_process(tmp_path, code)
    assert ended == 70, said
    assert "a worker cancelled the runner itself" in said

    async def left() -> tuple[int, int]:
        async with App(f"sqlite:///{tmp_path / 'q.db'}") as app:
            stats = await app.broker().inspect("q")
        return stats.leased.value, stats.ready.value + stats.delayed.value

    assert asyncio.run(left()) == (0, 1)

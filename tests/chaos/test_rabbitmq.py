"""Campaigns on real RabbitMQ servers: what dies, and what must not be lost for it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from brokerwq import App, RetryPolicy, Runner
from brokerwq.driver import QueueSpec
from brokerwq.errors import BrokerwqError, EnqueueError
from brokerwq.testing.servers.node import RabbitNode
from brokerwq.testing.servers.proxy import TcpProxy
from brokerwq.testing.servers.rabbitmq import Release, rabbitmq_cluster
from tests.adapters.rabbit import (
    NAMES,
    RELEASES,
    Lab,
    node_or_skip,
    opened,
    place_of,
    server_or_skip,
    url_through,
)
from tests.required import or_skipped

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKER = Path(__file__).with_name("rabbit_worker.py")


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> Release:
    found: Release = request.param
    return found


@pytest.fixture
def lab(release: Release) -> Lab:
    return Lab(server_or_skip(release))


async def until(condition: Callable[[], Awaitable[bool]], within: float, what: str) -> None:
    give_up_at = time.monotonic() + within
    while not await condition():
        assert time.monotonic() < give_up_at, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.05)


@dataclass
class Process:
    """A supervised worker process, and what its handlers did."""

    url: str
    queue: str
    file: Path
    max_attempts: int
    slots: int = 8
    seconds: float = 0.05
    plan: str = "work"
    starts: int = 0
    child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.starts += 1
        arguments = (
            *(self.url, self.queue, str(self.file), str(self.max_attempts)),
            *(str(self.slots), str(self.seconds), self.plan),
        )
        self.child = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORKER),
            *arguments,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def end(self, number: int = signal.SIGKILL) -> int:
        assert self.child is not None
        with contextlib.suppress(ProcessLookupError):
            self.child.send_signal(number)
        return await self.child.wait()

    @asynccontextmanager
    async def supervised(self) -> AsyncGenerator[None]:
        """Keep one process running within the block, as a supervisor would."""

        async def supervise() -> None:
            while True:
                await self.start()
                assert self.child is not None
                await self.child.wait()

        task = asyncio.create_task(supervise())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            await self.end()

    def lines(self) -> list[tuple[str, int, int]]:
        if not self.file.exists():
            return []
        rows = [line.split() for line in self.file.read_text().splitlines()]
        return [(word, int(n), int(attempt)) for word, n, attempt, _ in rows]

    def attempts_of(self, n: int) -> list[int]:
        return [attempt for word, number, attempt in self.lines() if (word, number) == ("start", n)]

    def done(self) -> list[int]:
        return [number for word, number, _ in self.lines() if word == "end"]


async def fill(url: str, queue: str, payloads: list[dict[str, Any]]) -> None:
    app = App(url)

    @app.worker(queue, name="work")
    async def work(payload: dict[str, Any]) -> None: ...

    async with app:
        await app.broker().declare(QueueSpec(name=queue))
        await work.enqueue_many(payloads)


async def dead(url: str, queue: str) -> int:
    async with opened(url) as driver:
        return (await driver.inspect(queue)).dead.value


async def empty(url: str, queue: str) -> bool:
    """Nothing ready, delayed or held by anybody."""
    async with opened(url) as driver:
        await driver.declare(QueueSpec(name=queue), check_only=True)
        stats = await driver.inspect(queue)
        return stats.ready.value + stats.delayed.value == 0


MIXES = (
    "fail,fail,fail",
    "crash,crash,crash",
    "delay,crash,fail",
    "delay,delay,delay",
    "crash,delay,crash",
    "delay,crash,crash",
)


@pytest.mark.parametrize("mix", MIXES)
async def test_three_attempts_are_three_runs_and_one_dead_letter(
    lab: Lab, mix: str, tmp_path: Path
) -> None:
    queue = lab.name()
    await fill(lab.url, queue, [{"n": 0}])
    process = Process(lab.url, queue, tmp_path / "calls", max_attempts=3, plan=mix)

    async def is_dead() -> bool:
        return await dead(lab.url, queue) == 1

    async with process.supervised():
        await until(is_dead, 60, "the dead letter")
        await asyncio.sleep(1.0)

    assert process.attempts_of(0) == [1, 2, 3]
    assert await dead(lab.url, queue) == 1


@pytest.mark.parametrize("max_attempts", [2, 3])
async def test_only_the_culprit_dies(lab: Lab, max_attempts: int, tmp_path: Path) -> None:
    queue = lab.name()
    payloads: list[dict[str, Any]] = [{"n": n} for n in range(40)]
    payloads[7]["plan"] = "crash"
    await fill(lab.url, queue, payloads)
    process = Process(lab.url, queue, tmp_path / "calls", max_attempts=max_attempts)

    async def is_over() -> bool:
        return len(set(process.done())) == 39 and await dead(lab.url, queue) >= 1

    async with process.supervised():
        await until(is_over, 90, "39 done and one dead")
        await asyncio.sleep(1.0)

    assert set(process.done()) == set(range(40)) - {7}
    assert await dead(lab.url, queue) == 1
    assert process.attempts_of(7) == list(range(1, max_attempts + 1))


@pytest.mark.parametrize("rounds", [50])
async def test_a_clean_stop_under_load_runs_nothing_twice_and_holds_nothing(
    lab: Lab, rounds: int, tmp_path: Path
) -> None:
    queue = lab.name()
    await fill(lab.url, queue, [{"n": n} for n in range(rounds * 60)])
    process = Process(lab.url, queue, tmp_path / "calls", max_attempts=100, seconds=0.01)
    for _ in range(rounds):
        before = len(process.done())
        await process.start()

        async def is_at_work(before: int = before) -> bool:
            return len(process.done()) > before + 5

        await until(is_at_work, 30, "the runner at work")
        assert await process.end(signal.SIGTERM) == 0

    finished = collections.Counter(process.done())
    assert [n for n, times in finished.items() if times > 1] == []
    async with opened(lab.url) as driver:
        await driver.declare(QueueSpec(name=queue), check_only=True)
        stats = await driver.inspect(queue)
    assert stats.ready.value + stats.delayed.value + len(finished) == rounds * 60
    assert (stats.leased.value, stats.leased.certainty.value) == (0, "exact")


@dataclass
class Stream:
    """A publisher and a runner in this process, through a broker's troubles."""

    app: App
    queue: str
    confirmed: set[int] = field(default_factory=set[int])
    done: collections.Counter[int] = field(default_factory=collections.Counter[int])
    states: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        retry = RetryPolicy(max_attempts=100, base=0.1)

        @self.app.worker(self.queue, name="work", retry=retry)
        async def work(n: int) -> None:
            self.done[n] += 1

        self.work: Any = work

    async def publish(self, count: int, chunk: int = 100) -> None:
        """Send, and send again what was not confirmed, as a careful sender does."""
        waiting = list(range(count))
        while waiting:
            batch, waiting = waiting[:chunk], waiting[chunk:]
            try:
                await self.work.enqueue_many(batch)
            except EnqueueError as exc:
                failed = {batch[each.index] for each in exc.report.failed}
                self.confirmed |= set(batch) - failed
                waiting += sorted(failed)
                await asyncio.sleep(0.2)
            except BrokerwqError:
                waiting += batch
                await asyncio.sleep(0.2)
            else:
                self.confirmed |= set(batch)
                await asyncio.sleep(0.02)  # it shall last as long as what befalls the broker

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncGenerator[Runner]:
        runner = Runner(self.app, self.queue, log=False, **options)
        task = asyncio.create_task(runner.run(handle_signals=False))
        try:
            yield runner
        finally:
            runner.stop()
            await asyncio.wait_for(task, 60)


@pytest.fixture
def node(release: Release) -> Generator[RabbitNode]:
    node = node_or_skip(release)
    try:
        node.start()
        yield node
    finally:
        node.close()


async def test_nothing_is_lost_when_the_broker_is_killed_twice(node: RabbitNode) -> None:
    count = 10_000
    async with opened(node.url) as driver:
        await driver.declare(QueueSpec(name="killed"))
    if node.version.startswith("4.0"):
        # It writes down late which quorum queues it has: one that was declared in the seconds
        # before a kill comes back without its messages, and nobody can consume from it.
        await asyncio.to_thread(node.restart)
    async with App(node.url) as app:
        stream = Stream(app, "killed")
        async with stream.running(slots=50) as runner:
            publishing = asyncio.create_task(stream.publish(count))
            for third in (1, 2):

                async def has_done(third: int = third) -> bool:
                    return len(stream.done) >= third * count // 3

                await until(has_done, 120, f"{third} thirds done")
                await asyncio.to_thread(node.kill)
                await asyncio.sleep(1.0)
                assert runner.state == "degraded"
                resumed_from = len(stream.done)
                await asyncio.to_thread(node.start)

                async def has_resumed(resumed_from: int = resumed_from) -> bool:
                    return len(stream.done) > resumed_from and runner.state == "ready"

                await until(has_resumed, 15, "consuming again after the restart")
            await asyncio.wait_for(publishing, 120)

            async def all_done() -> bool:
                return len(stream.done) == count

            await until(all_done, 120, "every message done")
    assert stream.confirmed == set(range(count)) == set(stream.done)


async def test_a_backoff_outlasts_a_restart_of_the_broker(node: RabbitNode) -> None:
    at: list[float] = []
    async with App(node.url) as app:

        @app.worker("waits", retry=RetryPolicy(max_attempts=2, base=4.0, jitter="none"))
        async def work(n: int) -> None:
            at.append(time.monotonic())
            raise ValueError(n)

        runner = Runner(app, "waits", log=False)
        task = asyncio.create_task(runner.run(handle_signals=False))
        await work.enqueue(1)

        async def has_run(times: int) -> bool:
            return len(at) == times

        await until(lambda: has_run(1), 20, "the first attempt")
        await asyncio.sleep(1.0)
        await asyncio.to_thread(node.restart)
        await until(lambda: has_run(2), 30, "the second attempt")
        runner.stop()
        await asyncio.wait_for(task, 30)
    assert at[1] - at[0] >= 4.0
    assert await dead(node.url, "waits") == 1


async def test_nothing_is_lost_when_a_leader_dies(release: Release) -> None:
    count = 10_000
    with or_skipped(NAMES[release]):
        cluster = rabbitmq_cluster(release)
        nodes = await asyncio.to_thread(cluster.__enter__)
    try:
        # Declared through the first, which so becomes the leader of every queue.
        async with opened(nodes[0].url) as driver:
            await driver.declare(QueueSpec(name="led"))
        hosts = ",".join(f"{node.host}:{node.port}" for node in (nodes[1], nodes[2], nodes[0]))
        async with App(f"amqp://guest:guest@{hosts}/") as app:
            stream = Stream(app, "led")
            async with stream.running(slots=50):
                publishing = asyncio.create_task(stream.publish(count))

                async def a_third_is_done() -> bool:
                    return len(stream.done) >= count // 3

                await until(a_third_is_done, 120, "a third done")
                await asyncio.to_thread(nodes[0].kill)
                before = len(stream.done)

                async def goes_on() -> bool:
                    return len(stream.done) > before + 100

                await until(goes_on, 20, "work after the leader's death")
                await asyncio.wait_for(publishing, 120)

                async def all_done() -> bool:
                    return len(stream.done) == count

                await until(all_done, 120, "every message done")
        assert stream.confirmed == set(range(count))
    finally:
        await asyncio.to_thread(cluster.__exit__, None, None, None)


@pytest.mark.parametrize("trouble", ["cut", "swallow", "refuse", "hang_up"])
async def test_work_goes_on_soon_after_the_network_does(lab: Lab, trouble: str) -> None:
    queue = lab.name()
    with TcpProxy(*place_of(lab.server)) as proxy:
        async with App(url_through(proxy, lab.server)) as app:
            stream = Stream(app, queue)
            async with stream.running(slots=4) as runner:
                await stream.publish(10)

                async def done(n: int = 10) -> bool:
                    return len(stream.done) >= n

                await until(done, 20, "the first messages done")
                getattr(proxy, trouble)()
                if trouble != "cut":

                    async def is_red() -> bool:
                        return runner.state == "degraded"

                    await until(is_red, 30, "a red light")
                    {"swallow": proxy.flow, "refuse": proxy.listen, "hang_up": proxy.answer}[
                        trouble
                    ]()
                started = time.monotonic()
                await stream.publish(20)

                async def all_done() -> bool:
                    return len(stream.done) >= 20 and runner.state == "ready"

                await until(all_done, 10, "work after the trouble")
                assert time.monotonic() - started < 10


async def test_a_job_beyond_the_consumer_timeout_never_runs_twice_at_once(
    release: Release,
) -> None:
    node = node_or_skip(release, config="consumer_timeout = 6000")
    inside = most = 0
    starts: list[int] = []
    try:
        node.start()
        async with App(f"{node.url}?consumer_timeout=6") as app:

            @app.worker("long", lease=3, retry=RetryPolicy(max_attempts=2, base=0))
            async def long(n: int) -> None:
                nonlocal inside, most
                inside += 1
                most = max(most, inside)
                starts.append(n)
                try:
                    await asyncio.sleep(15)
                finally:
                    inside -= 1

            await app.broker().declare(QueueSpec(name="long"))
            await long.enqueue(1)
            runner = Runner(app, "long", log=False, slots=2)
            task = asyncio.create_task(runner.run(handle_signals=False))

            async def is_dead() -> bool:
                return await dead(node.url, "long") == 1

            await until(is_dead, 60, "the dead letter")
            runner.stop()
            await asyncio.wait_for(task, 30)
    finally:
        node.close()
    assert starts == [1, 1]
    assert most == 1

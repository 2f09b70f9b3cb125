"""What the SQLite driver does, without the rest of brokerwq: rates, latency, idle CPU.

    python benchmarks/sqlite_driver.py [--items N] [--backlog N] [--no-rates] [--profile] [FOLDER]

The file is made in FOLDER, on the disk that shall be measured; the default is the current one.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import multiprocessing
import pstats
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import Driver, QueueSpec
from brokerwq.driver.registry import find_adapter
from brokerwq.message import Message, new_message_id

QUEUE = "bench"
BATCHES = (1, 10, 100, 500)


async def opened(url: str) -> Driver:
    adapter = find_adapter(url)
    driver = adapter.build(adapter.parse_url(url), SYSTEM_CLOCK)
    await driver.open()
    await driver.declare(QueueSpec(name=QUEUE))
    return driver


def messages(count: int) -> list[Message]:
    return [
        Message(
            id=new_message_id(),
            type="thumbnail",
            content_type="application/json",
            body=b'{"key":"2024/05/17/a-photograph.jpg","width":256}',
            created_at=datetime.now(UTC),
        )
        for _ in range(count)
    ]


async def timed(name: str, items: int, work: Callable[[], Awaitable[object]]) -> None:
    cpu, start = time.process_time(), time.perf_counter()
    await work()
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    print(f"{name:32s} {items / seconds:10,.0f} a second {used / items * 1e6:8.1f} us CPU each")


async def send(driver: Driver, count: int, batch: int) -> None:
    some = messages(batch)
    for _ in range(count // batch):
        await driver.send(QUEUE, some, [0.0] * batch)


async def drain(driver: Driver, count: int, batch: int) -> None:
    consumer = await driver.consume(QUEUE, lease=60, prefetch=batch)
    for _ in range(count // batch):
        deliveries = await consumer.claim(batch, 0)
        assert len(deliveries) == batch
        results = await consumer.ack(deliveries)
        assert results == [None] * batch


async def overlapped(driver: Driver, count: int, batch: int) -> None:
    """As a runner does: the acks of one batch travel with the claim of the next."""
    consumer = await driver.consume(QUEUE, lease=60, prefetch=batch)
    pending: list[asyncio.Task[object]] = []
    for _ in range(count // batch):
        deliveries = await consumer.claim(batch, 0)
        pending.append(asyncio.ensure_future(consumer.ack(deliveries)))
        if len(pending) > 4:
            await pending.pop(0)
    await asyncio.gather(*pending)


async def rates(url: str, items: int) -> None:
    driver = await opened(url)
    for batch in BATCHES:
        count = items if batch >= 100 else items // 10
        await timed(f"send, {batch} a call", count, partial(send, driver, count, batch))
        half = count // 2 // batch * batch
        await timed(f"claim + ack, {batch} a call", half, partial(drain, driver, half, batch))
        await timed(
            f"claim + ack overlapped, {batch}",
            half,
            partial(overlapped, driver, half, batch),
        )
    some = messages(items // 10)
    await timed(
        "send, 1 a call, 500 callers",
        len(some),
        partial(callers, driver, some, 500),
    )
    await driver.aclose()


async def callers(driver: Driver, some: list[Message], count: int) -> None:
    async def caller(own: list[Message]) -> None:
        for message in own:
            await driver.send(QUEUE, [message], [0.0])

    await asyncio.gather(*(caller(some[nth::count]) for nth in range(count)))


async def fill(url: str, count: int) -> None:
    driver = await opened(url)
    await send(driver, count, 500)
    start = time.perf_counter()
    stats = await driver.inspect(QUEUE)
    print(f"inspect with {stats.ready.value:,} ready: {(time.perf_counter() - start) * 1e3:.1f} ms")
    await driver.aclose()


def send_slowly(url: str, count: int, pause: float) -> list[float]:
    """When each send had returned."""

    async def main() -> list[float]:
        driver = await opened(url)
        sent: list[float] = []
        for nth in range(count):
            await asyncio.sleep(pause)
            await driver.send(QUEUE, [Message(id=str(nth), body=b"")], [0.0])
            sent.append(time.monotonic())
        await driver.aclose()
        return sent

    return asyncio.run(main())


async def latency(url: str, executor: Executor, where: str) -> None:
    """From the return of a send there to the return of a claim here."""
    driver = await opened(url)
    consumer = await driver.consume(QUEUE, lease=60, prefetch=1)
    count = 200
    sending = executor.submit(send_slowly, url, count, 0.023)
    claimed: dict[int, float] = {}
    while len(claimed) < count:
        deliveries = await consumer.claim(10, 60)
        now = time.monotonic()
        claimed.update((int(delivery.message.id), now) for delivery in deliveries)
        await consumer.ack(deliveries)
    sent = sending.result()
    took = sorted(max(0.0, claimed[nth] - sent[nth]) for nth in range(count))
    print(
        f"wake-up by {where}: median {took[count // 2] * 1e3:.1f} ms, "
        f"99 % {took[count * 99 // 100] * 1e3:.1f} ms, worst {took[-1] * 1e3:.1f} ms"
    )
    await driver.aclose()


async def idle(url: str, seconds: float) -> None:
    driver = await opened(url)
    consumer = await driver.consume(QUEUE, lease=60, prefetch=1)
    before = resource.getrusage(resource.RUSAGE_SELF)
    cpu = time.process_time()
    assert not await consumer.claim(10, seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"idle claim: {(time.process_time() - cpu) / seconds * 100:.2f} % of a core, "
        f"{(after.ru_nvcsw - before.ru_nvcsw) / seconds:.0f} wake-ups a second"
    )
    await driver.aclose()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=".")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--backlog", type=int, default=0)
    parser.add_argument("--no-rates", action="store_true", help="latency and idle CPU only")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        url = f"sqlite:///{Path(folder, 'bench.db').resolve()}"
        asyncio.run(idle(url, 5))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
            asyncio.run(latency(url, processes, "another process"))
        with ThreadPoolExecutor(1) as threads:
            asyncio.run(latency(url, threads, "another driver of this process"))
        if options.backlog:
            asyncio.run(fill(url, options.backlog))
        if options.no_rates:
            return
        if not options.profile:
            asyncio.run(rates(url, options.items))
            return
        with cProfile.Profile() as profile:
            asyncio.run(rates(url, options.items))
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()

"""The whole library on SQS beside hand-written batches of aiobotocore, and what it costs.

    python benchmarks/sqs.py [--items N] [--rounds N] [--idle SECONDS]

Both send JSON in batches of ten, receive ten at a time, run a job that does nothing and delete
in batches of ten, in one process each and on one LocalStack. Rounds are interleaved and medians
are shown, so that a busy machine slows both alike. CPU is that of the client's process alone,
its imports left out. Requests are counted by a proxy before the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiobotocore.session import get_session
from pydantic import BaseModel

from brokerwq import App, Runner
from brokerwq.testing.servers.localstack import SqsServer, localstack
from brokerwq.testing.sqs_proxy import sqs_proxy

REGION = "us-east-1"
IN_FLIGHT = 4  # sends at once, as many as brokerwq has


class Thumbnail(BaseModel):
    key: str
    width: int = 256


class Watch:
    """Seconds and CPU from its making, when all is ready, to its ``stop``."""

    def __init__(self) -> None:
        self._start, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, items: int) -> dict[str, float]:
        seconds = time.perf_counter() - self._start
        used = time.process_time() - self._cpu
        return {"rate": items / seconds, "cpu_us": used / items * 1e6}


# -- brokerwq --------------------------------------------------------------------------------


def app_on(
    endpoint: str, prefix: str, items: int = 0
) -> tuple[App, Any, Callable[[], Awaitable[object]]]:
    """An app, its worker, and a wait until that has done so many items."""
    app = App(SqsServer(endpoint=endpoint).url(prefix))
    finished = asyncio.Event()
    done = 0

    @app.worker("thumbnails")
    async def thumbnail(_: Thumbnail) -> None:
        nonlocal done
        done += 1
        if done == items:
            finished.set()

    return app, thumbnail, finished.wait


def brokerwq_enqueue(endpoint: str, prefix: str, items: int) -> dict[str, float]:
    app, thumbnail, _ = app_on(endpoint, prefix)

    async def send() -> dict[str, float]:
        async with app:
            await thumbnail.enqueue(Thumbnail(key="first.jpg"))
            watch = Watch()
            await thumbnail.enqueue_many(Thumbnail(key=f"{n}.jpg") for n in range(items - 1))
            return watch.stop(items)

    return asyncio.run(send())


def brokerwq_drain(endpoint: str, prefix: str, items: int) -> dict[str, float]:
    app, _, all_done = app_on(endpoint, prefix, items)

    async def drain() -> dict[str, float]:
        runner = Runner(app, log=False)
        task = asyncio.create_task(runner.run(handle_signals=False))
        while runner.state == "starting":
            await asyncio.sleep(0.001)
        watch = Watch()
        await all_done()
        found = watch.stop(items)
        runner.stop()
        report = await task
        assert report.done == items
        return found

    return asyncio.run(drain())


# -- by hand ---------------------------------------------------------------------------------


@asynccontextmanager
async def client_on(endpoint: str, prefix: str) -> AsyncGenerator[tuple[Any, str]]:
    session: Any = get_session()
    async with session.create_client("sqs", endpoint_url=endpoint, region_name=REGION) as client:
        answer = await client.create_queue(QueueName=f"{prefix}-thumbnails")
        yield client, answer["QueueUrl"]


def by_hand_enqueue(endpoint: str, prefix: str, items: int) -> dict[str, float]:
    async def send() -> dict[str, float]:
        async with client_on(endpoint, prefix) as (client, url):
            watch = Watch()
            batches = iter(range(0, items, 10))

            async def sender() -> None:
                for start in batches:
                    entries = [
                        {
                            "Id": str(n),
                            "MessageBody": Thumbnail(key=f"{n}.jpg").model_dump_json(),
                        }
                        for n in range(start, min(start + 10, items))
                    ]
                    answer = await client.send_message_batch(QueueUrl=url, Entries=entries)
                    assert not answer.get("Failed")

            await asyncio.gather(*(sender() for _ in range(IN_FLIGHT)))
            return watch.stop(items)

    return asyncio.run(send())


def by_hand_drain(endpoint: str, prefix: str, items: int) -> dict[str, float]:
    async def drain() -> dict[str, float]:
        async with client_on(endpoint, prefix) as (client, url):
            watch = Watch()
            done = 0
            while done < items:
                answer = await client.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1
                )
                entries: list[dict[str, str]] = []
                for message in answer.get("Messages", []):
                    Thumbnail.model_validate_json(message["Body"])
                    entry = {"Id": str(len(entries)), "ReceiptHandle": message["ReceiptHandle"]}
                    entries.append(entry)
                if entries:
                    await client.delete_message_batch(QueueUrl=url, Entries=entries)
                done += len(entries)
            return watch.stop(items)

    return asyncio.run(drain())


PAIRS = {
    "brokerwq": (brokerwq_enqueue, brokerwq_drain),
    "by hand": (by_hand_enqueue, by_hand_drain),
}


# -- running them ----------------------------------------------------------------------------


def apart(
    call: Callable[[str, str, int], dict[str, float]], endpoint: str, prefix: str, items: int
) -> dict[str, float]:
    """Run ``call`` in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(call, (endpoint, prefix, items))


def compare(endpoint: str, items: int, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Medians of both, round by round in turn."""
    runs: dict[str, dict[str, list[dict[str, float]]]] = {
        name: {"enqueue": [], "drain": []} for name in PAIRS
    }
    for turn in range(rounds):
        for name, (enqueue, drain) in PAIRS.items():
            prefix = f"{name.replace(' ', '-')}-{turn}"
            runs[name]["enqueue"].append(apart(enqueue, endpoint, prefix, items))
            runs[name]["drain"].append(apart(drain, endpoint, prefix, items))
    return {
        name: {
            what: {
                figure: statistics.median(each[figure] for each in all_runs)
                for figure in ("rate", "cpu_us")
            }
            for what, all_runs in by_what.items()
        }
        for name, by_what in runs.items()
    }


def count(endpoint: str, items: int) -> dict[str, float]:
    """Requests per message from its sending to its deletion, by operation."""
    with sqs_proxy(endpoint) as proxy:
        apart(brokerwq_enqueue, proxy.endpoint, "counted", items)
        apart(brokerwq_drain, proxy.endpoint, "counted", items)
        found = {name: calls / items for name, calls in proxy.requests.most_common()}
    return {"all": sum(found.values()), **found}


def idle(endpoint: str, seconds: float) -> float:
    """Receives a minute of an idle runner on one queue."""
    with sqs_proxy(endpoint) as proxy:
        app, _, _ = app_on(proxy.endpoint, "idle")

        async def run() -> int:
            runner = Runner(app, log=False)
            task = asyncio.create_task(runner.run(handle_signals=False))
            while runner.state == "starting":
                await asyncio.sleep(0.01)
            proxy.requests.clear()
            await asyncio.sleep(seconds)
            polls = proxy.requests["ReceiveMessage"]
            runner.stop()
            await task
            return polls

        return asyncio.run(run()) * 60 / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--json", action="store_true", help="figures as JSON, at the end")
    options = parser.parse_args()
    with localstack() as server:
        os.environ.update(server.environment)
        requests = count(server.endpoint, options.items)
        polls = idle(server.endpoint, options.idle)
        compared = compare(server.endpoint, options.items, options.rounds)
    print(f"{requests['all']:.3f} requests a message:")
    for name, share in requests.items():
        if name != "all":
            print(f"  {name:24} {share:.4f}")
    print(f"{polls:.1f} receives a minute of an idle runner")
    print(f"\n{'':10} {'enqueue/s':>10} {'us CPU':>8} {'drain/s':>10} {'us CPU':>8}")
    for name, by_what in compared.items():
        enqueue, drain = by_what["enqueue"], by_what["drain"]
        print(
            f"{name:10} {enqueue['rate']:10,.0f} {enqueue['cpu_us']:8.0f} "
            f"{drain['rate']:10,.0f} {drain['cpu_us']:8.0f}"
        )
    for what in ("enqueue", "drain"):
        times = compared["brokerwq"][what]["cpu_us"] / compared["by hand"][what]["cpu_us"]
        print(f"CPU a message, {what}: {times:.2f} x by hand")
    if options.json:
        print(json.dumps({"requests": requests, "polls": polls, "compared": compared}, indent=2))


if __name__ == "__main__":
    main()

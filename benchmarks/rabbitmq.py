"""brokerwq on RabbitMQ beside hand-written aio-pika and four peers, on one server.

    make bench-rabbitmq ARGS="[--items N] [--rounds N] [--release 3.10] [--only NAME ...]"

One process each, a job that does nothing, durable queues (quorum where the system can), confirmed
sends, acks by hand. Rounds are interleaved and medians are shown, so that a busy machine slows
all of them alike. Drain is measured inside the job: from its first call to its last. Peers that
are not installed are left out; ``make bench-rabbitmq`` installs them.
"""

# ruff: noqa: ARG001  -- a job that does nothing uses nothing

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from brokerwq.testing.servers.rabbitmq import Release, rabbitmq

IN_FLIGHT = 100
SLOTS = 100
QUORUM = {"x-queue-type": "quorum"}


class Meter:
    """Rate and CPU of ``items`` calls, from the first to the last; then the process ends."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.count = 0
        self.cpu = self.start = 0.0

    def tick(self) -> None:
        if self.count == 0:
            self.cpu, self.start = time.process_time(), time.perf_counter()
        self.count += 1
        if self.count == self.items:
            self.report(self.items - 1)

    def report(self, items: int) -> None:
        seconds, used = time.perf_counter() - self.start, time.process_time() - self.cpu
        line = json.dumps({"rate": items / seconds, "cpu_us": used / items * 1e6})
        os.write(1, f"\n{line}\n".encode())  # some peers redirect what is printed
        os._exit(0)

    def begin(self) -> None:
        self.cpu, self.start = time.process_time(), time.perf_counter()


async def many(items: int, send: Callable[[int], Awaitable[object]]) -> None:
    """Send with at most IN_FLIGHT unconfirmed."""
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(n: int) -> None:
        async with room:
            await send(n)

    await asyncio.gather(*(one(n) for n in range(items)))


# -- brokerwq ---------------------------------------------------------------------------------


def brokerwq(url: str, queue: str, items: int, what: str) -> None:
    from brokerwq import App, Runner

    app = App(url)
    meter = Meter(items)

    @app.worker(queue, name="job")
    async def job(n: int) -> None:
        meter.tick()

    async def enqueue() -> None:
        async with app:
            await app.broker().inspect(queue)  # connected, as the others are
            meter.begin()
            await job.enqueue_many(range(items))
            meter.report(items)

    async def declare() -> None:
        from brokerwq.driver import QueueSpec

        async with app:
            await app.broker().declare(QueueSpec(name=queue))

    async def drain() -> None:
        await Runner(app, slots=SLOTS, log=False).run()

    asyncio.run({"declare": declare, "enqueue": enqueue, "drain": drain}[what]())


# -- aio-pika by hand -------------------------------------------------------------------------


def aio_pika(url: str, queue: str, items: int, what: str) -> None:
    import aio_pika as client

    meter = Meter(items)

    async def main() -> None:
        connection = await client.connect(url)
        channel = await connection.channel(on_return_raises=True)
        await channel.set_qos(prefetch_count=SLOTS)
        found = await channel.declare_queue(queue, durable=True, arguments=dict(QUORUM))
        if what == "declare":
            await connection.close()
        elif what == "enqueue":

            async def send(n: int) -> None:
                message = client.Message(json.dumps(n).encode(), delivery_mode=2)
                await channel.default_exchange.publish(message, routing_key=queue)

            meter.begin()
            await many(items, send)
            meter.report(items)
        else:

            async def job(n: int) -> None:
                meter.tick()

            async def on_message(message: Any) -> None:
                await job(json.loads(message.body))
                await message.ack()

            await found.consume(on_message)
            await asyncio.Event().wait()

    asyncio.run(main())


# -- peers ------------------------------------------------------------------------------------


def peer(name: str) -> Any:
    """A module of a peer, which need not be installed."""
    return importlib.import_module(name)


def celery(url: str, queue: str, items: int, what: str) -> None:
    app: Any = peer("celery").Celery("bench", broker=url)
    app.conf.update(
        task_queues=[peer("kombu").Queue(queue, queue_arguments=dict(QUORUM), durable=True)],
        task_default_queue=queue,
        task_default_queue_type="quorum",
        task_ignore_result=True,
        task_acks_late=True,
        worker_prefetch_multiplier=SLOTS,
        broker_transport_options={"confirm_publish": True},
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
    )
    meter = Meter(items)

    def job(n: int) -> None:
        meter.tick()

    task: Any = app.task(name="job")(job)
    if what == "drain":
        options = ("--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat")
        app.worker_main(["worker", *options, "--loglevel=ERROR", f"--queues={queue}"])
    elif what == "enqueue":
        with app.connection_for_write() as connection:
            producer = app.amqp.Producer(connection)
            task.apply_async((0,), producer=producer)
            meter.begin()
            for n in range(1, items):
                task.apply_async((n,), producer=producer)
            meter.report(items - 1)


def dramatiq(url: str, queue: str, items: int, what: str) -> None:
    library = peer("dramatiq")
    broker = peer("dramatiq.brokers.rabbitmq").RabbitmqBroker(url=url, confirm_delivery=True)
    library.set_broker(broker)
    meter = Meter(items)

    def job(n: int) -> None:
        meter.tick()

    actor: Any = library.actor(job, queue_name=queue)
    if what == "drain":
        library.Worker(broker, worker_threads=1).start()
        while True:
            time.sleep(1)
    elif what == "enqueue":
        actor.send(0)
        meter.begin()
        for n in range(1, items):
            actor.send(n)
        meter.report(items - 1)


def taskiq(url: str, queue: str, items: int, what: str) -> None:
    library = peer("taskiq_aio_pika")
    broker = library.AioPikaBroker(url, qos=SLOTS)
    broker = broker.with_queue(library.Queue(name=queue, durable=True))
    meter = Meter(items)

    async def job(n: int) -> None:
        meter.tick()

    task: Any = broker.register_task(job, task_name="job")

    async def main() -> None:
        broker.is_worker_process = what == "drain"
        await broker.startup()
        if what == "drain":
            receiver = peer("taskiq.receiver").Receiver
            await receiver(broker, max_async_tasks=SLOTS, run_startup=False).listen(asyncio.Event())
        elif what == "enqueue":
            meter.begin()
            await many(items, task.kiq)
            meter.report(items)

    asyncio.run(main())


def faststream(url: str, queue: str, items: int, what: str) -> None:
    library = peer("faststream.rabbit")
    channel = library.Channel(prefetch_count=SLOTS)
    broker = library.RabbitBroker(url, default_channel=channel, logger=None)
    target = library.RabbitQueue(queue, durable=True, queue_type=library.QueueType.QUORUM)
    meter = Meter(items)

    async def job(n: int) -> None:
        meter.tick()

    async def main() -> None:
        if what == "drain":
            policy = peer("faststream.middlewares").AckPolicy.NACK_ON_ERROR
            broker.subscriber(target, ack_policy=policy)(job)
            await broker.start()
            await asyncio.Event().wait()
        await broker.connect()
        await broker.declare_queue(target)
        if what == "enqueue":

            async def send(n: int) -> None:
                await broker.publish(n, queue=target, persist=True, mandatory=True)

            meter.begin()
            await many(items, send)
            meter.report(items)

    asyncio.run(main())


SYSTEMS: dict[str, tuple[str, Callable[[str, str, int, str], None]]] = {
    "brokerwq": ("brokerwq", brokerwq),
    "aio-pika": ("aio_pika", aio_pika),
    "celery": ("celery", celery),
    "dramatiq": ("dramatiq", dramatiq),
    "taskiq": ("taskiq_aio_pika", taskiq),
    "faststream": ("faststream", faststream),
}


def measure(name: str, url: str, queue: str, items: int, what: str) -> dict[str, float] | None:
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, url, queue, str(items), what],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        if what != "declare":
            print(f"{name} {what}: {done.stderr.strip()[-400:]}", file=sys.stderr)
        return None
    found: dict[str, float] = json.loads(lines[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--release", default="3.10")
    parser.add_argument("--only", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [n for n in options.only if importlib.util.find_spec(SYSTEMS[n][0]) is not None]
    release: Release = options.release
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    with rabbitmq(release) as server:
        for turn in range(options.rounds):
            for name in names:
                queue = f"bench-{name}-{turn}"
                measure(name, server.url, queue, options.items, "declare")
                for what in ("enqueue", "drain"):
                    found = measure(name, server.url, queue, options.items, what)
                    if found is not None:
                        results.setdefault((name, what), []).append(found)
    rows = {
        f"{name} {what}": {
            key: round(statistics.median(each[key] for each in found)) for key in found[0]
        }
        for (name, what), found in results.items()
    }
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{options.items} messages, median of {options.rounds} rounds, RabbitMQ {release}")
    print(f"{'':24}{'messages/s':>12}{'CPU us each':>12}")
    for title, row in rows.items():
        print(f"{title:24}{row['rate']:>12}{row['cpu_us']:>12}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        logging.disable(logging.CRITICAL)
        SYSTEMS[sys.argv[2]][1](sys.argv[3], sys.argv[4], int(sys.argv[5]), sys.argv[6])
    else:
        main()

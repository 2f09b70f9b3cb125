"""Celery, Dramatiq, Taskiq, kombu and pika themselves, on a RabbitMQ of their own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from brokerwq import Job, QueueSpec
from brokerwq.dead_letters import DeadLetters
from tests.adapters.rabbit import RELEASES, Lab, eventually, server_or_skip
from tests.cases.lab import Place

celery: Any = pytest.importorskip("celery")
dramatiq: Any = pytest.importorskip("dramatiq")
kombu: Any = pytest.importorskip("kombu")
pika: Any = pytest.importorskip("pika")

pytestmark = pytest.mark.slow


@pytest.fixture(params=RELEASES)
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(server_or_skip(request.param))


@pytest.fixture
async def place(lab: Lab) -> AsyncGenerator[Place]:
    place = Place(lab.url)
    yield place
    await place.aclose()


async def make(lab: Lab, *queues: str) -> None:
    async with lab.channel() as channel:
        for queue in queues:
            await channel.queue_declare(queue, durable=True)


def celery_app(url: str, queue: str, **settings: Any) -> Any:
    app = celery.Celery("proj", broker=url)
    app.conf.update(task_default_queue=queue, **settings)
    return app


async def test_celerys_own_tasks_are_run(lab: Lab, place: Place) -> None:
    queue = lab.name()
    await make(lab, f"{queue}-dead")
    due = datetime.now(UTC) + timedelta(seconds=1)

    def send() -> list[str]:
        with celery_app(lab.url, queue) as producer:
            tasks = [
                producer.send_task("proj.add", (1, 2)),
                producer.send_task("proj.add", (1,), {"y": 3}, eta=due),
                producer.send_task("proj.add", (1, 4), expires=3600),
                producer.send_task("proj.add", (9, 9), link=producer.signature("proj.other")),
                producer.send_task("proj.typed", (Decimal("19.90"), due), compression="zlib"),
                producer.send_task("proj.add", (1, 1), serializer="pickle"),
                producer.send_task("proj.theirs", (1,), serializer="pickle"),
            ]
            return [task.id for task in tasks]

    ids = await asyncio.to_thread(send)
    app = place.app()
    seen: dict[str, Any] = {}

    @app.worker(queue, codec="celery", foreign=True, name="proj.add")
    async def add(job: Job, *, x: int, y: int) -> None:
        raw: Any = job.raw
        assert raw["headers"]["lang"] == "py"
        assert raw["headers"]["argsrepr"].startswith("(1")
        seen[job.id] = (x, y)
        assert y != 3 or datetime.now(UTC) >= due

    @app.worker(queue, codec="celery", foreign=True, name="proj.typed")
    def typed(job: Job, *, price: Decimal, at: datetime) -> None:
        seen[job.id] = (price, at)

    async with place.running(app) as running:
        await place.until(lambda: len(seen) == 4)
        await eventually(lambda: lab.ready(f"{queue}-dead"), 2)
        report = await running.stop()

    letters, _ = await DeadLetters(await app.broker().driver(), queue).find()
    assert {(each.id, each.type) for each in letters} == {(ids[n], "proj.add") for n in (3, 5)}
    await eventually(lambda: lab.ready(queue), 1)  # nobody's here: for who can read it
    assert seen == {
        ids[0]: (1, 2),
        ids[1]: (1, 3),
        ids[2]: (1, 4),
        ids[4]: (Decimal("19.90"), due),
    }
    assert dict(report.dead) == {"decode": 2}


PROJECT = """
import celery, os, pathlib
app = celery.Celery("proj", broker=os.environ["BROKER"])
app.conf.update(task_default_queue=os.environ["QUEUE"])
@app.task(name="proj.old")
def old(n):
    pathlib.Path(f"old-{n}").touch()
"""


async def test_one_task_moves_over_while_celery_itself_runs_the_rest(
    lab: Lab, place: Place, tmp_path: Path
) -> None:
    queue = lab.name()
    await make(lab, f"{queue}-dead")
    app = place.app()
    seen: list[int] = []

    @app.worker(queue, codec="celery", foreign=True, name="proj.new", on_unknown="leave")
    async def new(n: int) -> None:
        seen.append(n)

    def send() -> None:
        with celery_app(lab.url, queue) as producer:
            for n in range(3):
                producer.send_task("proj.old", (n,))
                producer.send_task("proj.new", (n,))
            old = [producer.signature("proj.old", (n,), immutable=True) for n in (3, 4)]
            celery.chain(*old).apply_async()

    await asyncio.to_thread(send)
    async with place.running(app):
        await place.until(lambda: len(seen) == 3)
        with celery_worker(tmp_path, lab.url, queue):
            await place.until(lambda: len(list(tmp_path.glob("old-*"))) == 5)

    assert sorted(seen) == [0, 1, 2]
    assert await lab.ready(f"{queue}-dead") == 0


@contextmanager
def celery_worker(folder: Path, url: str, queue: str) -> Generator[None]:
    """Celery's own worker, in a process of its own."""
    (folder / "proj.py").write_text(PROJECT)
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "WARNING")
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "proj", "worker", "-P", "solo", *quiet],
        cwd=folder,
        env={**os.environ, "BROKER": url, "QUEUE": queue, "C_FORCE_ROOT": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()  # when asked to stop it takes ten seconds
        process.wait(10)


async def test_dramatiqs_own_messages_are_run(lab: Lab, place: Place) -> None:
    brokers: Any = pytest.importorskip("dramatiq.brokers.rabbitmq")
    queue = lab.name()

    def send() -> list[str]:
        broker = brokers.RabbitmqBroker(url=lab.url, middleware=[])
        broker.declare_queue(queue, ensure=True)
        try:
            return [
                broker.enqueue(message(queue, (4711,), {"locale": "de"})).message_id,
                broker.enqueue(message(queue, (4712,), {"locale": "fr"}), delay=1500).message_id,
                broker.enqueue(message(queue, (1,), {}, pipe_target={"a": 1})).message_id,
            ]
        finally:
            broker.close()

    ids = await asyncio.to_thread(send)
    sent = datetime.now(UTC)
    spec = QueueSpec(name=queue, dead_letter=f"{queue}.XQ", declare="never")
    delayed = QueueSpec(name=f"{queue}.DQ", dead_letter=f"{queue}.XQ", declare="never")
    app = place.app(queues=[spec, delayed])
    seen: dict[str, Any] = {}

    async def send_receipt(job: Job, *, order: int, locale: str) -> None:
        seen[job.id] = (order, locale, (datetime.now(UTC) - sent).total_seconds())

    app.worker(queue, codec="dramatiq", foreign=True)(send_receipt)
    app.worker(f"{queue}.DQ", codec="dramatiq", foreign=True)(send_receipt)

    async with place.running(app):
        await place.until(lambda: len(seen) == 2)
        await eventually(lambda: lab.ready(f"{queue}.XQ"), 1)

    assert seen[ids[0]][:2] == (4711, "de")
    assert seen[ids[1]][:2] == (4712, "fr")
    assert seen[ids[1]][2] > 1


def message(queue: str, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Any:
    return dramatiq.Message(
        queue_name=queue, actor_name="send_receipt", args=args, kwargs=kwargs, options=options
    )


async def test_taskiqs_own_messages_are_run(lab: Lab, place: Place) -> None:
    brokers: Any = pytest.importorskip("taskiq_aio_pika")
    queues: Any = pytest.importorskip("taskiq_aio_pika.queue")
    exchanges: Any = pytest.importorskip("taskiq_aio_pika.exchange")
    queue = lab.name()
    dead = f"{queue}.dead_letter"
    broker = brokers.AioPikaBroker(
        lab.url,
        exchange=exchanges.Exchange(name=queue),
        dead_letter_queue=queues.Queue(name=dead),
        delay_queue=queues.Queue(name=f"{queue}.delay"),
    ).with_queue(queues.Queue(name=queue))
    await broker.startup()
    try:
        kicker = broker.task("shop:receipt", n=5)(_receipt).kicker()
        sent = [await kicker.kiq(4711, locale="de"), await kicker.kiq("x", locale="y")]
        sent.append(await kicker.with_labels(delay=1).kiq(4712, locale="fr"))
    finally:
        await broker.shutdown()
    ids = [task.task_id for task in sent]
    app = place.app(queues=[QueueSpec(name=queue, dead_letter=dead, declare="never")])
    seen: dict[str, Any] = {}

    @app.worker(queue, codec="taskiq", foreign=True, name="shop:receipt")
    async def receipt(job: Job, *, order: int, locale: str) -> None:
        raw: Any = job.raw
        assert raw["Taskiq"]["labels"]["n"] == 5
        seen[job.id] = (order, locale)

    async with place.running(app):
        await place.until(lambda: len(seen) == 2)
        await eventually(lambda: lab.ready(dead), 1)

    assert seen == {ids[0]: (4711, "de"), ids[2]: (4712, "fr")}


async def _receipt(order: int, locale: str) -> None:
    raise AssertionError((order, locale))


async def test_kombu_and_pika_read_what_we_publish(lab: Lab, place: Place) -> None:
    app = place.app()
    queue = lab.name()

    @app.worker(queue, name="thumbnail")
    async def thumbnail(*, key: str, width: int = 256) -> None:
        raise AssertionError((key, width))

    sender = thumbnail.options(headers={"tenant": "blau ü", "x:y": "1"})
    ids = [await sender.enqueue(key="a.jpg"), await sender.enqueue(key="b.jpg", width=9)]

    def by_kombu() -> Any:
        with (
            kombu.Connection(lab.url) as connection,
            connection.SimpleQueue(queue, queue_opts={"no_declare": True}) as simple,
        ):
            got = simple.get(timeout=10)
            got.ack()
            return got.properties, got.headers, got.payload

    def by_pika() -> Any:
        connection = pika.BlockingConnection(pika.URLParameters(lab.url))
        try:
            method, properties, body = connection.channel().basic_get(queue, auto_ack=True)
            assert method is not None
            return properties, body
        finally:
            connection.close()

    properties, headers, payload = await asyncio.to_thread(by_kombu)
    assert payload == {"key": "a.jpg"}
    assert (properties["message_id"], properties["type"]) == (ids[0], "thumbnail")
    assert headers["bwq-v"] == "1"
    assert (headers["tenant"], headers["x:y"]) == ("blau ü", "1")

    found, body = await asyncio.to_thread(by_pika)
    assert json.loads(body) == {"key": "b.jpg", "width": 9}
    assert (found.message_id, found.type) == (ids[1], "thumbnail")
    assert found.content_type == "application/json"
    assert found.delivery_mode == 2
    assert found.headers["tenant"] == "blau ü"
    assert abs(int(found.headers["bwq-created"]) / 1000 - datetime.now(UTC).timestamp()) < 60

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokerwq import App, Job, RetryPolicy, Runner
from brokerwq.driver import Driver, QueueSpec
from brokerwq.errors import ConfigError, ConnectionLostError, QueueMismatchError
from brokerwq.events import Event, JobEnded, MessagesClaimed
from brokerwq.testing.faults import Fail, Faults, FaultyDriver
from tests.migrate.lab import QUEUE, Lab, made, opened


def memory() -> str:
    return f"memory://{uuid.uuid4().hex}"


def store(folder: Path) -> str:
    return f"sqlite:///{folder}/keys.db"


@asynccontextmanager
async def running(app: App, **options: Any) -> AsyncGenerator[Runner]:
    runner = Runner(app, log=False, **options)
    task = asyncio.create_task(runner.run(handle_signals=False))
    try:
        yield runner
    finally:
        runner.stop()
        await asyncio.wait_for(task, 30)


async def until(condition: Any, what: str = "it") -> None:
    for _ in range(1500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{what} never came")


def working(app: App) -> list[tuple[str, int]]:
    """A worker that notes what it has run."""
    ran: list[tuple[str, int]] = []

    @app.worker(QUEUE, name="work")
    async def work(job: Job, n: int) -> None:
        ran.append((job.id, n))

    return ran


@pytest.mark.slow
async def test_messages_of_both_are_run_and_new_ones_go_to_one(tmp_path: Path) -> None:
    old, new = memory(), f"sqlite:///{tmp_path}/new.db"
    before = App(old)
    working(before)
    async with before:
        await before.workers[0].enqueue(1)
    app = App([old, new], send_to=new)
    ran = working(app)

    async with running(app):
        await app.workers[0].enqueue(2)
        await before.workers[0].enqueue(3)  # a producer that is not switched yet
        await until(lambda: len(ran) == 3)
    await before.aclose()

    assert sorted(n for _, n in ran) == [1, 2, 3]
    assert (app.url, [place.url for place in app.sources]) == (new, [old, new])
    async with opened(new) as driver:
        assert (await driver.inspect(QUEUE)).ready.value == 0


@pytest.mark.slow
async def test_what_a_job_sends_goes_to_the_new_side() -> None:
    old, new = memory(), memory()
    producer = App(old)
    working(producer)
    async with producer:
        await producer.workers[0].enqueue(1)
    app = App([old, new], send_to=new)
    seen: list[str] = []

    @app.worker("children", name="child")
    async def child(n: int) -> None: ...

    @app.worker(QUEUE, name="work")
    async def work(job: Job, n: int) -> None:
        job.enqueue(child, n)
        seen.append(job.id)

    runner = Runner(app, QUEUE, log=False)
    await asyncio.wait_for(runner.drain(settle=0, handle_signals=False), 20)

    assert len(seen) == 1
    async with opened(new) as driver:
        assert (await driver.inspect("children")).ready.value == 1
    async with opened(old) as driver:
        assert "children" not in await driver.queues()


@pytest.mark.slow
async def test_a_drain_waits_for_both() -> None:
    urls = [memory(), memory()]
    for nth, url in enumerate(urls):
        producer = App(url)
        working(producer)
        async with producer:
            worker: Any = producer.workers[0]
            await worker.enqueue_many(range(nth, 40, 2))
    app = App(urls)
    ran = working(app)

    report = await app.drain(settle=0, log=False)

    assert (report.done, sorted(n for _, n in ran)) == (40, list(range(40)))


@pytest.mark.slow
async def test_one_id_on_both_sides_is_one_effect(tmp_path: Path) -> None:
    urls = [memory(), memory()]
    app = App(urls, store=store(tmp_path), name="shop")
    effects: list[int] = []

    @app.worker(QUEUE, name="work", once="marker")
    async def work(n: int) -> None:
        effects.append(n)

    for url in urls:
        producer = App(url)
        working(producer)
        async with producer:
            await producer.workers[0].enqueue(1, id="the-same")

    report = await app.drain(settle=0, log=False)

    assert (effects, report.done, report.duplicates) == ([1], 1, 1)


@pytest.mark.slow
async def test_one_broker_down_at_the_start_keeps_nobody_from_the_other(tmp_path: Path) -> None:
    down, up = f"sqlite:///{tmp_path}/down.db", memory()
    app = App([down, up], send_to=up)
    ran = working(app)
    faults = Faults()
    faults.add("open", Fail(ConnectionLostError("no route")), times=None)
    _break(app, down, faults)

    async with running(app) as runner:
        await app.workers[0].enqueue(1)
        await until(lambda: len(ran) == 1)
        await until(lambda: any("no route" in reason for reason in runner.reasons))
        assert runner.state == "degraded"
        assert runner.reasons == (f"{down}: ConnectionLostError: no route",)
        faults.clear()
        await until(lambda: runner.state == "ready", "the other broker")
        producer = App(down)
        working(producer)
        async with producer:
            await producer.workers[0].enqueue(2)
        await until(lambda: len(ran) == 2)


@pytest.mark.slow
async def test_one_broker_lost_on_the_way_is_named_and_the_other_goes_on() -> None:
    old, new = memory(), memory()
    app = App([old, new], send_to=new)
    ran = working(app)
    faults = Faults()
    _break(app, old, faults)

    async with running(app) as runner:
        await until(lambda: runner.state == "ready")
        faults.add("claim", Fail(ConnectionLostError("gone")), times=None)
        await until(lambda: runner.state == "degraded")
        await app.workers[0].enqueue(1)
        await until(lambda: len(ran) == 1)
        assert runner.reasons == (f"{QUEUE} at {old}: ConnectionLostError: gone",)
        faults.clear()
        async with opened(old) as driver:  # a claim that finds nothing takes its time
            await driver.send(QUEUE, [made(2)], [0.0])
        await until(lambda: runner.state == "ready")


def _break(app: App, url: str, faults: Faults) -> None:
    def wrapped(driver: Driver) -> Driver:
        return FaultyDriver(driver, faults)

    places = tuple(
        replace(place, wrap=wrapped) if place.url == url else place for place in app.sources
    )
    sending = next(place for place in places if place.url == app.url)
    app._sources, app.place = places, sending  # pyright: ignore[reportPrivateUsage]


async def test_a_queue_that_differs_on_one_side_ends_the_runner(tmp_path: Path) -> None:
    old, new = f"sqlite:///{tmp_path}/old.db", memory()
    async with opened(old) as driver:
        await driver.declare(QueueSpec(name=QUEUE, dead_letter="elsewhere"))
    app = App([old, new])
    working(app)

    with pytest.raises(QueueMismatchError, match="elsewhere"):
        await asyncio.wait_for(Runner(app, log=False).run(handle_signals=False), 20)


@pytest.mark.slow
async def test_a_suspect_of_one_side_holds_up_both(tmp_path: Path) -> None:
    """Only the culprit may die: what runs beside it could come from the other broker."""
    old, new = memory(), memory()
    app = App([old, new], retry=RetryPolicy(max_attempts=2))
    beside: list[int] = []
    inside = 0

    @app.worker(QUEUE, name="work")
    async def work(n: int) -> None:
        nonlocal inside
        inside += 1
        if n == 7:
            beside.append(inside)
        await asyncio.sleep(0.02)
        inside -= 1

    lab = Lab(tmp_path, source=old, target=new)
    await lab.declare(old, new)
    await lab.send(
        [made(7, body=b"7", attempts=1, suspect=True, content_type="application/json")], url=old
    )
    await lab.send(
        [made(n, body=b"1", content_type="application/json") for n in range(30)], url=new
    )

    report = await app.drain(settle=0, log=False)

    assert (report.done, beside) == (31, [1])


@pytest.mark.slow
async def test_events_tell_of_both() -> None:
    events: list[Event] = []
    urls = [memory(), memory()]
    app = App(urls, telemetry=events.append)
    working(app)
    for url in urls:
        producer = App(url)
        working(producer)
        async with producer:
            await producer.workers[0].enqueue(1)

    await app.drain(settle=0, log=False)

    assert sum(isinstance(event, JobEnded) for event in events) == 2
    assert sum(e.count for e in events if isinstance(e, MessagesClaimed)) == 2


@pytest.mark.slow
async def test_the_environment_says_both_and_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = memory(), "sqlite:///my file.db"
    monkeypatch.setenv("BROKERWQ_URL", f"{old} {new}")
    assert App().url == old
    assert [place.url for place in App().sources] == [old, new]

    for send_to in (new, "sqlite"):
        monkeypatch.setenv("BROKERWQ_SEND_TO", send_to)
        assert App().url == new
    monkeypatch.setenv("BROKERWQ_SEND_TO", old)
    assert App().url == old
    shown = {setting.name: setting.value for setting in App().settings.describe()}
    assert (shown["url"], shown["send_to"]) == (f"{old} {new}", old)


async def test_an_app_put_elsewhere_for_a_test_is_there_alone() -> None:
    app = App([memory(), memory()])
    ran = working(app)

    async with app.on(memory()):
        assert len(app.sources) == 1
        await app.workers[0].enqueue(1)
        await app.drain(settle=0, log=False)

    assert len(ran) == 1
    assert len(app.sources) == 2


@pytest.mark.parametrize(
    ("urls", "send_to", "words"),
    [
        (["memory://a", "memory://a"], None, "memory://a stands twice"),
        (["sqlite:///a.db", "sqlite:///./a.db"], None, "stands twice"),
        (["memory://a", "kafka://b"], None, "no adapter serves kafka"),
        (["memory://a", "memory://b"], "memory://c", "send_to is memory://c; it must be one of"),
        (["memory://a", "memory://b"], "memory", "or a scheme of one alone"),
        (["memory://a", 1], None, "a URL, or several of them in a list"),
        ([], None, "a URL, or several of them in a list"),
        (7, None, "a URL, or several of them in a list"),
        ("memory://a", "sqs", "it must be one of memory://a"),
    ],
)
def test_brokers_that_make_no_sense(urls: Any, send_to: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        App(urls, send_to=send_to)


def test_no_password_is_shown() -> None:
    app = App(["memory://a", "memory://user:secret@b"], send_to="memory://a")

    assert "secret" not in repr(app)
    with pytest.raises(ConfigError) as caught:
        App(["memory://a", "memory://user:secret@b"], send_to="amqp://user:secret@c")
    assert "secret" not in str(caught.value)


@pytest.mark.slow
async def test_spans_name_each_message_s_own_broker(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from tests.telemetry.lab import Lab as Telemetry

    telemetry = Telemetry()
    urls = [memory(), f"sqlite:///{tmp_path}/new.db"]
    for url in urls:
        producer = App(url)
        working(producer)
        async with producer:
            await producer.workers[0].enqueue(1)
    app = App(urls, send_to=urls[1], telemetry=telemetry.otel)
    working(app)

    await app.drain(settle=0, log=False)

    for operation in (f"process {QUEUE}", f"ack {QUEUE}"):
        found = [span.attributes or {} for span in telemetry.named(operation)]
        assert {str(each["messaging.system"]) for each in found} == {"memory", "sqlite"}

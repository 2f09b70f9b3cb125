"""What other programs leave in a queue of RabbitMQ reaches a worker as its sample says."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest
from brokerwq_rabbitmq.table import Properties
from pamqp.commands import Basic

from brokerwq import App, Job, Message, QueueSpec
from brokerwq.dead_letters import DeadLetters
from brokerwq.dead_letters.sweep import Sweep
from brokerwq.driver import Delivery
from brokerwq.events import JobEnded
from tests.adapters.rabbit import RELEASES, Lab, claim, eventually, server_or_skip
from tests.adapters.test_rabbitmq_wire import Wire
from tests.cases.lab import Place, declare, send_raw
from tests.foreign.deploy import rolling_deploy
from tests.foreign.samples import Since, amqp_properties, poison_bodies, sample

pytestmark = pytest.mark.slow


@pytest.fixture(params=RELEASES)
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(server_or_skip(request.param))


@pytest.fixture
async def place(lab: Lab) -> AsyncGenerator[Place]:
    place = Place(lab.url)
    yield place
    await place.aclose()


async def theirs(lab: Lab) -> str:
    """A queue that somebody else has made, as Celery makes it."""
    queue = lab.name()
    async with lab.channel() as channel:
        for name in (f"{queue}-dead", queue):
            await channel.queue_declare(name, durable=True)
    return queue


async def publish(lab: Lab, queue: str, found: Any) -> None:
    await lab.publish(queue, found["body"].encode(), Wire(amqp_properties(found)))


def native_headers(found: Any) -> dict[str, Any]:
    return {
        name: datetime.fromtimestamp(value, UTC) if kind == "T" else value
        for name, (kind, value) in found["headers"].items()
    }


async def test_celery_keeps_its_time_and_its_headers(lab: Lab, place: Place) -> None:
    found = sample("celery.amqp.json")
    expect = found["expect"]
    queue = await theirs(lab)
    place.clock = Since("2026-09-21T14:14:48+00:00")
    app = place.app()
    seen: list[Any] = []
    due = datetime.fromisoformat(expect["not_before"])

    @app.worker(queue, codec="celery", foreign=True, name=expect["task"])
    async def send_receipt(job: Job, *, order: int, currency: str, locale: str) -> None:
        assert place.clock.utcnow() >= due
        raw: Any = job.raw
        assert raw["headers"] == native_headers(found)
        assert raw["correlation_id"] == job.id == found["properties"]["correlation_id"]
        assert raw["reply_to"] == found["properties"]["reply_to"]
        seen.append(([order, currency], {"locale": locale}, job.attempt))

    await publish(lab, queue, found)
    async with place.running(app):
        await place.until(lambda: seen)
    assert seen == [(expect["args"], expect["kwargs"], 1)]


async def test_tasks_that_are_far_off_do_not_keep_others_out(lab: Lab, place: Place) -> None:
    found = sample("celery.amqp.json")
    queue = await theirs(lab)
    place.clock = Since("2026-09-21T10:00:00+00:00")  # four hours too early
    app = place.app()
    seen: list[int] = []

    @app.worker(queue, codec="celery", foreign=True, name="now")
    async def now(n: int) -> None:
        seen.append(n)

    @app.worker(queue, codec="celery", foreign=True, name=found["expect"]["task"])
    async def later(*, order: int, currency: str, locale: str) -> None:
        raise AssertionError((order, currency, locale))

    await publish(lab, queue, found)
    at_once = {**found, "headers": {"task": ["S", "now"]}, "body": "[[1],{},{}]"}
    await publish(lab, queue, at_once)
    async with place.running(app, slots=1):
        await place.until(lambda: seen)
    assert seen == [1]
    assert await lab.ready(queue) == 1


async def test_an_expired_task_is_dropped_and_counted(lab: Lab, place: Place) -> None:
    found = sample("celery.amqp.json")
    queue = await theirs(lab)
    place.clock = Since(found["expect"]["expires"])
    app = place.app()

    @app.worker(queue, codec="celery", foreign=True, name=found["expect"]["task"])
    async def send_receipt(*, order: int, currency: str, locale: str) -> None:
        raise AssertionError((order, currency, locale))

    await publish(lab, queue, found)
    async with place.running(app):
        await place.until(lambda: place.events.of(JobEnded))
    (ended,) = place.events.of(JobEnded)
    assert (ended.outcome, ended.reason) == ("discarded", "expired")
    assert await lab.ready(f"{queue}-dead") == 0


async def test_a_task_that_dies_keeps_every_header_of_every_type(lab: Lab, place: Place) -> None:
    found = sample("celery.amqp.json")
    queue = await theirs(lab)
    place.clock = Since("2026-09-21T14:15:00+00:00")
    app = place.app()

    @app.worker(queue, codec="celery", foreign=True, name=found["expect"]["task"])
    async def send_receipt(*, order: str) -> None:
        raise AssertionError(order)

    await publish(lab, queue, found)
    async with place.running(app):
        await eventually(lambda: lab.ready(f"{queue}-dead"), 1)

    (letter,) = await look(app, f"{queue}-dead")
    headers: Any = letter.raw["headers"]
    assert headers == native_headers(found)
    assert letter.message.body == found["body"].encode()
    assert letter.message.dead is not None
    assert letter.message.dead.reason == "decode"
    (ended,) = place.events.of(JobEnded)
    assert ended.id == letter.message.id == found["properties"]["correlation_id"]
    assert ended.type == letter.message.dead.type == found["expect"]["task"]
    assert letter.message.type == ""  # it is theirs, also when it is sent back


async def test_json_without_an_id_gets_the_one_that_the_log_names(lab: Lab, place: Place) -> None:
    queue = await theirs(lab)
    app = place.app()

    @app.worker(queue, codec="json", foreign=True)
    async def order(order_id: int) -> None:
        raise AssertionError(order_id)

    await lab.publish(queue, b'{"no": "order"}', Wire(Properties()))
    async with place.running(app):
        await eventually(lambda: lab.ready(f"{queue}-dead"), 1)

    (letter,) = await look(app, f"{queue}-dead")
    (ended,) = place.events.of(JobEnded)
    assert letter.message.id
    assert ended.id == letter.message.id


async def look(app: App, queue: str, count: int = 1) -> list[Delivery]:
    driver = await app.broker().driver()
    return await claim(await driver.consume(queue, lease=60.0, prefetch=count), count)


async def test_airflows_command_comes_as_the_one_argument_it_is(lab: Lab, place: Place) -> None:
    found = sample("airflow.amqp.json")
    queue = await theirs(lab)
    app = place.app()
    seen: list[Any] = []
    name = found["headers"]["task"][1]

    await publish(lab, queue, found)
    # Looked at first, and neither run nor counted for it.
    driver = await place.app().broker().driver()
    async with Sweep(driver, queue, max_held=1, spec=QueueSpec(name=queue, declare="never")) as it:
        (delivery,) = await it.claim(1)
        assert delivery.message.body == found["body"].encode()

    @app.worker(queue, codec="celery", foreign=True, name=name)
    async def execute_command(job: Job, command: list[str]) -> None:
        assert job.id == found["properties"]["correlation_id"]
        seen.append((command, job.attempt))

    async with place.running(app):
        await place.until(lambda: seen)
    assert seen == [(found["expect"]["args_0"], 1)]


async def test_a_dramatiq_message_waits_in_its_delay_queue(lab: Lab, place: Place) -> None:
    found = sample("dramatiq-delayed.amqp.json")
    queue = await theirs(lab)
    due = found["expect"]["not_before_ms"] / 1000
    place.clock = Since(datetime.fromtimestamp(due - 2, UTC).isoformat())
    app = place.app()
    seen: list[Any] = []

    @app.worker(queue, codec="dramatiq", foreign=True)
    async def send_receipt(job: Job, *, order: int, locale: str) -> None:
        assert place.clock.utcnow().timestamp() >= due
        raw: Any = job.raw["Dramatiq"]
        assert raw["queue_name"] == "default"
        assert raw["options"]["retries"] == 1
        seen.append((job.id, job.type, job.attempt, order, locale))

    await publish(lab, queue, found)
    async with place.running(app):
        await place.until(lambda: seen)
    assert seen == [(found["expect"]["id"], found["expect"]["actor"], 1, 4711, "de")]


async def test_a_taskiq_message_comes_with_headers_of_every_type(lab: Lab, place: Place) -> None:
    found = sample("taskiq.amqp.json")
    queue = await theirs(lab)
    app = place.app()
    seen: list[Any] = []

    @app.worker(queue, codec="taskiq", foreign=True, name=found["expect"]["task"])
    async def send_receipt(job: Job, *, order: int, locale: str) -> None:
        raw: Any = job.raw
        assert raw["headers"]["priority"] == raw["Taskiq"]["labels"]["priority"] == 3
        assert raw["headers"]["retry_on_error"] == "True"
        assert raw["priority"] == 3
        seen.append((job.id, order, locale))

    await publish(lab, queue, found)
    async with place.running(app):
        await place.until(lambda: seen)
    assert seen == [(found["expect"]["id"], 4711, "de")]


async def test_a_cloud_event_comes_with_its_attributes(lab: Lab, place: Place) -> None:
    found = sample("cloudevents-binary.amqp.json")
    expect = found["expect"]
    queue = await theirs(lab)
    app = place.app()
    seen: list[Any] = []

    @app.worker(queue, codec="cloudevents", foreign=True, name="com.example.order.paid")
    async def paid(job: Job, payload: dict[str, Any]) -> None:
        raw: Any = job.raw
        event = raw["CloudEvents"]
        assert event["time"] == datetime.fromtimestamp(1790000000, UTC) == job.enqueued_at
        assert raw["headers"]["cloudEvents:time"] == event["time"]
        assert raw["content_type"] == "application/json; charset=utf-8"
        assert "0af7651916cd43dd8448eb211c80319c" in job.headers["traceparent"]
        seen.append((event["id"], event["source"], payload, job.id))

    await publish(lab, queue, found)
    async with place.running(app):
        await place.until(lambda: seen)
    source = expect["ce_source"]
    assert seen == [(expect["ce_id"], source, expect["payload"], f"{source} {expect['ce_id']}")]


async def test_poison_reaches_the_dead_letters_untouched_and_holds_nobody_up(
    lab: Lab, place: Place
) -> None:
    bodies = poison_bodies()
    queue = await theirs(lab)
    app = place.app()
    seen: list[int] = []

    @app.worker(queue, codec="json", foreign=True)
    async def take(*, n: int) -> None:
        seen.append(n)

    for name, body in bodies.items():
        headers: Any = {"name": name, "filling": "a" * 1024}
        await lab.publish(queue, body, Basic.Properties(headers=headers))
    await lab.publish(queue, b'{"n":1}', Basic.Properties())
    async with place.running(app, slots=2) as running:
        await eventually(lambda: lab.ready(f"{queue}-dead"), len(bodies))
        await place.until(lambda: seen)
        report = await running.stop()

    assert dict(report.dead) == {"decode": len(bodies)}
    assert seen == [1]
    found = await look(app, f"{queue}-dead", len(bodies))
    letters = {each.message.headers["name"]: each.message for each in found}
    assert {name: letter.body for name, letter in letters.items()} == bodies
    for letter in letters.values():
        assert letter.dead is not None
        assert (letter.dead.reason, letter.dead.attempts) == ("decode", 1)


async def test_a_packed_body_is_unpacked_as_its_properties_say(lab: Lab, place: Place) -> None:
    import gzip

    queue = await theirs(lab)
    app = place.app()
    seen: list[str] = []

    @app.worker(queue, codec="json", foreign=True)
    async def take(*, name: str) -> None:
        seen.append(name)

    packed = Basic.Properties(
        content_type="application/vnd.example+json; charset=iso-8859-1", content_encoding="gzip"
    )
    await lab.publish(queue, gzip.compress('{"name":"Ærø"}'.encode("latin-1")), packed)
    cut = base64.b64decode("H4sIAAAAAAACA6tWyi9KSS2Kz0xRsjIxNzSsBQBx1w==")
    await lab.publish(queue, cut, packed)
    async with place.running(app):
        await eventually(lambda: lab.ready(f"{queue}-dead"), 1)
        await place.until(lambda: seen)
    assert seen == ["Ærø"]


async def test_poison_with_our_own_type_dies_the_same_way_on_a_queue_of_our_own(
    lab: Lab, place: Place
) -> None:
    bodies = poison_bodies()
    queue = lab.name()
    app = place.app()
    seen: list[int] = []

    @app.worker(queue, name="take")
    async def take(*, n: int) -> None:
        seen.append(n)

    await declare(app, queue)
    await send_raw(
        app, queue, *(Message(id=name, type="take", body=body) for name, body in bodies.items())
    )
    await take.enqueue(n=1)
    async with place.running(app, slots=2) as running:
        await place.until(lambda: seen)
        await eventually(lambda: lab.ready(f"{queue}-dead"), len(bodies))
        report = await running.stop()

    assert seen == [1]
    assert dict(report.dead) == {"decode": len(bodies)}
    found = await look(app, f"{queue}-dead", len(bodies))
    assert {each.message.id: each.message.body for each in found} == bodies


async def test_a_task_that_is_sent_back_from_the_dead_letters_runs_as_it_was_sent(
    lab: Lab, place: Place
) -> None:
    found = sample("airflow.amqp.json")
    queue = await theirs(lab)
    bad, good = place.app(), place.app()
    name = found["headers"]["task"][1]
    seen: list[Any] = []

    @bad.worker(queue, codec="celery", foreign=True, name=name)
    async def refuse(number: int) -> None:
        raise AssertionError(number)

    @good.worker(queue, codec="celery", foreign=True, name=name)
    async def execute_command(job: Job, command: list[str]) -> None:
        raw: Any = job.raw
        assert raw["headers"] == native_headers(found)
        seen.append((job.id, job.attempt, job.message.redrives, command))

    await publish(lab, queue, found)
    async with place.running(bad):
        await eventually(lambda: lab.ready(f"{queue}-dead"), 1)
    driver = await good.broker().driver()
    report = await DeadLetters(driver, queue).redrive()
    assert report.done == 1
    async with place.running(good):
        await place.until(lambda: seen)

    assert seen == [(found["properties"]["correlation_id"], 1, 1, found["expect"]["args_0"])]


async def test_a_rolling_deploy_drops_nothing(
    lab: Lab, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rolling_deploy(place, lab.name(), monkeypatch)

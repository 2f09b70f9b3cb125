"""What other programs leave in a queue of SQS, and Celery itself, on LocalStack."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import unquote_plus

import pytest

from brokerwq import Discard, Job, RetryPolicy, Runner
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.errors import ConfigError, MessageTooLargeError, QueueNotFoundError
from brokerwq.testing.servers.kinds import Service
from brokerwq.testing.servers.localstack import SqsServer
from tests.cases.lab import Place, counts, dead_letters, declare, reasons
from tests.foreign.deploy import rolling_deploy
from tests.foreign.samples import poison_bodies, sample, sqs_attributes
from tests.required import needs

needs("aiobotocore", "sqs")

from brokerwq_sqs.client import SdkClients  # noqa: E402  -- after the skip
from brokerwq_sqs.settings import SqsSettings  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def server(bwq_sqs_server: Service, monkeypatch: pytest.MonkeyPatch) -> SqsServer:
    server = SqsServer(endpoint=bwq_sqs_server.address)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


class SqsPlace(Place):
    prefix: str = ""


@pytest.fixture
async def place(server: SqsServer) -> AsyncGenerator[SqsPlace]:
    prefix = f"f{os.urandom(4).hex()}"
    place = SqsPlace(server.url(prefix, max_wait=1))
    place.prefix = prefix
    yield place
    await place.aclose()


async def put(
    place: SqsPlace, server: SqsServer, *messages: dict[str, Any], queue: str = "q"
) -> None:
    """Send as the SDK of another program does."""
    settings = SqsSettings(region=server.region, endpoint_url=server.endpoint)
    async with SdkClients(settings)(settings, "control") as client:
        url = (await client.get_queue_url(QueueName=f"{place.prefix}-{queue}"))["QueueUrl"]
        for message in messages:
            await client.send_message(QueueUrl=url, **message)


def native(found: Any) -> dict[str, Any]:
    return {"MessageBody": found["body"], "MessageAttributes": sqs_attributes(found)}


async def test_s3s_records_come_together_with_their_keys_as_they_are(
    place: SqsPlace, server: SqsServer
) -> None:
    found = sample("s3-event.sqs.json")
    expect = found["expect"]
    app = place.app()
    seen: list[Any] = []

    def key(event: dict[str, Any]) -> list[str]:
        s3 = event["Records"][0]["s3"] if "Records" in event else {"bucket": event["Bucket"]}
        return [json.dumps(s3["bucket"]), s3.get("object", {}).get("sequencer", "test")]

    @app.worker("q", codec="json", foreign=True, key=key, retry=RetryPolicy(base=0.1))
    async def work(job: Job, event: dict[str, Any]) -> None:
        if event.get("Event") == "s3:TestEvent":
            raise Discard("s3-test-event")
        keys = [record["s3"]["object"]["key"] for record in event["Records"]]
        seen.append((keys, job.attempt, job.message.content_type, job.message.key, job.raw))
        if len(seen) == 1:
            raise ValueError(keys[1])  # one bad record, and no other is lost for it

    await declare(app, "q")
    await put(place, server, native(found), native(found), native(sample("s3-test-event.sqs.json")))
    async with place.running(app) as running:
        await place.until(lambda: len(seen) == 3 and running.runner.state == "ready")
        await place.until(lambda: any(e.reason == "s3-test-event" for e in ended(place)))
        report = await running.stop()

    assert sorted(attempt for _, attempt, *_ in seen) == [expect["attempt"], 1, 2]
    for keys, _, content_type, _, raw in seen:
        assert keys == ["in/2026/r%C3%A9sum%C3%A9+final%2Bv2.csv", "in/2026/empty.csv"]
        assert len(keys) == expect["records"]
        assert unquote_plus(keys[0]) == expect["first_key_decoded"]
        assert (content_type or None) == expect["content_type"]
        assert raw["MessageAttributes"] == {}
    assert len({key for *_, key, _ in seen}) == 1  # though the ids of SQS differ
    assert len({raw["MessageId"] for *_, raw in seen}) == 2
    assert (report.done, report.discarded) == (2, 1)
    assert await reasons(app, "q") == []


def ended(place: Place) -> list[Any]:
    from brokerwq.events import JobEnded

    return place.events.of(JobEnded)


async def test_sns_is_the_same_to_a_handler_wrapped_and_raw(
    place: SqsPlace, server: SqsServer
) -> None:
    app = place.app()
    seen: dict[str, Any] = {}
    wrapped, raw = sample("sns-wrapped.sqs.json"), sample("sns-raw.sqs.json")

    @app.worker("q", codec="sns", foreign=True)
    async def work(job: Job, payload: dict[str, Any]) -> None:
        which = "wrapped" if "Sns" in job.raw else "raw"
        seen[which if "order_id" in payload else str(len(payload["Records"]))] = (
            payload,
            dict(job.headers),
            job.id,
            job.raw,
        )

    as_it_is: list[Any] = []

    @app.worker("plain", codec="json", foreign=True)
    async def plain(job: Job, payload: dict[str, Any]) -> None:
        as_it_is.append((payload, dict(job.headers)))

    s3 = sample("s3-via-sns.sqs.json")
    look_alike: dict[str, Any] = {"Type": "Notification", "Message": "x", "Records": []}
    await declare(app, "q")
    await declare(app, "plain")
    await put(place, server, native(wrapped), native(raw), native(s3))
    await put(place, server, {"MessageBody": json.dumps(look_alike)})
    await put(place, server, native(wrapped), queue="plain")
    async with place.running(app):
        await place.until(lambda: len(seen) == 4 and as_it_is)

    assert as_it_is == [(json.loads(wrapped["body"]), {})]
    assert seen["0"][0] == look_alike

    for which, found in (("wrapped", wrapped), ("raw", raw)):
        payload, headers, _, _ = seen[which]
        expect = found["expect"]
        assert payload == expect["payload"]
        assert headers["event_type"] == expect["headers"]["event_type"]
        assert json.loads(headers["tenant"]) == expect["headers"]["tenant"]
        assert expect["trace_id"] == TRACE
        assert TRACE in headers["traceparent"]
    assert seen["wrapped"][2] == json.loads(wrapped["body"])["MessageId"]
    attributes = seen["raw"][3]["MessageAttributes"]
    expect = raw["expect"]["headers"]
    assert seen["raw"][1]["amount"] == attributes["amount"]["StringValue"] == expect["amount"]
    assert attributes["amount"]["DataType"] == "Number"
    assert attributes["sig"]["BinaryValue"].hex() == expect["sig_hex"]
    assert len(seen["1"][0]["Records"]) == s3["expect"]["records"]


@pytest.mark.parametrize("outer", [True, False])
async def test_celerys_envelope_is_opened(
    place: SqsPlace, server: SqsServer, *, outer: bool
) -> None:
    found = sample("celery.sqs.json")
    expect = found["expect"]
    app = place.app()
    seen: list[Any] = []

    @app.worker("q", codec="celery", foreign=True, name=expect["task"])
    async def send_receipt(job: Job, *, order: int, currency: str, locale: str) -> None:
        raw: Any = job.raw
        assert raw["Celery"]["headers"]["retries"] == 0
        assert raw["Kombu"]["properties"]["delivery_info"]["routing_key"] == "celery"
        assert job.headers["lang"] == "py"
        seen.append((job.id, [order, currency], {"locale": locale}))

    await declare(app, "q")
    body = found["body"] if outer else base64.b64decode(found["body"]).decode()
    await put(place, server, {"MessageBody": body})
    async with place.running(app):
        await place.until(lambda: seen)

    assert seen == [("c0ffee00-0000-4000-8000-000000000007", expect["args"], expect["kwargs"])]


async def test_celerys_own_tasks_are_run(place: SqsPlace, server: SqsServer) -> None:
    celery: Any = pytest.importorskip("celery")
    app = place.app()
    seen: dict[str, Any] = {}

    @app.worker("q", codec="celery", foreign=True, name="proj.add")
    async def add(job: Job, *, x: int, y: int) -> None:
        seen[job.id] = (x, y)

    await declare(app, "q")
    theirs = f"{place.prefix}-q"

    def send() -> list[str]:
        address = server.endpoint.partition("://")[2]
        with celery.Celery("proj", broker=f"sqs://000000000000:test@{address}//") as producer:
            producer.conf.update(
                task_default_queue=theirs,
                broker_transport_options={
                    "region": server.region,
                    "is_secure": False,
                    "predefined_queues": {theirs: {"url": queue_url(server, theirs)}},
                },
            )
            send = producer.send_task
            return [
                send("proj.add", (1, 2)).id,
                send("proj.add", (1,), {"y": 3}, countdown=2).id,
                send("proj.gone", (1,)).id,
                send("proj.add", ("one", 1)).id,
            ]

    started = SYSTEM_CLOCK.now()
    ids = await asyncio.to_thread(send)
    async with place.running(app):
        await place.until(lambda: len(seen) == 2)
        waited = SYSTEM_CLOCK.now() - started
        while (await counts(app, "q"))[3] == 0:
            await asyncio.sleep(0.1)

    assert seen == {ids[0]: (1, 2), ids[1]: (1, 3)}
    assert waited >= 2
    assert await reasons(app, "q") == ["decode"]


def queue_url(server: SqsServer, name: str) -> str:
    boto3: Any = pytest.importorskip("boto3")
    client = boto3.client("sqs", region_name=server.region, endpoint_url=server.endpoint)
    return str(client.get_queue_url(QueueName=name)["QueueUrl"])


async def test_a_pointer_of_the_extended_client_is_dead_at_once(
    place: SqsPlace, server: SqsServer
) -> None:
    found = sample("extended-client-pointer.sqs.json")
    app = place.app()

    @app.worker("q", codec="json", foreign=True)
    async def work(payload: Any) -> None:
        raise AssertionError(payload)

    await declare(app, "q")
    await put(place, server, native(found))
    async with place.running(app) as running:
        await place.until(lambda: ended(place))
        report = await running.stop()

    assert dict(report.dead) == {"payload-offloaded": 1}
    (letter,) = await dead_letters(app, "q")
    raw: Any = letter.raw
    size = raw["MessageAttributes"]["ExtendedPayloadSize"]["StringValue"]
    assert int(size) == found["expect"]["size"]
    assert letter.dead is not None
    assert letter.dead.attempts == 1


async def test_poison_is_carried_whole_and_dies_at_once(place: SqsPlace, server: SqsServer) -> None:
    bodies = poison_bodies()
    too_large = bodies.pop("1-MiB-plus-1")
    app = place.app()
    seen: list[int] = []

    @app.worker("q", codec="json", foreign=True)
    async def take(*, n: int) -> None:
        seen.append(n)

    await declare(app, "q")
    broker = app.broker()
    with pytest.raises(MessageTooLargeError):
        await broker.send("q", too_large)
    lone: Any = {"name": sample_text("lone-surrogate")}
    with pytest.raises(ConfigError, match="lone surrogate"):
        await broker.send("q", b"1", headers=lone)
    # Two layers of base64, which nobody who is not told so undoes.
    bodies["celery"] = sample("celery.sqs.json")["body"].encode()
    for name, body in bodies.items():
        await broker.send("q", body, headers={"name": name, "filling": "a" * 1024})
    plain = {name: body.decode() for name, body in bodies.items() if is_legal(body)}
    await put(place, server, *({"MessageBody": text} for text in plain.values()))
    await put(place, server, {"MessageBody": '{"n":1}'})
    count = len(bodies) + len(plain)
    async with place.running(app, slots=2) as running:
        await place.until(lambda: len(ended(place)) == count + 1)
        report = await running.stop()

    assert seen == [1]
    assert dict(report.dead) == {"decode": count}
    letters = await dead_letters(app, "q")
    assert len(letters) == count
    assert {each.headers["name"]: each.body for each in letters if each.headers} == bodies
    theirs = sorted(each.body for each in letters if not each.headers)
    assert theirs == sorted(text.encode() for text in plain.values())
    assert all(each.dead is not None and each.dead.attempts == 1 for each in letters)


def sample_text(name: str) -> str:
    return str(next(row["text"] for row in sample("poison-bodies.json") if row["id"] == name))


def is_legal(body: bytes) -> bool:
    """Whether another program can send it: text in the range of XML 1.0."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return False
    return bool(text) and not any(
        (character < " " and character not in "\t\n\r") or character in "\ufffe\uffff"
        for character in text
    )


async def test_a_packed_body_is_unpacked_as_its_attributes_say(
    place: SqsPlace, server: SqsServer
) -> None:
    app = place.app()
    seen: list[str] = []

    @app.worker("q", codec="json", foreign=True)
    async def take(*, name: str) -> None:
        seen.append(name)

    await declare(app, "q")
    packed = base64.b64encode(gzip.compress('{"name":"Ærø"}'.encode("latin-1"))).decode()
    attributes = {
        "Content-Type": "application/json; charset=latin1",
        "Content-Encoding": "gzip, base64",
    }
    await put(
        place,
        server,
        {
            "MessageBody": packed,
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": text}
                for name, text in attributes.items()
            },
        },
    )
    async with place.running(app):
        await place.until(lambda: seen)
    assert seen == ["Ærø"]


async def test_a_fifo_queue_of_others_stays_in_order_and_poison_holds_no_group_up(
    place: SqsPlace, server: SqsServer
) -> None:
    app = place.app()
    seen: list[Any] = []

    @app.worker("q.fifo", codec="json", foreign=True)
    async def take(job: Job, *, n: int) -> None:
        theirs: Any = job.raw["Attributes"]
        seen.append((n, theirs["MessageGroupId"], theirs["MessageDeduplicationId"]))

    await declare(app, "q.fifo")
    bodies = ('{"n":1}', "bad", '{"n":2}')
    messages = [
        {"MessageBody": body, "MessageGroupId": "g", "MessageDeduplicationId": f"d{nth}"}
        for nth, body in enumerate(bodies)
    ]
    await put(place, server, *messages, queue="q.fifo")
    async with place.running(app):
        await place.until(lambda: len(seen) == 2)

    assert seen == [(1, "g", "d0"), (2, "g", "d2")]
    (letter,) = await dead_letters(app, "q.fifo")
    assert (letter.body, letter.group) == (b"bad", "g")


async def test_a_queue_without_a_dead_letter_queue_is_refused_unless_told_to_hold(
    place: SqsPlace, server: SqsServer
) -> None:
    settings = SqsSettings(region=server.region, endpoint_url=server.endpoint)
    async with SdkClients(settings)(settings, "control") as client:
        await client.create_queue(QueueName=f"{place.prefix}-q")
    app, patient = place.app(), place.app()
    seen: list[int] = []

    async def take(*, n: int) -> None:
        seen.append(n)

    app.worker("q", codec="json", foreign=True)(take)
    patient.worker("q", codec="json", foreign=True, on_dead="hold")(take)
    with pytest.raises(QueueNotFoundError, match=r"q has no dead-letter queue q-dead.*hold"):
        await Runner(app, log=False).run(handle_signals=False)
    await put(place, server, {"MessageBody": "bad"}, {"MessageBody": '{"n":1}'})
    async with place.running(patient):
        await place.until(lambda: seen)
        await place.until(lambda: any(each.outcome == "held" for each in ended(place)))

    ready, leased, delayed, _ = await counts(patient, "q")
    assert ready + leased + delayed == 1


async def test_a_rolling_deploy_drops_nothing(
    place: SqsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rolling_deploy(place, "q", monkeypatch)

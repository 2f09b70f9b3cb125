"""CloudEvents 1.0 in both modes."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from brokerwq_rabbitmq import wire as rabbitmq
from brokerwq_rabbitmq.frames import Arrival
from brokerwq_sqs.received import read
from pydantic import BaseModel

from brokerwq import Job, Message
from brokerwq.codecs import CloudEventsCodec
from brokerwq.driver.moving import NativeRaw
from brokerwq.driver.rules import sqs_wire as sqs
from brokerwq.driver.rules.sqs_wire import is_legal_name
from tests.cases.lab import Place, declare, reasons, send_raw
from tests.foreign.lab import refusal
from tests.foreign.samples import amqp_properties, sample

CORE = {"specversion": "1.0", "type": "order.paid", "source": "/shop/eu", "id": "ce-1"}
TIME = "2026-09-21T14:13:20Z"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STRUCTURED = "application/cloudevents+json; charset=UTF-8"


def structured(content_type: str = STRUCTURED, **event: Any) -> Message:
    body = json.dumps({**CORE, **event}, ensure_ascii=False).encode()
    return Message(id="", body=body, content_type=content_type)


def binary(
    body: bytes, prefix: str = "cloudEvents:", content_type: str = "", **attributes: str
) -> Message:
    headers = {prefix + name: text for name, text in {**CORE, **attributes}.items()}
    return Message(id="", body=body, content_type=content_type, headers=headers)


class Paid(BaseModel):
    order_id: int


EVENTS: dict[str, Message] = {
    "structured": structured(data={"order_id": 1}, time=TIME, traceparent=TRACE),
    "structured, no content type": structured(
        "", data={"order_id": 1}, time=TIME, traceparent=TRACE
    ),
    "structured, base64": structured(
        data_base64=base64.b64encode(b'{"order_id":1}').decode(), time=TIME, traceparent=TRACE
    ),
    **{
        f"binary, {prefix}": binary(
            b'{"order_id":1}', prefix, "Application/JSON; charset=utf-8", time=TIME,
            traceparent=TRACE,
        )
        for prefix in ("cloudEvents:", "cloudEvents_", "ce-", "CE_")
    },
    "binary, where there is no content type but the event's": binary(
        '{"order_id":1}'.encode("utf-16"), "cloudEvents_", time=TIME, traceparent=TRACE,
        datacontenttype="application/json; charset=utf-16",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", EVENTS)
async def test_an_event_is_the_same_in_every_mode(place: Place, name: str) -> None:
    app = place.app()
    seen: list[Any] = []

    @app.worker("q", codec="cloudevents", foreign=True, name="order.paid")
    async def paid(job: Job, event: Paid) -> None:
        raw: Any = job.raw["CloudEvents"]
        trace = job.headers["traceparent"]
        seen.append((job.id, job.type, job.enqueued_at, raw["source"], raw["id"], trace, event))

    await declare(app, "q")
    await send_raw(app, "q", EVENTS[name])
    await place.drain(app)

    moment = datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)
    assert seen == [
        ("/shop/eu ce-1", "order.paid", moment, "/shop/eu", "ce-1", TRACE, Paid(order_id=1))
    ]


async def test_each_type_has_its_worker_and_data_may_be_missing_or_no_json(place: Place) -> None:
    app = place.app()
    seen: list[Any] = []

    @app.worker("q", codec="cloudevents", foreign=True, name="com.example.note:v1")
    async def note(text: bytes) -> None:
        seen.append(text)

    @app.worker("q", codec="cloudevents", foreign=True, name="tick")
    async def tick(nothing: None) -> None:
        seen.append(nothing)

    kind = "com.example.note:v1"
    await declare(app, "q")
    await send_raw(
        app,
        "q",
        structured(type=kind, id="1", data="<a/>", datacontenttype="text/xml"),
        binary(b"<b/>", content_type="text/xml", type=kind, id="2"),
        structured(type=kind, id="3"),
        structured(type="tick", id="4"),
        binary(b"", type="tick", id="5"),
        structured(type="tick", id="6", data=1),
    )
    await place.drain(app)

    assert sorted(seen, key=str) == [None, None, b"", b"<a/>", b"<b/>"]
    assert await reasons(app, "q") == ["decode"]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("12345678901234567.89", b"12345678901234567.89"),
        ('{ "a" : [1.10, "\\u00e9"] }', b'{ "a" : [1.10, "\\u00e9"] }'),
        ("null", b"null"),
        ('""', b'""'),
    ],
)
def test_data_that_is_json_stays_as_it_was_written(data: str, found: bytes) -> None:
    # After what might be taken for it, and with white space everywhere.
    event = f' {{ "x" : "data" , "y":{{"data":1}} ,\n"data"\t: {data}\n, {json.dumps(CORE)[1:]}'
    reading = CloudEventsCodec().read(Message(id="", body=event.encode()))

    assert reading.body == found


def test_a_text_of_another_kind_is_the_data_itself() -> None:
    for text in ("<a/>", ""):
        event = structured(data=text, datacontenttype="text/xml")
        assert CloudEventsCodec().read(event).body == text.encode()


@pytest.mark.parametrize("charset", ["iso-8859-1", "utf-16", "utf-8"])
async def test_data_in_an_event_is_of_the_events_own_character_set(
    place: Place, charset: str
) -> None:
    app = place.app()
    seen: list[Any] = []

    @app.worker("q", codec="cloudevents", foreign=True, name="order.paid")
    async def paid(*, name: str) -> None:
        seen.append(name)

    kind = f"application/json; charset={charset}"
    packed = base64.b64encode('{"name":"Ærø"}'.encode(charset)).decode()
    await declare(app, "q")
    await send_raw(
        app,
        "q",
        structured(data={"name": "Ærø"}, datacontenttype=kind),
        structured(data_base64=packed, datacontenttype=kind, id="2"),
    )
    await place.drain(app)

    assert seen == ["Ærø", "Ærø"]


def test_an_event_in_headers_is_still_one_after_a_move_from_rabbitmq_to_sqs() -> None:
    found = sample("cloudevents-binary.amqp.json")
    properties = amqp_properties(found).encode()
    arrival = Arrival("c", 1, redelivered=False, exchange="events", routing_key="order.paid")
    arrival.properties, arrival.body = properties, found["body"].encode()
    there = rabbitmq.read(arrival).message
    moved = sqs.encode(there)
    here = read({"MessageId": "m", "Body": moved.body, "MessageAttributes": moved.attributes})

    assert all(is_legal_name(name) for name in moved.attributes)  # a colon is none
    old, new = (CloudEventsCodec().read(message) for message in (there, here.message))
    assert (new.type, new.id, new.body, new.headers) == (old.type, old.id, old.body, old.headers)
    # A timestamp of AMQP has no likeness there, and a plan says so.
    assert isinstance(there.raw, NativeRaw)
    assert there.raw.untranslatable() == ["cloudEvents:time"]


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("2026-09-21t14:13:20z", 20),
        ("2026-09-21T14:13:20.123456789Z", 20),
        ("2026-09-21T16:13:20+02:00", 20),
        ("2026-09-21T14:13:60Z", 59),
    ],
)
def test_every_time_of_rfc_3339_is_read(text: str, second: int) -> None:
    created_at = CloudEventsCodec().read(structured(data=1, time=text)).created_at

    assert created_at is not None
    assert created_at.replace(microsecond=0) == datetime(2026, 9, 21, 14, 13, second, tzinfo=UTC)


def test_an_id_counts_within_its_source_alone() -> None:
    ids = {
        CloudEventsCodec().read(structured(source=source, id=id_, data=1)).id
        for source, id_ in (("/a", "b c"), ("/a b", "c"), ("/a", "c"), ("/b", "c"))
    }

    assert len(ids) == 4


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (structured(specversion="0.3"), "specversion is '0.3'"),
        (structured(specversion=1.0), "specversion is 1.0"),
        (structured(source=""), "no source"),
        (structured(id=7), "no id"),
        (structured(type=None), "no type"),
        (structured(time="noon"), "RFC 3339"),
        (structured(data=1, data_base64="MQ=="), "both data and data_base64"),
        (structured(data_base64="%"), "not base64"),
        (structured(data_base64=1), "no text"),
        (structured("application/cloudevents-batch+json"), "of events"),
        (structured("application/cloudevents+avro"), "of events"),
        (Message(id="", body=b"[]", content_type=STRUCTURED), "not a JSON object"),
        (Message(id="", body=b"{", content_type=STRUCTURED), "not JSON"),
        (Message(id="", body=b'{"a":1,"a":2}', content_type=STRUCTURED), "same key twice"),
        (Message(id="", body=b"{}", content_type="application/json"), "specversion is None"),
        (
            Message(id="", body=b"", headers={**binary(b"").headers, "cloudEvents_id": "other"}),
            "two attributes 'id'",
        ),
    ],
)
def test_what_is_no_event_says_why(message: Message, why: str) -> None:
    assert why in refusal(CloudEventsCodec(), message)

"""Whatever lies in somebody's queue: each codec reads it or refuses it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerwq import App, Message
from brokerwq.codecs import Arguments, foreign_codec_for
from brokerwq.codecs.choosing import codec_for
from brokerwq.errors import EnvelopeError
from brokerwq.foreign import Reading
from tests.cases.lab import declare, memory, send_raw
from tests.foreign.lab import dramatiq_message, enveloped, sns_envelope, task, taskiq_message

NAMES: list[Any] = ["json", "bytes", "sns", "cloudevents", "celery", "dramatiq", "taskiq"]

texts = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["", "t", "gzip", "\ud800", "2026-09-21T14:13:20Z", "0001-01-01T00:00:00+14:00", "*", "bwq"]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.sampled_from([10**400, -1, 2**63, "application/x-gzip", "base64"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    *("task", "id", "eta", "expires", "compression", "body", "headers", "properties"),
    *("body_encoding", "content-type", "content-encoding", "actor_name", "args", "kwargs"),
    *("options", "message_id", "message_timestamp", "max_age", "pipe_target", "__type__"),
    *("__value__", "Type", "TopicArn", "Message", "MessageAttributes", "MessageId", "Timestamp"),
    *("specversion", "source", "type", "time", "data", "data_base64", "datacontenttype", "Value"),
    *("task_name", "task_id", "labels", "labels_types"),
)
objects = st.dictionaries(st.sampled_from(FIELDS) | texts, values, max_size=8)


def written(value: object) -> bytes:
    return json.dumps(value).encode()


def changed(message: Message, change: dict[str, Any]) -> bytes:
    """A sound body with some of its fields replaced."""
    body: Any = json.loads(message.body)
    return written({**body, **change})


sound = st.sampled_from(
    [
        task("t", 1),
        enveloped(task("t", 1)),
        enveloped(task("t", 1), outer=False),
        dramatiq_message("t", 1),
        taskiq_message("t", 1),
        sns_envelope('{"n":1}'),
        Message(id="", body=b'{"specversion":"1.0","id":"1","source":"/a","type":"t","data":1}'),
    ]
).map(lambda message: message.body)
bodies = st.one_of(
    st.binary(max_size=200),
    objects.map(written),
    values.map(written),
    st.builds(changed, st.just(dramatiq_message("t", 1)), objects),
    st.builds(changed, st.just(taskiq_message("t", 1)), objects),
    st.builds(changed, st.just(sns_envelope("{}")), objects),
    st.builds(changed, st.just(enveloped(task("t", 1), outer=False)), objects),
    st.tuples(sound, st.integers(0, 400), st.binary(max_size=3)).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] + 1 :]
    ),
    sound,
)
packed = bodies.flatmap(lambda body: st.sampled_from([body, base64.b64encode(body),
                                                      gzip.compress(body)]))  # fmt: skip
headers = st.dictionaries(
    st.sampled_from(
        [*FIELDS, *(f"cloudEvents:{name}" for name in FIELDS), "ce-id", "ce_type", "ce-source"]
    )
    | texts,
    texts | st.sampled_from(["1.0", "application/json", "gzip, base64", "utf-16"]),
    max_size=6,
)
typed_headers = st.dictionaries(
    st.sampled_from([*FIELDS, "cloudEvents:id", "cloudEvents_time"]) | texts,
    values | st.binary(max_size=5) | st.datetimes(),
    max_size=6,
)


def made(
    body: bytes,
    text: dict[str, str],
    kind: str,
    native: dict[str, Any] | None,
    encoding: str | None,
) -> Message:
    raw: dict[str, object] = {"headers": native, "content_encoding": encoding}
    found = raw if native is not None else {}
    return Message(id="", body=body, headers=text, content_type=kind, raw=found)


messages = st.builds(
    made,
    packed,
    headers,
    st.sampled_from(["", "application/json", "application/cloudevents+json; charset=utf-16"])
    | texts,
    st.none() | typed_headers,
    st.none() | st.sampled_from(["gzip", "utf-8", "deflate", "base64,gzip"]) | texts,
)
thorough = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def worker_of(name: Any) -> Any:
    app = App("memory://")

    @app.worker("q", codec=name, foreign=True, name="w")
    async def fields(*, n: int, text: str = "") -> None:
        raise AssertionError((n, text))

    @app.worker("p", codec=name, foreign=True, name="w")
    async def anything(payload: Any) -> None:
        raise AssertionError(payload)

    return fields.route().foreign, anything.route().foreign


@pytest.mark.slow
@pytest.mark.parametrize("name", ["json", "sns", "cloudevents", "celery", "dramatiq", "taskiq"])
def test_a_codec_reads_or_refuses_and_never_fails(name: Any) -> None:
    workers = worker_of(name)
    complaints: list[str] = []

    @thorough
    @given(messages)
    def check(message: Message) -> None:
        for foreign in workers:
            try:
                reading = foreign.read(message)
                assert isinstance(reading, Reading)
                foreign.decode(reading)
            except EnvelopeError as error:
                complaints.append(str(error))
        assert all(0 < len(complaint) < 500 for complaint in complaints)

    check()


@pytest.mark.slow
@given(messages)
@thorough
def test_bytes_are_always_what_was_sent(message: Message) -> None:
    codec = foreign_codec_for("bytes", codec_for("bytes", bytes))

    assert codec.read(message).body == message.body


@pytest.mark.slow
@pytest.mark.parametrize("name", ["json", "sns", "cloudevents", "celery", "dramatiq", "taskiq"])
def test_a_runner_survives_everything_and_loses_nothing(name: Any) -> None:
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(messages, max_size=12))
    def check(found: list[Message]) -> None:
        asyncio.run(run(name, found))

    check()


async def run(name: Any, found: list[Message]) -> None:
    place = memory()
    app = place.app()
    seen = 0

    @app.worker("q", codec=name, foreign=True, name="t" if name in ("json", "sns") else "*")
    async def take(call: Arguments) -> None:
        nonlocal seen
        seen += len([call])

    await declare(app, "q")
    await send_raw(app, "q", *(carriable(message) for message in found))
    report = await place.drain(app, include_delayed=False)
    await place.aclose()

    dead = sum(report.dead.values())
    assert set(report.dead) <= {"decode", "expired"}
    assert report.done == seen
    assert seen + dead + report.discarded + report.left_delayed == len(found)


def carriable(message: Message) -> Message:
    """The same as a broker could hold it: headers are text there."""
    kept = {
        name: text
        for name, text in message.headers.items()
        if name and not name.lower().startswith("bwq") and "\ud800" not in name + text
    }
    return Message(id="", body=message.body, headers=kept, content_type="")

"""A worker as the function it was, and as a runner sees it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from brokerwq import Job, Message, RetryPolicy
from brokerwq.errors import ConfigError, EnvelopeError
from brokerwq.middleware import Next
from tests.unit.recording import RecordingSender


class Image(BaseModel):
    key: str
    width: int = 256


@dataclass
class Point:
    x: int


def thumbnail(image: Image) -> int:
    """Make it small."""
    return image.width


async def kept(job: Job, image: Image) -> None: ...


class Timing:
    async def __call__(self, job: Job, call_next: Next) -> object:
        return await call_next(job)


def worker(fn: Any, queue: str = "q", **options: Any) -> Any:
    return RecordingSender().worker(fn, queue, **options)


def refused(fn: Any = thumbnail, queue: str = "q", **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        worker(fn, queue, **options)
    return str(caught.value)


def test_the_function_stays_a_function() -> None:
    made = worker(thumbnail)

    assert made(Image(key="a", width=3)) == 3
    assert made.__name__ == "thumbnail"
    assert made.__doc__ == "Make it small."
    assert made.__module__ == __name__
    assert made.__wrapped__ is thumbnail
    assert made.fn is thumbnail
    assert list(inspect.signature(made).parameters) == ["image"]
    assert repr(made) == "<worker thumbnail on queue q>"


async def test_an_async_function_is_awaited_by_its_caller() -> None:
    async def double(n: int) -> int:
        return 2 * n

    assert await worker(double)(4) == 8


def test_a_worker_is_named_after_its_function_alone() -> None:
    class Place:
        @staticmethod
        def inside(image: Image) -> None: ...

    assert worker(Place.inside).name == "inside"
    assert worker(Place.inside, name="other").name == "other"


def test_a_function_whose_name_is_no_worker_name_needs_one() -> None:
    def _private(image: Image) -> None: ...

    assert "'_private' must be 1 to 80" in refused(_private)
    assert "say app.worker(…, name=…)" in refused(_private)
    assert worker(_private, name="private").name == "private"


def test_a_worker_is_not_made_of_a_worker() -> None:
    assert "app.worker(…)(thumbnail.fn)" in refused(worker(thumbnail))


def test_a_route_holds_plain_values() -> None:
    policy = RetryPolicy(max_attempts=3)
    timing = Timing()
    route = worker(
        thumbnail,
        "images",
        name="thumb",
        aliases=["old", "older"],
        lease=timedelta(minutes=1),
        timeout=5,
        slots=2,
        retry=policy,
        middleware=[timing],
    ).route()

    assert (route.queue, route.name, route.aliases) == ("images", "thumb", ("old", "older"))
    assert (route.lease, route.timeout, route.slots) == (60.0, 5.0, 2)
    assert route.retry is policy
    assert list(route.middleware) == [timing]
    assert (route.is_async, route.foreign, route.batch, route.batch_wait) == (False, None, 0, 0.0)


def test_a_route_leaves_unsaid_what_was_not_said() -> None:
    route = worker(thumbnail).route()

    assert (route.lease, route.timeout, route.slots) == (None, None, None)


def test_a_batch_worker_has_a_batch_route() -> None:
    async def batch(images: list[Image]) -> None: ...

    route = worker(batch, batch=50, batch_wait=timedelta(milliseconds=200)).route()

    assert (route.batch, route.batch_wait, route.is_async) == (50, 0.2, True)
    assert route.decode(Message(id="1", body=b'{"key":"a"}', type="batch")) == Image(key="a")


def test_a_route_calls_the_function_with_what_it_takes() -> None:
    seen: list[object] = []
    job: Any = object()

    def payload(image: Image) -> None:
        seen.append(image)

    def payload_and_job(job: Job, image: Image) -> None:
        seen.append((job, image))

    def fields(*, a: int, b: str = "default") -> None:
        seen.append((a, b))

    def fields_and_job(job: Job, *, a: int) -> None:
        seen.append((job, a))

    def nothing() -> None:
        seen.append("nothing")

    def batch(images: list[Image]) -> None:
        seen.append(images)

    def batch_and_jobs(jobs: list[Job], images: list[Image]) -> None:
        seen.append((jobs, images))

    image = Image(key="a")
    worker(payload).route().call(job, image)
    worker(payload_and_job).route().call(job, image)
    worker(fields).route().call(job, {"a": 1})
    worker(fields_and_job).route().call(job, {"a": 1})
    worker(nothing).route().call(job, {})
    worker(batch, batch=2).route().call([job], [image])
    worker(batch_and_jobs, batch=2).route().call([job], [image])

    assert seen == [
        image,
        (job, image),
        (1, "default"),
        (job, 1),
        "nothing",
        [image],
        ([job], [image]),
    ]


def decode(made: Any, body: bytes, **properties: Any) -> Any:
    return made.route().decode(Message(id="1", body=body, **{"type": made.name, **properties}))


def test_a_body_becomes_the_payload() -> None:
    def point(point: Point) -> None: ...
    def raw(body: bytes) -> None: ...

    assert decode(worker(thumbnail), b'{"key":"a"}') == Image(key="a")
    assert decode(worker(point), b'{"x":1}') == Point(1)
    assert decode(worker(raw), b"\xff\x00", content_type="image/jpeg") == b"\xff\x00"


def test_a_body_becomes_the_fields_that_it_holds() -> None:
    def fields(*, a: int, image: Image | None = None) -> None: ...

    made = worker(fields)

    assert decode(made, b'{"a":1}') == {"a": 1}
    assert decode(made, b'{"a":1,"image":{"key":"k"}}') == {"a": 1, "image": Image(key="k")}


@pytest.mark.parametrize(
    "body", [b"{}", b'{"a":"x"}', b'{"a":1,"b":2}', b"[]", b"null", b'{"a":1,"a":1}']
)
def test_fields_that_are_missing_unknown_or_of_another_type_do_not_decode(body: bytes) -> None:
    def fields(*, a: int) -> None: ...

    with pytest.raises(EnvelopeError):
        decode(worker(fields), body)


def test_our_own_message_of_another_content_type_does_not_decode() -> None:
    with pytest.raises(EnvelopeError, match=r"text/plain.*application/json"):
        decode(worker(thumbnail), b'{"key":"a"}', content_type="text/plain")


def test_what_a_foreign_sender_calls_its_body_is_not_asked() -> None:
    made = worker(thumbnail, codec="json", foreign=True)

    foreign = made.route().foreign
    assert foreign is not None
    message = Message(id="1", body=b'{"key":"a"}', content_type="text/plain")
    assert foreign.decode(foreign.read(message)) == Image(key="a")


def test_a_field_may_have_any_name() -> None:
    def fields(*, self: int, schema: int = 0, model_config: int = 0, _x: int = 0) -> None: ...

    made = worker(fields)
    made.enqueue_sync(self=1, schema=2, model_config=3, _x=4)

    assert made.parse(b'{"self":1,"_x":4}').fields == {"self": 1, "_x": 4}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lease": 0}, "lease must be above 0 seconds, not 0"),
        ({"lease": -1}, "lease must be above 0"),
        ({"lease": timedelta(0)}, "lease must be above 0"),
        ({"lease": float("nan")}, "lease must be a finite number"),
        ({"lease": float("inf")}, "lease must be a finite number"),
        ({"lease": True}, "lease must be seconds or a timedelta"),
        ({"lease": "60"}, "lease must be seconds or a timedelta"),
        ({"lease": 604801}, "lease is 604801 seconds; the limit is 604800"),
        ({"lease": timedelta(days=8)}, "the limit is 604800"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": float("nan")}, "timeout must be a finite number"),
        ({"timeout": 1e9}, "the limit is 3.1536e+07"),
        ({"slots": 0}, "slots must be a whole number from 1 to 100000, not 0"),
        ({"slots": True}, "slots must be a whole number"),
        ({"slots": 1.5}, "slots must be a whole number"),
        ({"batch": 0}, "batch must be a whole number from 1 to 10000, not 0"),
        ({"batch": -3}, "batch must be a whole number"),
        ({"batch": 2, "batch_wait": -1}, "batch_wait must be 0 to 3600 seconds"),
        ({"batch": 2, "batch_wait": float("nan")}, "batch_wait must be a finite number"),
        ({"batch_wait": 1}, "batch_wait is for workers with batch=…"),
        ({"batch": 2, "middleware": [Timing()]}, "cannot have it"),
        ({"middleware": [Timing]}, "middleware Timing is a class"),
        ({"middleware": [3]}, "middleware 3 cannot be called"),
        ({"middleware": Timing()}, "middleware must be a list"),
        ({"retry": 3}, "retry must be a RetryPolicy, not 3"),
        ({"aliases": "old"}, "aliases must be a list of names"),
        ({"aliases": ["a", "a"]}, "an alias stands twice"),
        ({"aliases": ["a b"]}, "alias 'a b' must be"),
        ({"aliases": ["thumbnail"]}, "is its name, and needs no alias"),
        ({"name": ""}, "worker name '' must be"),
        ({"codec": "yaml"}, "there is no codec 'yaml'"),
        ({"codec": "bytes"}, "worker thumbnail: codec 'bytes' carries a payload annotated bytes"),
        ({"key": "size"}, "the field 'size', which is not one of Image: key, width"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_at_decoration(
    options: dict[str, Any], text: str
) -> None:
    assert text in refused(**options)


@pytest.mark.parametrize(
    "name",
    ["a", "Q1", "a-b_c.d", "orders.fifo", "x" * 80],
)
def test_names_that_every_broker_takes(name: str) -> None:
    made = worker(thumbnail, name, name=name)

    assert (made.queue, made.name) == (name, name)


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "-a", "a-", ".a", "a.", "_a", "é", "a\n", "x" * 81, "a:b", None, 3],
)
def test_names_that_some_broker_refuses(name: Any) -> None:
    text = refused(queue=name)

    assert text.startswith("queue ")
    assert f"{name!r}" in text


@pytest.mark.parametrize("name", ["bwq-x", "BWQ-x", "bwq.x", "amq.gen"])
def test_reserved_names_are_refused(name: str) -> None:
    assert "is reserved" in refused(queue=name)
    assert "is reserved" in refused(name=name)


def test_a_foreign_queue_keeps_its_own_name() -> None:
    assert worker(thumbnail, "Their queue/1:a", foreign=True).queue == "Their queue/1:a"
    for name in ("", "a\nb", "x" * 256, "\ud800"):
        assert "bytes of printable text" in refused(queue=name, foreign=True)

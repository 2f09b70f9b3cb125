"""What a worker sends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from brokerwq import EnqueueError, Job
from brokerwq.errors import ConfigError, PayloadError, TransientError
from brokerwq.reports import FAILURES_KEPT
from tests.unit.recording import NOW, RecordingSender


class Image(BaseModel):
    key: str
    width: int = 256


def thumbnail(job: Job, image: Image) -> None: ...
def resize(*, key: str, width: int = 256) -> None: ...
def raw(body: bytes) -> None: ...


@pytest.fixture
def sender() -> RecordingSender:
    return RecordingSender()


async def test_a_message_holds_the_payload_and_where_it_goes(sender: RecordingSender) -> None:
    message_id = await sender.worker(thumbnail, "images").enqueue(Image(key="a"))

    ((queue, message, delay),) = sender.sent
    assert (queue, delay) == ("images", 0.0)
    assert UUID(message_id).version == 7
    assert message.id == message_id
    assert message.type == "thumbnail"
    assert message.body == b'{"key":"a","width":256}'
    assert message.content_type == "application/json"
    assert message.created_at == NOW
    assert (message.key, message.group, message.cause, dict(message.headers)) == (
        None,
        None,
        None,
        {},
    )


async def test_bytes_are_sent_as_they_are(sender: RecordingSender) -> None:
    await sender.worker(raw).enqueue(b"\xff")

    assert sender.message.body == b"\xff"
    assert sender.message.content_type == "application/octet-stream"


async def test_every_message_has_an_id_of_its_own(sender: RecordingSender) -> None:
    worker = sender.worker(raw)

    ids = [await worker.enqueue(b"x") for _ in range(100)]

    assert len(set(ids)) == 100
    assert ids == [message.id for _, message, _ in sender.sent]


async def test_a_field_that_is_left_out_is_left_out_of_the_message(sender: RecordingSender) -> None:
    worker = sender.worker(resize)

    await worker.enqueue(key="a")
    await worker.enqueue(key="a", width=3)

    assert [message.body for _, message, _ in sender.sent] == [
        b'{"key":"a"}',
        b'{"key":"a","width":3}',
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "key: missing"),
        ({"key": "a", "hight": 3}, "hight: no such field"),
        ({"key": 3}, "key: must be text"),
        ({"key": "a", "delay": 3}, r"has no field 'delay'; .*: resize\.options\(delay=…\)"),
    ],
)
async def test_fields_are_checked_before_anything_is_sent(
    sender: RecordingSender, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(PayloadError, match=text):
        await sender.worker(resize).enqueue(**fields)

    assert not sender.sent


async def test_fields_have_names(sender: RecordingSender) -> None:
    with pytest.raises(PayloadError, match="takes its fields by name: key, width"):
        await sender.worker(resize).enqueue("a")
    with pytest.raises(PayloadError, match="by name"):
        sender.worker(resize).call("a")


@pytest.mark.parametrize("payload", [3, None, {"key": "a"}, "a", b"a"])
async def test_a_payload_of_another_type_is_not_sent(sender: RecordingSender, payload: Any) -> None:
    with pytest.raises(PayloadError, match="the payload must be Image, not"):
        await sender.worker(thumbnail).enqueue(payload)

    assert not sender.sent


@pytest.mark.parametrize(
    ("options", "delay"),
    [
        ({"delay": 3}, 3.0),
        ({"delay": 0.5}, 0.5),
        ({"delay": timedelta(hours=3)}, 10800.0),
        ({"delay": -5}, 0.0),
        ({"delay": timedelta(days=-1)}, 0.0),
        ({"at": NOW + timedelta(minutes=1)}, 60.0),
        ({"at": NOW - timedelta(days=1)}, 0.0),
        ({"at": datetime(2026, 1, 1, 14, 1, tzinfo=timezone(timedelta(hours=2)))}, 60.0),
    ],
)
async def test_a_message_may_be_delayed(
    sender: RecordingSender, options: dict[str, Any], delay: float
) -> None:
    await sender.worker(thumbnail).enqueue(Image(key="a"), **options)

    assert sender.delay == delay


async def test_a_message_may_have_an_id_a_group_and_headers(sender: RecordingSender) -> None:
    headers = {"tenant": "é"}

    answer = await sender.worker(thumbnail).enqueue(
        Image(key="a"), id="order-17", group="g", headers=headers
    )
    headers["tenant"] = "changed afterwards"

    message = sender.message
    assert answer == message.id == "order-17"
    assert message.group == "g"
    assert message.headers == {"tenant": "é"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": float("nan")}, "delay must be a finite number"),
        ({"delay": float("inf")}, "delay must be a finite number"),
        ({"delay": True}, "delay must be seconds"),
        ({"delay": "3"}, "delay must be seconds"),
        ({"delay": 1e12}, r"the limit is 3\.1536e\+08 \(10 years\)"),
        ({"at": datetime(2026, 1, 1)}, "at must have a time zone"),  # noqa: DTZ001
        ({"at": datetime(9999, 1, 1, tzinfo=UTC)}, "10 years"),
        ({"at": 3}, "at must be a datetime"),
        ({"at": NOW, "delay": 3}, "give delay or at, not both"),
        ({"dealy": 3}, "unknown option 'dealy'; known: at, delay, group, headers, id"),
        ({"id": ""}, "id must be 1 to 200 bytes"),
        ({"id": "x" * 201}, "id must be 1 to 200 bytes"),
        ({"id": "a\nb"}, "id must be"),
        ({"id": " a"}, "id must be"),
        ({"id": "a\ud800"}, "id must be"),
        ({"id": 3}, "id must be"),
        ({"group": ""}, "group must be"),
        ({"headers": {"bwq-id": "x"}}, "reserved"),
        ({"headers": {"a": 3}}, "text value"),
        ({"headers": {3: "a"}}, "a header's name must be text, not 3"),
        ({"headers": [("a", "b")]}, "headers must be a mapping"),
        ({"headers": {"a": "\ud800"}}, "lone surrogate"),
    ],
)
async def test_an_option_that_makes_no_sense_is_refused_before_anything_is_sent(
    sender: RecordingSender, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        await sender.worker(thumbnail).enqueue(Image(key="a"), **options)
    with pytest.raises(ConfigError, match=text):
        sender.worker(resize).options(**options)

    assert not sender.sent


async def test_a_keyword_worker_takes_its_options_beforehand(sender: RecordingSender) -> None:
    worker = sender.worker(resize)
    later = worker.options(delay=3).options(group="g")

    await later.enqueue(key="a")
    await worker.enqueue(key="b")

    ((_, first, delay), (_, second, no_delay)) = sender.sent
    assert (first.group, delay) == ("g", 3.0)
    assert (second.group, no_delay) == (None, 0.0)


async def test_a_moment_is_turned_into_a_delay_when_the_message_is_sent() -> None:
    class LaterSender(RecordingSender):
        moment = NOW

        def utcnow(self) -> datetime:
            return self.moment

    sender = LaterSender()
    tomorrow = sender.worker(resize).options(at=NOW + timedelta(days=1))
    sender.moment = NOW + timedelta(hours=23)

    await tomorrow.enqueue(key="a")

    assert sender.delay == 3600.0


def test_programs_without_a_loop_can_send(sender: RecordingSender) -> None:
    thumb, keyword = sender.worker(thumbnail), sender.worker(resize)

    message_id = thumb.enqueue_sync(Image(key="a"), delay=3)
    keyword.options(delay=4).enqueue_sync(key="b")

    assert [delay for _, _, delay in sender.sent] == [3.0, 4.0]
    assert sender.sent[0][1].id == message_id


def images(count: int) -> Iterator[Image]:
    for nth in range(count):
        yield Image(key=str(nth))


async def async_images(count: int) -> AsyncIterator[Image]:
    for image in images(count):
        yield image


async def test_many_are_sent_in_order(sender: RecordingSender) -> None:
    worker = sender.worker(thumbnail)

    report = await worker.enqueue_many(images(3), delay=timedelta(seconds=2))
    again = await worker.enqueue_many(async_images(2))

    assert (report.sent, again.sent) == (3, 2)
    assert str(report) == "3 sent"
    assert [(message.body, delay) for _, message, delay in sender.sent] == [
        (b'{"key":"0","width":256}', 2.0),
        (b'{"key":"1","width":256}', 2.0),
        (b'{"key":"2","width":256}', 2.0),
        (b'{"key":"0","width":256}', 0.0),
        (b'{"key":"1","width":256}', 0.0),
    ]


async def test_many_are_made_only_as_they_are_asked_for() -> None:
    taken: list[int] = []

    def endless() -> Iterator[Image]:
        while True:
            taken.append(len(taken))
            yield Image(key="a")

    class Impatient(RecordingSender):
        async def send_many(self, queue: str, outgoing: Any, /) -> Any:
            next(outgoing)
            next(outgoing)
            raise TransientError("enough")

    with pytest.raises(TransientError):
        await Impatient().worker(thumbnail).enqueue_many(endless())

    assert len(taken) == 2


async def test_what_cannot_be_sent_does_not_keep_the_rest_from_being_sent(
    sender: RecordingSender,
) -> None:
    worker = sender.worker(thumbnail)
    sender.refused = {b'{"key":"3","width":256}', b'{"key":"6","width":256}'}
    payloads: list[Any] = list(images(8))
    payloads[0] = payloads[2] = payloads[5] = "no image"

    with pytest.raises(EnqueueError) as caught:
        await worker.enqueue_many(payloads)

    report = caught.value.report
    assert (report.sent, report.failed_count) == (3, 5)
    assert [failed.index for failed in report.failed] == [0, 2, 3, 5, 6]
    assert [type(failed.error) for failed in report.failed] == [
        PayloadError,
        PayloadError,
        TransientError,
        PayloadError,
        TransientError,
    ]
    assert [bool(failed.id) for failed in report.failed] == [False, False, True, False, True]
    assert str(caught.value) == (
        "3 sent, 5 failed; first: item 0, PayloadError: the payload must be Image, not str"
    )
    assert [message.body[8:9] for _, message, _ in sender.sent] == [b"1", b"4", b"7"]


async def test_failures_can_be_had_as_a_report_alone(sender: RecordingSender) -> None:
    worker = sender.worker(thumbnail)
    payloads: list[Any] = [Image(key="a"), 3]

    report = await worker.enqueue_many(payloads, errors="return")

    assert (report.sent, report.failed_count) == (1, 1)


async def test_a_million_failures_are_counted_but_not_kept(sender: RecordingSender) -> None:
    wrong: Iterator[Any] = (None for _ in range(5000))

    report = await sender.worker(thumbnail).enqueue_many(wrong, errors="return")

    assert report.failed_count == 5000
    assert [failed.index for failed in report.failed] == list(range(FAILURES_KEPT))


@pytest.mark.parametrize("payloads", [3, None, "abc", b"abc", {"a": 1}])
async def test_what_is_not_many_is_refused(sender: RecordingSender, payloads: Any) -> None:
    with pytest.raises(ConfigError, match="an iterable of items is wanted, not"):
        await sender.worker(thumbnail).enqueue_many(payloads)
    with pytest.raises(ConfigError, match="an iterable of items is wanted, not"):
        sender.worker(thumbnail).enqueue_many_sync(payloads)


async def test_an_error_of_the_iterable_is_raised_as_it_is(sender: RecordingSender) -> None:
    def failing() -> Iterator[Image]:
        yield Image(key="a")
        raise LookupError

    worker = sender.worker(thumbnail)

    with pytest.raises(LookupError):
        await worker.enqueue_many(failing(), errors="return")
    with pytest.raises(LookupError):
        worker.enqueue_many_sync(failing(), errors="return")


async def test_what_to_do_with_errors_is_raise_or_return(sender: RecordingSender) -> None:
    with pytest.raises(ConfigError, match="errors must be 'raise' or 'return', not 'ignore'"):
        await sender.worker(thumbnail).enqueue_many([], errors="ignore")


async def test_many_calls_of_a_keyword_worker(sender: RecordingSender) -> None:
    worker, other = sender.worker(resize), sender.worker(resize, name="other")
    calls: list[Any] = [
        worker.call(key="a"),
        worker.options(delay=3, id="x").call(key="b", width=1),
        worker.call(key=3),
        other.call(key="c"),
        "no call",
    ]

    report = await worker.enqueue_many(calls, errors="return")

    assert [(message.body, delay) for _, message, delay in sender.sent] == [
        (b'{"key":"a"}', 0.0),
        (b'{"key":"b","width":1}', 3.0),
    ]
    assert sender.sent[1][1].id == "x"
    assert [failed.index for failed in report.failed] == [2, 3, 4]
    assert "a call of worker other, not of resize" in str(report.failed[1].error)
    assert repr(worker.call(key="secret")) == "<call of resize(key)>"


async def test_options_belong_to_each_call(sender: RecordingSender) -> None:
    with pytest.raises(ConfigError, match=r"worker\.options\(…\)\.call\(…\)"):
        await sender.worker(resize).options(delay=3).enqueue_many([])


def test_many_without_a_loop_are_taken_in_the_callers_thread_by_chunks(
    sender: RecordingSender,
) -> None:
    worker = sender.worker(thumbnail)
    sender.refused = {b'{"key":"1500","width":256}'}

    def some() -> Iterator[Any]:
        for image in images(2500):
            yield None if image.key == "1200" else image

    report = worker.enqueue_many_sync(some(), errors="return")

    assert (report.sent, report.failed_count, sender.calls) == (2498, 2, 3)
    assert [failed.index for failed in report.failed] == [1200, 1500]


def test_chunks_are_bounded_in_bytes_too(sender: RecordingSender) -> None:
    report = sender.worker(raw).enqueue_many_sync(b"x" * 3_000_000 for _ in range(4))

    assert (report.sent, sender.calls) == (4, 2)


def test_an_async_iterable_cannot_be_read_without_a_loop(sender: RecordingSender) -> None:
    payloads: Any = async_images(1)

    with pytest.raises(ConfigError, match="not async_generator"):
        sender.worker(thumbnail).enqueue_many_sync(payloads)


def test_a_child_carries_the_id_it_is_given_and_its_cause(sender: RecordingSender) -> None:
    child = sender.worker(thumbnail, "images").child("c-1", "p-1", (Image(key="a"),), {"delay": 3})
    keyword = sender.worker(resize).options(group="g").child("c-2", "p-1", (), {"key": "a"})

    assert (child.queue, child.delay) == ("images", 3.0)
    assert (child.message.id, child.message.cause) == ("c-1", "p-1")
    assert (keyword.message.id, keyword.message.group) == ("c-2", "g")
    assert keyword.message.body == b'{"key":"a"}'
    assert not sender.sent


def test_a_child_is_checked_like_every_message(sender: RecordingSender) -> None:
    thumb, keyword = sender.worker(thumbnail), sender.worker(resize)

    with pytest.raises(PayloadError, match="must be Image"):
        thumb.child("c", "p", (3,), {})
    with pytest.raises(PayloadError, match="takes one payload, not 2"):
        thumb.child("c", "p", (1, 2), {})
    with pytest.raises(PayloadError, match="by name"):
        keyword.child("c", "p", (1,), {})
    with pytest.raises(ConfigError, match="leave out id"):
        thumb.child("c", "p", (Image(key="a"),), {"id": "mine"})
    with pytest.raises(ConfigError, match="leave out id"):
        keyword.options(id="mine").child("c", "p", (), {"key": "a"})


async def test_what_was_parsed_can_be_enqueued(sender: RecordingSender) -> None:
    thumb, keyword = sender.worker(thumbnail), sender.worker(resize)

    await thumb.enqueue(thumb.parse(b'{"key":"a"}'))
    await keyword.enqueue_many([keyword.parse(b'{"key":"a"}')])

    assert [message.body for _, message, _ in sender.sent] == [
        b'{"key":"a","width":256}',
        b'{"key":"a"}',
    ]

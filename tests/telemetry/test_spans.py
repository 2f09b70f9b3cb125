from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import anyio.to_thread
import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import BaseModel

from brokerwq.errors import TransientError
from brokerwq.outcomes import DeadLetter, Discard, Done, Retry, Snooze
from brokerwq.testing import FakeClock
from tests.telemetry.lab import (
    Lab,
    attributes_of,
    context_of,
    delivery,
    id_of,
    parent_of,
    trace_of,
)

# -- sending --------------------------------------------------------------------------------


def test_a_send_is_a_producer_span_under_the_span_it_was_made_in(lab: Lab) -> None:
    with lab.tracer.start_as_current_span("P"):
        headers = lab.send()

    sent, parent = lab.one("send images"), lab.one("P")
    assert sent.kind is SpanKind.PRODUCER
    assert parent_of(sent) == id_of(parent)
    assert headers["traceparent"].startswith(f"00-{trace_of(sent):032x}-{id_of(sent):016x}-")


def test_a_send_names_system_queue_operation_and_type(lab: Lab) -> None:
    with lab.otel.sending("images", "thumbnail", 1, "id-1"):
        pass

    assert attributes_of(lab.one("send images")) == {
        "messaging.system": "brokerwq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "images",
        "messaging.message.id": "id-1",
        "brokerwq.message.type": "thumbnail",
    }


def test_a_bulk_send_says_how_many_messages_it_had(lab: Lab) -> None:
    lab.send(count=100)

    attributes = attributes_of(lab.one("send images"))
    assert attributes["messaging.batch.message_count"] == 100
    assert "messaging.message.id" not in attributes


def test_what_the_broker_client_traces_lies_under_the_send(lab: Lab) -> None:
    with (
        lab.otel.sending("images", "thumbnail", 1),
        lab.tracer.start_as_current_span("SendMessageBatch"),
    ):
        pass

    assert parent_of(lab.one("SendMessageBatch")) == id_of(lab.one("send images"))


def test_a_refused_send_is_an_error_and_raises_all_the_same(lab: Lab) -> None:
    with pytest.raises(TransientError), lab.otel.sending("images", "thumbnail", 1):
        raise TransientError("the broker is away")

    sent = lab.one("send images")
    assert sent.status.status_code is StatusCode.ERROR
    assert attributes_of(sent)["error.type"] == "TransientError"


# -- one message ----------------------------------------------------------------------------


def test_a_job_is_one_consumer_span_under_the_send_that_made_its_message(lab: Lab) -> None:
    with lab.tracer.start_as_current_span("P"):
        headers = lab.send()

    with (
        lab.otel.processing([delivery(headers, id="id-1")], "thumbnail", 1),
        lab.tracer.start_as_current_span("C"),
    ):
        pass

    processed, sent = lab.one("process images"), lab.one("send images")
    assert processed.kind is SpanKind.CONSUMER
    assert parent_of(processed) == id_of(sent)
    assert [link.context.span_id for link in processed.links] == [id_of(sent)]
    assert parent_of(lab.one("C")) == id_of(processed)
    assert len({trace_of(span) for span in lab.spans}) == 1
    assert attributes_of(processed) == {
        "messaging.system": "brokerwq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "images",
        "messaging.message.id": "id-1",
        "brokerwq.message.type": "thumbnail",
        "brokerwq.attempt": 1,
        "brokerwq.outcome": "done",
    }
    assert processed.status.status_code is StatusCode.UNSET


async def test_a_plain_function_in_a_thread_sees_its_job_span(lab: Lab) -> None:
    def handler() -> int:
        return trace.get_current_span().get_span_context().span_id

    with lab.otel.processing([delivery(lab.send())], "thumbnail", 1):
        seen = await anyio.to_thread.run_sync(handler)

    assert seen == id_of(lab.one("process images"))


async def test_jobs_that_run_at_once_keep_their_own_traces(lab: Lab) -> None:
    both_run = asyncio.Event()
    running = 0

    async def job(number: int, headers: dict[str, str]) -> None:
        nonlocal running
        with lab.otel.processing([delivery(headers)], "thumbnail", 1):
            running += 1
            if running == 2:
                both_run.set()
            await both_run.wait()
            with lab.tracer.start_as_current_span(f"C{number}"):
                pass

    sends = [lab.send(), lab.send()]
    async with anyio.create_task_group() as group:
        for number, headers in enumerate(sends):
            group.start_soon(job, number, headers)

    for number, sent in enumerate(lab.named("send images")):
        assert trace_of(lab.one(f"C{number}")) == trace_of(sent)


def test_three_retries_are_three_spans_of_one_trace_with_their_attempts(lab: Lab) -> None:
    headers = lab.send()

    for attempt in (1, 2, 3):
        with (
            pytest.raises(ValueError, match="no"),
            lab.otel.processing([delivery(headers, receives=attempt)], "thumbnail", attempt),
        ):
            raise ValueError("no")

    processed = lab.named("process images")
    assert [attributes_of(span)["brokerwq.attempt"] for span in processed] == [1, 2, 3]
    assert {trace_of(span) for span in processed} == {trace_of(lab.one("send images"))}


def test_a_dead_letter_and_its_redrive_stay_in_the_trace(lab: Lab) -> None:
    headers = lab.send()
    first = delivery(headers, id="id-1")
    with (
        pytest.raises(ValueError, match="no"),
        lab.otel.processing([first], "thumbnail", 1),
    ):
        raise ValueError("no")
    with lab.otel.settling("images", "dead_letter", [first]):
        pass

    again = delivery(headers, id="id-1", redrives=1)
    with lab.otel.processing([again], "thumbnail", 1):
        pass

    assert len({trace_of(span) for span in lab.spans}) == 1
    last = lab.named("process images")[-1]
    assert attributes_of(last)["brokerwq.redrives"] == 1
    assert attributes_of(last)["messaging.message.id"] == "id-1"


def test_the_next_message_knows_nothing_of_the_one_before(lab: Lab) -> None:
    with lab.otel.processing([delivery({**lab.send(), "baggage": "user=ann"})], "thumbnail", 1):
        assert baggage.get_baggage("user") == "ann"
    assert not trace.get_current_span().get_span_context().is_valid

    with lab.otel.processing([delivery()], "thumbnail", 1):
        assert baggage.get_all() == {}

    first, second = lab.named("process images")
    assert trace_of(second) != trace_of(first)
    assert second.parent is None
    assert second.links == ()


def test_a_failed_job_leaves_no_context_behind(lab: Lab) -> None:
    with (
        pytest.raises(ValueError, match="no"),
        lab.otel.processing([delivery(lab.send())], "thumbnail", 1),
    ):
        raise ValueError("no")

    assert not trace.get_current_span().get_span_context().is_valid


def test_a_span_around_the_runner_is_linked_and_no_parent(lab: Lab) -> None:
    headers = lab.send()

    with (
        lab.tracer.start_as_current_span("run") as around,
        lab.otel.processing([delivery(headers)], "thumbnail", 1),
    ):
        pass

    processed = lab.one("process images")
    assert trace_of(processed) == trace_of(lab.one("send images"))
    assert around.get_span_context().span_id in [link.context.span_id for link in processed.links]


def test_baggage_of_the_runner_does_not_reach_a_job(lab: Lab) -> None:
    token = attach(baggage.set_baggage("user", "operator"))
    try:
        with lab.otel.processing([delivery(lab.send())], "thumbnail", 1):
            pass
        with lab.otel.processing([delivery()], "thumbnail", 1):
            seen = baggage.get_baggage("user")
    finally:
        detach(token)

    assert seen is None


def test_a_message_of_an_unsampled_trace_is_not_recorded_but_carries_it_on(lab: Lab) -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-00"

    with lab.otel.processing([delivery({"traceparent": parent})], "thumbnail", 1):
        onward = lab.send("next")

    assert lab.spans == []
    assert onward["traceparent"].startswith(f"00-{'a' * 32}-")
    assert onward["traceparent"].endswith("-00")


def test_a_message_without_an_id_has_no_id_attribute(lab: Lab) -> None:
    with lab.otel.processing([delivery(id="")], "thumbnail", 1):
        pass

    assert "messaging.message.id" not in attributes_of(lab.one("process images"))


# -- a batch --------------------------------------------------------------------------------


def test_a_batch_is_one_span_linked_to_ten_different_parents(lab: Lab) -> None:
    carried = [lab.send() for _ in range(10)]
    batch = [delivery(headers, receives=2) for headers in carried]

    with (
        lab.otel.processing(batch, "thumbnail", 2),
        lab.tracer.start_as_current_span("C"),
    ):
        pass

    processed, sends = lab.one("process images"), lab.named("send images")
    assert processed.parent is None
    assert [link.context.span_id for link in processed.links] == [id_of(sent) for sent in sends]
    assert [dict(link.attributes or {}) for link in processed.links] == [
        {"messaging.message.id": one.message.id, "brokerwq.attempt": 2} for one in batch
    ]
    assert attributes_of(processed)["messaging.batch.message_count"] == 10
    assert parent_of(lab.one("C")) == id_of(processed)


def test_a_batch_has_the_baggage_of_none_of_its_messages(lab: Lab) -> None:
    batch = [delivery({"baggage": "user=ann"}), delivery({"baggage": "user=bob"})]

    with lab.otel.processing(batch, "thumbnail", 1):
        assert baggage.get_all() == {}


def test_a_batch_of_one_is_a_child_of_its_message(lab: Lab) -> None:
    with lab.otel.processing([delivery(lab.send())], "thumbnail", 1):
        pass

    assert parent_of(lab.one("process images")) == id_of(lab.one("send images"))


def test_a_batch_of_thousands_builds_no_more_links_than_are_kept(lab: Lab) -> None:
    batch = [delivery(lab.send()) for _ in range(200)]

    with lab.otel.processing(batch, "thumbnail", 1):
        pass

    processed = lab.one("process images")
    assert len(processed.links) == 128
    assert processed.dropped_links == 0
    assert attributes_of(processed)["messaging.batch.message_count"] == 200


# -- how a handler ends ---------------------------------------------------------------------


class Unhappy(Exception):  # noqa: N818 -- what a handler raises has any name
    pass


def test_a_failed_handler_marks_its_span_and_records_the_exception(lab: Lab) -> None:
    def reason() -> None:
        raise Unhappy("no such picture")

    with (
        pytest.raises(Unhappy),
        lab.otel.processing([delivery()], "thumbnail", 1),
    ):
        reason()

    processed = lab.one("process images")
    assert processed.status.status_code is StatusCode.ERROR
    assert processed.status.description == "no such picture"
    assert attributes_of(processed)["error.type"] == "Unhappy"
    assert attributes_of(processed)["brokerwq.outcome"] == "failed"
    (event,) = processed.events
    recorded = dict(event.attributes or {})
    assert event.name == "exception"
    assert recorded["exception.type"] == f"{__name__}.Unhappy"
    assert recorded["exception.message"] == "no such picture"
    assert "in reason" in str(recorded["exception.stacktrace"])


def test_what_an_exception_says_is_cut_to_two_hundred_characters(lab: Lab) -> None:
    with (
        pytest.raises(Unhappy),
        lab.otel.processing([delivery()], "thumbnail", 1),
    ):
        raise Unhappy("x" * 5000)

    assert "x" * 200 not in lab.everything()
    assert "x" * 199 + "…" in str(lab.one("process images").status.description)


def test_a_payload_quoted_by_a_validation_error_is_not_reported(lab: Lab) -> None:
    class Image(BaseModel):
        width: int

    with (
        pytest.raises(ValueError, match="precious"),
        lab.otel.processing([delivery(body=b'{"width":"precious"}')], "thumbnail", 1),
    ):
        Image.model_validate({"width": "precious"})

    assert "width: Input should be a valid integer" in str(
        lab.one("process images").status.description
    )
    assert "input_value" not in lab.everything()
    assert "precious'}" not in lab.everything()


def test_an_exception_that_cannot_be_printed_is_recorded_by_its_class(lab: Lab) -> None:
    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError("broken")

    with pytest.raises(Mute), lab.otel.processing([delivery()], "thumbnail", 1):
        raise Mute

    assert attributes_of(lab.one("process images"))["error.type"].endswith("Mute")


@pytest.mark.parametrize(
    ("raised", "outcome", "failure"),
    [
        (Done(), "done", None),
        (Snooze(5), "snoozed", None),
        (Discard("old"), "discarded", None),
        (Retry(reason="later"), "failed", "Retry"),
        (DeadLetter("hopeless"), "dead-lettered", "DeadLetter"),
        (ExceptionGroup("", [Snooze(5)]), "snoozed", None),
        (ExceptionGroup("", [ValueError("no")]), "failed", "ValueError"),
        (ExceptionGroup("", [ValueError(), KeyError()]), "failed", "ExceptionGroup"),
        (SystemExit(3), "failed", "SystemExit"),
    ],
)
def test_a_span_tells_what_the_handler_asked_for(
    lab: Lab, raised: BaseException, outcome: str, failure: str | None
) -> None:
    with (
        pytest.raises(type(raised)),
        lab.otel.processing([delivery()], "thumbnail", 1),
    ):
        raise raised

    processed = lab.one("process images")
    assert attributes_of(processed)["brokerwq.outcome"] == outcome
    assert attributes_of(processed).get("error.type") == failure
    assert (processed.status.status_code is StatusCode.ERROR) == (failure is not None)


@pytest.mark.parametrize(
    ("cause", "outcome", "failure"),
    [
        ("timeout", "timeout", "timeout"),
        ("lost", "lost", "lost"),
        ("stop", "cancelled", None),
        ("", "failed", "CancelledError"),
    ],
)
def test_a_cancelled_handler_tells_why(
    lab: Lab, cause: str, outcome: str, failure: str | None
) -> None:
    why: Callable[[], str] = lambda: cause  # noqa: E731

    with (
        pytest.raises(asyncio.CancelledError),
        lab.otel.processing([delivery()], "thumbnail", 1, why),
    ):
        raise asyncio.CancelledError

    processed = lab.one("process images")
    assert attributes_of(processed)["brokerwq.outcome"] == outcome
    assert attributes_of(processed).get("error.type") == failure
    assert processed.events == ()


# -- settling -------------------------------------------------------------------------------


def test_the_settle_of_one_message_is_a_client_span_in_its_trace(lab: Lab) -> None:
    headers = lab.send()

    with lab.otel.settling("images", "ack", [delivery(headers, id="id-1")]):
        pass

    settled = lab.one("ack images")
    assert settled.kind is SpanKind.CLIENT
    assert parent_of(settled) == id_of(lab.one("send images"))
    assert attributes_of(settled) == {
        "messaging.system": "brokerwq",
        "messaging.operation.name": "ack",
        "messaging.operation.type": "settle",
        "messaging.destination.name": "images",
        "messaging.message.id": "id-1",
    }


def test_the_settle_of_several_messages_is_linked_to_all(lab: Lab) -> None:
    batch = [delivery(lab.send()) for _ in range(3)]

    with (
        lab.tracer.start_as_current_span("whatever settles"),
        lab.otel.settling("images", "ack", batch),
    ):
        pass

    settled = lab.one("ack images")
    assert settled.parent is None
    assert [link.context.trace_id for link in settled.links] == [
        trace_of(sent) for sent in lab.named("send images")
    ]
    assert attributes_of(settled)["messaging.batch.message_count"] == 3


def test_a_settle_that_fails_is_an_error(lab: Lab) -> None:
    with (
        pytest.raises(TransientError),
        lab.otel.settling("images", "release", [delivery()]),
    ):
        raise TransientError("amqp://guest:hunter2@host is away")

    settled = lab.one("release images")
    assert settled.status.status_code is StatusCode.ERROR
    assert "hunter2" not in lab.everything()


# -- durations, brokers ---------------------------------------------------------------------


def test_durations_of_send_handler_and_settle_become_histograms() -> None:
    clock = FakeClock()
    lab = Lab(clock)
    one = delivery()

    with lab.otel.sending("images", "thumbnail", 1):
        clock.advance(0.25)
    with lab.otel.processing([one], "thumbnail", 1):
        clock.advance(90)
    with lab.otel.settling("images", "ack", [one]):
        clock.advance(0.5)

    ((labels, point),) = lab.points("messaging.process.duration")
    assert point.sum == 90
    assert labels == {
        "messaging.system": "brokerwq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "images",
        "brokerwq.message.type": "thumbnail",
    }
    calls = lab.points("messaging.client.operation.duration")
    assert {labels["messaging.operation.name"]: point.sum for labels, point in calls} == {
        "send": 0.25,
        "ack": 0.5,
    }


def test_a_long_job_is_not_beyond_the_last_bucket() -> None:
    clock = FakeClock()
    lab = Lab(clock)

    with lab.otel.processing([delivery()], "thumbnail", 1):
        clock.advance(90)

    ((_, point),) = lab.points("messaging.process.duration")
    assert point.explicit_bounds[0] == 0.005
    assert point.bucket_counts[-1] == 0


def test_the_duration_of_a_failed_handler_names_the_error(lab: Lab) -> None:
    with (
        pytest.raises(Unhappy),
        lab.otel.processing([delivery()], "thumbnail", 1),
    ):
        raise Unhappy

    ((labels, _),) = lab.points("messaging.process.duration")
    assert labels["error.type"] == "Unhappy"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "amqp://guest:hunter2@rabbit.example:5673/vhost",
            {
                "messaging.system": "rabbitmq",
                "server.address": "rabbit.example",
                "server.port": 5673,
            },
        ),
        ("amqp://guest:hunter2@a:5672,b:5672/", {"messaging.system": "rabbitmq"}),
        ("sqs://eu-west-1/prefix", {"messaging.system": "aws_sqs"}),
        ("sqlite:///jobs.db", {"messaging.system": "sqlite"}),
        ("memory://", {"messaging.system": "memory"}),
    ],
)
def test_spans_and_metrics_say_which_broker_it_is_and_not_its_password(
    lab: Lab, url: str, expected: dict[str, object]
) -> None:
    bound = lab.otel.for_broker(url)

    with bound.processing([delivery()], "thumbnail", 1):
        pass

    attributes = attributes_of(lab.one("process images"))
    ((labels, _),) = lab.points("messaging.process.duration")
    for found in (attributes, labels):
        assert {name: found.get(name) for name in expected} == expected
    assert ("server.address" in attributes) == ("server.address" in expected)
    assert "hunter2" not in lab.everything()


def test_the_creation_context_is_remote_for_the_job(lab: Lab) -> None:
    with lab.otel.processing([delivery(lab.send())], "thumbnail", 1):
        pass

    processed = lab.one("process images")
    assert processed.parent is not None
    assert processed.parent.is_remote
    assert context_of(processed).trace_flags.sampled

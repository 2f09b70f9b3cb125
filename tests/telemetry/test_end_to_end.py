"""An app with a runner on a broker in memory, seen through what it reports."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from typing import Any, NoReturn

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import Span, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from brokerwq import App, DeadLetter, Job, Message, Next, RetryPolicy, Runner, Snooze, events
from brokerwq.dead_letters import DeadLetters
from brokerwq.telemetry import EventLog, JsonFormatter, fan_out
from tests.telemetry.lab import (
    Journal,
    Lab,
    attributes_of,
    id_of,
    parent_of,
    trace_of,
)

AT_ONCE = RetryPolicy(max_attempts=3, base=0.0, jitter="none")


@pytest.fixture
def app(lab: Lab) -> App:
    return App(f"memory://{uuid.uuid4().hex}", telemetry=lab.otel, retry=AT_ONCE)


async def drain(app: App, *queues: str) -> None:
    with anyio.fail_after(20):
        runner = Runner(app, *queues, log=False)
        await runner.drain(settle=0, handle_signals=False)


@pytest.mark.slow
async def test_a_trace_runs_from_the_sender_through_the_job_to_its_settle(
    app: App, lab: Lab
) -> None:
    @app.worker("images")
    async def thumbnail(key: str) -> None:
        with lab.tracer.start_as_current_span(f"C {key}"):
            pass

    with lab.tracer.start_as_current_span("P"):
        message_id = await thumbnail.enqueue("a.jpg")
    await drain(app)

    sent, processed, acked = (lab.one(f"{verb} images") for verb in ("send", "process", "ack"))
    assert parent_of(sent) == id_of(lab.one("P"))
    assert parent_of(processed) == id_of(sent)
    assert parent_of(lab.one("C a.jpg")) == id_of(processed)
    assert trace_of(acked) == trace_of(sent)
    assert attributes_of(processed)["messaging.message.id"] == message_id
    assert attributes_of(sent)["messaging.message.id"] == message_id
    for span in (sent, processed, acked):
        assert attributes_of(span)["messaging.system"] == "memory"


async def test_a_plain_function_runs_inside_its_span(app: App, lab: Lab) -> None:
    seen: list[int] = []

    @app.worker("images")
    def thumbnail(key: str) -> None:  # noqa: ARG001
        seen.append(trace.get_current_span().get_span_context().span_id)

    await thumbnail.enqueue("a.jpg")
    await drain(app)

    assert seen == [id_of(lab.one("process images"))]


@pytest.mark.slow
async def test_there_is_one_consumer_span_for_each_call(app: App, lab: Lab) -> None:
    @app.worker("images")
    async def thumbnail(key: str) -> None: ...

    await thumbnail.enqueue_many(f"{n}.jpg" for n in range(20))
    await drain(app)

    consumers = [span for span in lab.spans if span.kind is SpanKind.CONSUMER]
    assert len(consumers) == 20
    assert lab.total("messaging.client.sent.messages") == 20
    assert lab.total("messaging.client.consumed.messages") == 20
    assert {
        labels["brokerwq.outcome"]: point.value for labels, point in lab.points("brokerwq.attempts")
    } == {"done": 20}


async def test_each_retry_is_a_span_of_the_same_trace(app: App, lab: Lab) -> None:
    @app.worker("images")
    async def thumbnail(job: Job, key: str) -> None:  # noqa: ARG001
        if job.attempt < 3:
            raise ValueError("not yet")

    await thumbnail.enqueue("a.jpg")
    await drain(app)

    processed = lab.named("process images")
    assert [attributes_of(span)["brokerwq.attempt"] for span in processed] == [1, 2, 3]
    assert [span.status.status_code for span in processed] == [
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    assert len({trace_of(span) for span in lab.spans}) == 1
    assert {
        (labels["brokerwq.outcome"], labels.get("error.type")): point.value
        for labels, point in lab.points("brokerwq.attempts")
    } == {("failed", "ValueError"): 2, ("done", None): 1}


@pytest.mark.slow
async def test_a_dead_letter_that_is_sent_back_runs_in_its_first_trace(app: App, lab: Lab) -> None:
    is_mended = False

    @app.worker("images")
    async def thumbnail(key: str) -> None:  # noqa: ARG001
        if not is_mended:
            raise DeadLetter("hopeless")

    await thumbnail.enqueue("a.jpg")
    await drain(app)
    is_mended = True
    report = await DeadLetters(await app.broker().driver(), "images").redrive()
    await drain(app)

    assert report.done == 1
    first, second = lab.named("process images")
    assert attributes_of(first)["brokerwq.outcome"] == "dead-lettered"
    assert attributes_of(second)["brokerwq.outcome"] == "done"
    assert attributes_of(second)["brokerwq.redrives"] == 1
    assert attributes_of(second)["brokerwq.attempt"] == 1
    assert lab.one("dead_letter images").kind is SpanKind.CLIENT
    assert len({trace_of(span) for span in lab.spans}) == 1
    ((labels, point),) = lab.points("brokerwq.dead_letters")
    assert (labels["brokerwq.reason"], point.value) == ("hopeless", 1)


@pytest.mark.slow
async def test_a_batch_is_linked_to_the_senders_of_its_messages(app: App, lab: Lab) -> None:
    @app.worker("images", batch=10, batch_wait=0.2)
    async def thumbnails(jobs: list[Job], keys: list[str]) -> None:  # noqa: ARG001
        with lab.tracer.start_as_current_span("C"):
            pass

    for n in range(10):
        with lab.tracer.start_as_current_span(f"P{n}"):
            await thumbnails.enqueue(f"{n}.jpg")
    await drain(app)

    processed = lab.one("process images")
    assert {link.context.span_id for link in processed.links} == {
        id_of(sent) for sent in lab.named("send images")
    }
    assert len({link.context.trace_id for link in processed.links}) == 10
    assert parent_of(lab.one("C")) == id_of(processed)


@pytest.mark.slow
async def test_what_a_job_enqueues_continues_its_trace(app: App, lab: Lab) -> None:
    @app.worker("images")
    async def thumbnail(job: Job, key: str) -> None:
        job.enqueue(publish, key)

    @app.worker("pages")
    async def publish(key: str) -> None: ...

    with lab.tracer.start_as_current_span("P"):
        await thumbnail.enqueue("a.jpg")
    await drain(app)

    assert parent_of(lab.one("send pages")) == id_of(lab.one("process images"))
    assert parent_of(lab.one("process pages")) == id_of(lab.one("send pages"))
    assert {trace_of(span) for span in lab.spans if span.name != "ack images"} == {
        trace_of(lab.one("P"))
    }


@pytest.mark.slow
async def test_what_a_handler_sends_by_itself_continues_its_trace(app: App, lab: Lab) -> None:
    @app.worker("images")
    async def thumbnail(key: str) -> None:
        await publish.enqueue(key)

    @app.worker("pages")
    async def publish(key: str) -> None: ...

    await thumbnail.enqueue("a.jpg")
    await drain(app)

    assert parent_of(lab.one("send pages")) == id_of(lab.one("process images"))


@pytest.mark.slow
async def test_jobs_of_different_traces_do_not_mix(app: App, lab: Lab) -> None:
    @app.worker("images")
    async def thumbnail(key: str) -> None:
        await asyncio.sleep(0.001)
        with lab.tracer.start_as_current_span(f"C {key}"):
            await asyncio.sleep(0.001)

    for n in range(20):
        with lab.tracer.start_as_current_span(f"P {n}"):
            await thumbnail.enqueue(str(n))
    await drain(app)

    for n in range(20):
        assert trace_of(lab.one(f"C {n}")) == trace_of(lab.one(f"P {n}"))


async def test_a_span_around_the_drain_is_no_parent_of_the_jobs(app: App, lab: Lab) -> None:
    @app.worker("images")
    async def thumbnail(key: str) -> None: ...

    await thumbnail.enqueue("a.jpg")
    with lab.tracer.start_as_current_span("run"):
        await drain(app)

    processed = lab.one("process images")
    assert trace_of(processed) == trace_of(lab.one("send images"))
    assert id_of(lab.one("run")) in {link.context.span_id for link in processed.links}


async def test_a_handler_beyond_its_time_is_a_timeout_in_span_and_metric(
    app: App, lab: Lab
) -> None:
    @app.worker("images", timeout=0.01)
    async def thumbnail(job: Job, key: str) -> None:  # noqa: ARG001
        if job.attempt == 1:
            await asyncio.sleep(20)

    await thumbnail.enqueue("a.jpg")
    await drain(app)

    first, second = lab.named("process images")
    assert attributes_of(first)["brokerwq.outcome"] == "timeout"
    assert attributes_of(first)["error.type"] == "timeout"
    assert first.status.status_code is StatusCode.ERROR
    assert attributes_of(second)["brokerwq.outcome"] == "done"


async def test_a_snoozed_job_is_no_error(app: App, lab: Lab) -> None:
    @app.worker("images")
    async def thumbnail(job: Job, key: str) -> None:  # noqa: ARG001
        if not job.message.snoozed:
            raise Snooze(0.001)

    await thumbnail.enqueue("a.jpg")
    await drain(app)

    first, second = lab.named("process images")
    assert first.status.status_code is StatusCode.UNSET
    assert attributes_of(first)["brokerwq.outcome"] == "snoozed"
    assert attributes_of(second)["brokerwq.attempt"] == 1
    assert trace_of(first) == trace_of(second)


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "rubbish"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-00"},
        {"baggage": "x" * 20_000},
        {"traceparent": "пример", "tracestate": "ä", "baggage": "=;,"},
    ],
)
async def test_a_malformed_context_loses_no_message(
    app: App, lab: Lab, headers: dict[str, str]
) -> None:
    ran: list[str] = []

    @app.worker("images")
    async def thumbnail(key: str) -> None:
        ran.append(key)

    await app.broker().declare(app.queue_specs()[0])
    driver = await app.broker().driver()
    stray = Message(id="stray", body=b'"a.jpg"', type="thumbnail", headers=headers)
    assert await driver.send("images", [stray], [0.0]) == [None]
    await drain(app)

    assert ran == ["a.jpg"]
    assert lab.one("process images").parent is None


@pytest.mark.slow
async def test_a_senders_own_context_is_kept(app: App, lab: Lab) -> None:
    @app.worker("images")
    async def thumbnail(key: str) -> None: ...

    own = f"00-{'a' * 32}-{'b' * 16}-01"
    await app.broker().declare(app.queue_specs()[0])
    await app.broker().send(
        "images",
        b'"a.jpg"',
        type="thumbnail",
        content_type="application/json",
        headers={"traceparent": own},
    )
    await drain(app)

    assert f"{trace_of(lab.one('process images')):032x}" == "a" * 32


@pytest.mark.slow
async def test_a_heartbeat_runs_in_no_jobs_context(lab: Lab) -> None:
    loop = asyncio.get_running_loop()
    extended = asyncio.Event()
    current: list[int] = []

    def watch(event: events.Event) -> None:
        if isinstance(event, events.LeasesExtended):
            current.append(trace.get_current_span().get_span_context().span_id)
            loop.call_soon_threadsafe(extended.set)

    app = App(f"memory://{uuid.uuid4().hex}", telemetry=fan_out(lab.otel, watch))

    @app.worker("images", lease=1)
    async def thumbnail(key: str) -> None:  # noqa: ARG001
        await extended.wait()

    await thumbnail.enqueue("a.jpg")
    await drain(app)

    assert set(current) == {0}


@pytest.mark.slow
async def test_queue_depth_is_seen_by_a_drain(app: App, lab: Lab) -> None:
    @app.worker("images")
    async def thumbnail(key: str) -> None: ...

    await thumbnail.enqueue("a.jpg")
    await drain(app)

    depths = {
        labels["brokerwq.state"]: point.value
        for labels, point in lab.points("brokerwq.queue.messages")
    }
    assert depths["ready"] == 0


async def test_bodies_reach_neither_spans_nor_metrics_nor_logs(lab: Lab) -> None:
    logger = logging.getLogger("brokerwq.end_to_end")
    logger.setLevel(logging.DEBUG)
    journal = Journal()
    logger.addHandler(journal)
    app = App(
        f"memory://{uuid.uuid4().hex}",
        telemetry=fan_out(lab.otel, EventLog(logger)),
        retry=AT_ONCE,
    )

    @app.worker("images")
    async def thumbnail(width: int) -> None:  # noqa: ARG001
        raise ValueError("x" * 500)

    await app.broker().declare(app.queue_specs()[0])
    for body in (b'"precious"', b"\xff precious", b"7"):
        await app.broker().send("images", body, type="thumbnail", content_type="application/json")
    await drain(app)
    logger.removeHandler(journal)

    written = "\n".join(JsonFormatter().format(record) for record in journal.records)
    assert {json.loads(line)["message"] for line in written.splitlines()} >= {
        "message dead-lettered",
        "job failed",
    }
    for text in (written, lab.everything()):
        assert "precious" not in text
        assert "x" * 200 not in text


async def test_a_failing_exporter_fails_no_job(caplog: pytest.LogCaptureFixture) -> None:
    class OnFire(SpanProcessor):
        def on_start(self, span: Span, parent_context: Any = None) -> NoReturn:
            raise RuntimeError("the collector is on fire")

    lab = Lab()
    lab.tracer_provider.add_span_processor(OnFire())
    app = App(f"memory://{uuid.uuid4().hex}", telemetry=lab.otel, retry=AT_ONCE)
    ran: list[str] = []

    @app.worker("images")
    async def thumbnail(key: str) -> None:
        ran.append(key)

    await thumbnail.enqueue_many(["a.jpg", "b.jpg"])
    await drain(app)

    assert sorted(ran) == ["a.jpg", "b.jpg"]
    assert [record.name for record in caplog.records] == ["brokerwq.telemetry"]


@pytest.mark.slow
async def test_the_stack_of_a_failed_job_begins_with_its_handler(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    async def around(job: Job, call_next: Next) -> object:
        return await call_next(job)

    @app.worker("images", retry=RetryPolicy(max_attempts=1), middleware=[around])
    def thumbnail(*, key: str) -> None:
        raise ValueError(key)

    await thumbnail.enqueue(key="a.jpg")
    with anyio.fail_after(20):
        await Runner(app).drain(settle=0, handle_signals=False)

    shown = [record.exc_text for record in caplog.records if record.exc_text]
    assert len(shown) == 1
    assert ", in around" in shown[0].splitlines()[0]

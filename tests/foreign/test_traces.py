"""The trace of a foreign message goes on in its job, wherever its program put it."""

from __future__ import annotations

import pytest

from brokerwq import App, Message
from tests.cases.lab import declare, send_raw
from tests.foreign.lab import enveloped, sns_envelope, task
from tests.telemetry.lab import Lab

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"

MESSAGES = {
    "sns": sns_envelope(
        "{}", MessageAttributes={"traceparent": {"Type": "String", "Value": PARENT}}
    ),
    "cloudevents": Message(
        id="",
        body=b"{}",
        content_type="application/json",
        headers={
            "cloudEvents:specversion": "1.0",
            "cloudEvents:id": "1",
            "cloudEvents:source": "/a",
            "cloudEvents:type": "work",
            "cloudEvents_traceparent": PARENT,
        },
    ),
    "celery": enveloped(task("work", headers={"traceparent": PARENT})),
}


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["sns", "cloudevents", "celery"])
async def test_a_job_is_a_part_of_the_trace_that_its_message_names(codec: str) -> None:
    lab = Lab()
    app = App("memory://", telemetry=lab.otel)

    async def work() -> None: ...

    app.worker("q", codec=codec, foreign=True, name="work")(work)  # type: ignore[call-overload]
    async with app:
        await declare(app, "q")
        await send_raw(app, "q", MESSAGES[codec])
        report = await app.drain(log=False)

    assert report.done == 1
    span = lab.one("process q")
    assert span.context is not None
    traces = {span.context.trace_id, *(link.context.trace_id for link in span.links)}
    assert int(TRACE, 16) in traces

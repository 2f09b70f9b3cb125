"""What telemetry costs: CPU nanoseconds a message for each way to switch it.

``python benchmarks/telemetry.py`` times the calls that the core makes for one message (a send,
a handler that does nothing, its share of a settle of ten), and then whole jobs on a broker in
memory. The exporters drop what they are given: what a real one costs comes on top.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import NoOpTracerProvider

from brokerwq import App, Delivery, Message, Runner, events
from brokerwq.events import Instrumentation
from brokerwq.telemetry import EventLog, OpenTelemetry, fan_out

CALLS = 4000
ROUNDS = 5
JOBS = 5000
BATCH = 10


class Forgets(SpanProcessor):
    """Takes each span and keeps none."""


def with_sdk(sampler: Sampler) -> OpenTelemetry:
    """With the SDK, which keeps nothing."""
    tracers = TracerProvider(sampler, shutdown_on_exit=False)
    tracers.add_span_processor(Forgets())
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    return OpenTelemetry(tracers, meters)


def send(telemetry: Instrumentation | None) -> None:
    """What the core does around the sending of one message."""
    if telemetry is None:
        return
    with telemetry.sending("images", "thumbnail", 1, "id"):
        pass
    telemetry.emit(
        events.MessagesSent(queue="images", type="thumbnail", count=1, failed=0, seconds=0.1)
    )


def job(telemetry: Instrumentation | None, delivery: Delivery) -> None:
    """What the core does around one handler."""
    if telemetry is None:
        return
    telemetry.emit(events.JobStarted(queue="images", type="thumbnail", id="id", attempt=1))
    with telemetry.processing([delivery], "thumbnail", 1):
        pass
    telemetry.emit(
        events.JobEnded(
            queue="images",
            type="thumbnail",
            id="id",
            attempt=1,
            outcome="done",
            counted=True,
            seconds=0.1,
        )
    )


def settle(telemetry: Instrumentation | None, deliveries: Sequence[Delivery]) -> None:
    """What the core does around one batched settle."""
    if telemetry is not None:
        with telemetry.settling("images", "ack", deliveries):
            pass


def nanoseconds(call: Callable[[], object]) -> float:
    """CPU time of one ``call``, in the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(CALLS):
            call()
        best = min(best, time.process_time() - started)
    return best / CALLS * 1e9


def calls(telemetry: Instrumentation | None) -> str:
    """The three costs, in a row of the table."""
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    message = Message(id="id", body=b"{}", type="thumbnail", headers={"traceparent": parent})
    delivery = Delivery(message=message, queue="images", handle=None, receives=1, lease_left=60.0)
    costs = (
        nanoseconds(lambda: send(telemetry)),
        nanoseconds(lambda: job(telemetry, delivery)),
        nanoseconds(lambda: settle(telemetry, [delivery] * BATCH)) / BATCH,
    )
    return " ".join(f"{cost:9,.0f}" for cost in costs)


async def whole_job(telemetry: Instrumentation | None, *, log: bool) -> float:
    """CPU nanoseconds of all threads, from ``enqueue_many`` to the ack, a message."""
    app = App(f"memory://{uuid.uuid4().hex}", telemetry=telemetry)

    @app.worker("images")
    async def thumbnail(number: int) -> None: ...

    started = time.process_time()
    await thumbnail.enqueue_many(range(JOBS))
    await Runner(app, log=log).drain(settle=0, handle_signals=False)
    return (time.process_time() - started) / JOBS * 1e9


def main() -> None:
    """Print the table."""
    logging.basicConfig(level=logging.WARNING)
    ways: list[tuple[str, Callable[[], Instrumentation | None]]] = [
        ("off", lambda: None),
        ("EventLog, nothing to write", lambda: fan_out(EventLog())),
        (
            "OpenTelemetry without an SDK",
            lambda: OpenTelemetry(NoOpTracerProvider(), NoOpMeterProvider()),
        ),
        ("OpenTelemetry, not sampled", lambda: with_sdk(ALWAYS_OFF)),
        ("OpenTelemetry, recorded", lambda: with_sdk(ParentBased(ALWAYS_ON))),
    ]
    print(f"{'CPU nanoseconds':30} {'send':>9} {'job':>9} {'settle':>9} {'whole job':>10}")
    for name, make in ways:
        row = calls(make())
        whole = min(asyncio.run(whole_job(make(), log=False)) for _ in range(3))
        print(f"{name:30} {row} {whole:10,.0f}")


if __name__ == "__main__":
    main()

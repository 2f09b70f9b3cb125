"""Telemetry that fails, and telemetry that is used for long."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import NoOpTracerProvider

from brokerwq import events
from brokerwq.telemetry import OpenTelemetry
from tests.telemetry.lab import Lab, delivery


class FailsAtStart(SpanProcessor):
    def on_start(self, span: Span, parent_context: Any = None) -> NoReturn:
        raise RuntimeError("the collector is on fire")


class FailsAtEnd(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> NoReturn:
        raise RuntimeError("the collector is on fire")


class Forgets(SpanProcessor):
    """An exporter that keeps nothing, so that what grows is ours."""


def broken(processor: SpanProcessor) -> OpenTelemetry:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return OpenTelemetry(provider, Lab().meter_provider)


@pytest.mark.parametrize("processor", [FailsAtStart, FailsAtEnd])
def test_a_broken_exporter_breaks_nothing_and_is_reported_once(
    processor: Callable[[], SpanProcessor], caplog: pytest.LogCaptureFixture
) -> None:
    otel = broken(processor())
    ran = 0

    for _ in range(5):
        with otel.sending("images", "thumbnail", 1):
            ran += 1
        with otel.processing([delivery()], "thumbnail", 1):
            ran += 1
        with otel.settling("images", "ack", [delivery()]):
            ran += 1

    assert ran == 15
    (record,) = caplog.records
    assert record.name == "brokerwq.telemetry"
    assert record.levelname == "WARNING"
    assert "the collector is on fire" in record.getMessage()


@pytest.mark.parametrize("processor", [FailsAtStart, FailsAtEnd])
def test_a_broken_exporter_leaves_the_handlers_exception_alone(
    processor: Callable[[], SpanProcessor],
) -> None:
    with (
        pytest.raises(KeyError),
        broken(processor()).processing([delivery()], "thumbnail", 1),
    ):
        raise KeyError


def test_a_broken_exporter_leaves_no_span_current() -> None:
    with broken(FailsAtEnd()).processing([delivery()], "thumbnail", 1):
        pass

    assert not trace.get_current_span().get_span_context().is_valid


def test_a_metric_that_cannot_be_taken_breaks_nothing(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    nonsense: Any = events.MessagesClaimed(queue="images", count=object())  # type: ignore[arg-type]

    lab.otel.emit(nonsense)
    lab.otel.emit(nonsense)

    assert len(caplog.records) == 1


def test_a_clock_that_fails_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    broken_clock: Any = object()
    otel = Lab(broken_clock).otel

    with otel.processing([delivery()], "thumbnail", 1):
        pass

    assert len(caplog.records) == 1
    assert not trace.get_current_span().get_span_context().is_valid


def test_without_an_sdk_a_message_carries_nothing_and_runs() -> None:
    otel = OpenTelemetry(NoOpTracerProvider(), Lab().meter_provider)

    with otel.sending("images", "thumbnail", 1) as headers:
        carried = dict(headers)
    with otel.processing([delivery(carried)], "thumbnail", 1):
        pass

    assert carried == {}


@pytest.mark.slow
def test_ten_thousand_messages_take_no_more_memory_than_a_thousand() -> None:
    otel = broken(Forgets())
    body = b"x" * 100

    def run(count: int) -> None:
        for number in range(count):
            with otel.sending("images", "thumbnail", 1) as headers:
                carried = dict(headers)
            one = delivery(carried, id=f"id-{number}", body=body)
            with otel.processing([one], "thumbnail", 1):
                pass
            with otel.settling("images", "ack", [one]):
                pass
            otel.emit(
                events.JobEnded(
                    queue="images",
                    type="thumbnail",
                    id=f"id-{number}",
                    attempt=1,
                    outcome="done",
                    counted=True,
                    seconds=0.1,
                )
            )

    run(1000)
    gc.collect()
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    run(10_000)
    gc.collect()

    # A single object kept of each message would be ten thousand.
    assert len(gc.get_objects()) - objects < 500
    assert sys.getallocatedblocks() - blocks < 2000


def run_python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_importing_telemetry_does_not_import_opentelemetry() -> None:
    assert (
        run_python(
            "import sys, brokerwq.telemetry\n"
            "print([name for name in sys.modules if name.startswith('opentelemetry')])"
        )
        == "[]"
    )


@pytest.mark.slow
def test_without_the_extra_the_error_names_it() -> None:
    said = run_python(
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from brokerwq.errors import ConfigError\n"
        "from brokerwq.telemetry import EventLog, OpenTelemetry, fan_out\n"
        "fan_out(EventLog())\n"
        "try:\n"
        "    OpenTelemetry()\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )

    assert "pip install 'brokerwq[otel]'" in said

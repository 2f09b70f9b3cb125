"""OpenTelemetry with everything kept in memory, and messages to try it on."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver.protocol import Delivery
from brokerwq.message import Message
from brokerwq.telemetry import OpenTelemetry

_numbers = itertools.count(1)


class Lab:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracer = self.tracer_provider.get_tracer("test")
        self.otel = OpenTelemetry(self.tracer_provider, self.meter_provider, clock=clock)

    @property
    def spans(self) -> list[ReadableSpan]:
        """All that have ended, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        found = self.named(name)
        assert len(found) == 1, [span.name for span in self.spans]
        return found[0]

    def send(self, queue: str = "images", count: int = 1) -> dict[str, str]:
        """The headers that a message sent just now carries."""
        with self.otel.sending(queue, "thumbnail", count) as headers:
            return dict(headers)

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        """The attributes and the point of each series of ``metric``."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        return [
            (dict(point.attributes or {}), point)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]

    def total(self, metric: str) -> float:
        return sum(float(point.value) for _, point in self.points(metric))

    def everything(self) -> str:
        """All that has been reported, as one text to search in."""
        spans = [span.to_json() for span in self.spans]
        data = self._reader.get_metrics_data()
        return json.dumps([*spans, data.to_json() if data is not None else ""])


class Journal(logging.Handler):
    """Keeps every record."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in self.records]


def delivery(
    headers: Mapping[str, str] | None = None,
    *,
    id: str | None = None,  # noqa: A002 -- the message's own word for it
    queue: str = "images",
    attempts: int = 0,
    receives: int = 1,
    redrives: int = 0,
    body: bytes = b"{}",
) -> Delivery:
    message = Message(
        id=f"message-{next(_numbers)}" if id is None else id,
        body=body,
        type="thumbnail",
        headers=headers or {},
        attempts=attempts,
        redrives=redrives,
    )
    return Delivery(message=message, queue=queue, handle=None, receives=receives, lease_left=60.0)


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def trace_of(span: ReadableSpan) -> int:
    return context_of(span).trace_id


def id_of(span: ReadableSpan) -> int:
    return context_of(span).span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})

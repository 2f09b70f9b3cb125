"""Spans around sends, handlers and settles, by OpenTelemetry's conventions for messaging."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Token
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer

from brokerwq.clock import Clock
from brokerwq.driver.protocol import Delivery
from brokerwq.outcomes import DeadLetter, Discard, Done, Outcome, Snooze, without_lone_groups
from brokerwq.telemetry import _context as w3c
from brokerwq.telemetry import _names as names
from brokerwq.telemetry._fault import Fault
from brokerwq.telemetry._meters import Attributes, Meters
from brokerwq.telemetry._text import cut, full_type_of, stack_of, text_of, type_of

_MAX_LINKS: Final = 128
"""What the SDK keeps by default; building more is work for nothing."""

SpanAttributes: TypeAlias = dict[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class Kit:
    """What every span of one broker needs.

    Attributes:
        tracer: Starts them.
        meters: Told how long they took.
        broker: Attributes that say which broker it is.
        clock: Durations are read from it.
        fault: Told what went wrong in here.
    """

    tracer: Tracer
    meters: Meters
    broker: Attributes
    clock: Clock
    fault: Fault

    def attributes(self, operation: str, kind: str, queue: str) -> SpanAttributes:
        """Those that every span has."""
        return {
            **self.broker,
            names.OPERATION: operation,
            names.OPERATION_TYPE: kind,
            names.DESTINATION: cut(queue),
        }


class _Around:
    """One span around a block, current inside it. No failure of its own gets out."""

    __slots__ = ("_began", "_kit", "_span", "_token")

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._began = 0.0
        self._span: Span | None = None
        self._token: Token[Context] | None = None

    @abstractmethod
    def _open(self) -> tuple[Span, Context]:
        """The started span, and the context that it is put into."""

    @abstractmethod
    def _close(self, span: Span, seconds: float, error: BaseException | None) -> None:
        """Say how the block ended."""

    def _begin(self) -> Context | None:
        try:
            span, context = self._open()
            self._span = span
            inside = trace.set_span_in_context(span, context)
            self._token = attach(inside)
            self._began = self._kit.clock.now()
        except Exception as exc:  # noqa: BLE001 -- telemetry never breaks a job
            self._kit.fault.report("the start of a span", exc)
            return None
        return inside

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        span, self._span = self._span, None
        token, self._token = self._token, None
        if span is None:
            return
        try:
            try:
                # Still inside the context, so that the measured value can name its span.
                if token is not None:
                    self._close(span, self._kit.clock.now() - self._began, error)
            finally:
                if token is not None:
                    detach(token)
                span.end()
        except Exception as exc:  # noqa: BLE001 -- telemetry never breaks a job
            self._kit.fault.report("the end of a span", exc)


class Sending(_Around, AbstractContextManager[Mapping[str, str]]):
    """A send: its span is the creation context of the messages."""

    __slots__ = ("_count", "_id", "_queue", "_type")

    def __init__(self, kit: Kit, queue: str, type_: str, count: int, message_id: str) -> None:
        super().__init__(kit)
        self._queue = queue
        self._type = type_
        self._count = count
        self._id = message_id

    def __enter__(self) -> Mapping[str, str]:
        """Start; the headers that the messages shall carry."""
        inside = self._begin()
        if inside is None or self._span is None:
            return {}
        try:
            return w3c.write(self._span.get_span_context(), inside)
        except Exception as exc:  # noqa: BLE001 -- telemetry never breaks a send
            self._kit.fault.report("the trace context", exc)
            return {}

    def _open(self) -> tuple[Span, Context]:
        attributes = self._kit.attributes("send", "send", self._queue)
        if self._type:
            attributes[names.MESSAGE_TYPE] = cut(self._type)
        if self._count > 1:
            attributes[names.BATCH_COUNT] = self._count
        elif self._id:
            attributes[names.MESSAGE_ID] = cut(self._id)
        context = get_current()
        span = self._kit.tracer.start_span(
            f"send {cut(self._queue)}", context, SpanKind.PRODUCER, attributes
        )
        return span, context

    def _close(self, span: Span, seconds: float, error: BaseException | None) -> None:
        failure = _mark_failure(span, error)
        self._kit.meters.performed(seconds, "send", "send", self._queue, failure)


class Processing(_Around, AbstractContextManager[None]):
    """A handler call: child of its message's creation context; of a batch, linked to all.

    What surrounds the runner (a span around ``app.run()``) is linked, not a parent: a job
    belongs to the trace that asked for it.
    """

    __slots__ = ("_attempt", "_cause", "_deliveries", "_type")

    def __init__(
        self,
        kit: Kit,
        deliveries: Sequence[Delivery],
        type_: str,
        attempt: int,
        cause: Callable[[], str],
    ) -> None:
        super().__init__(kit)
        self._deliveries = deliveries
        self._type = type_
        self._attempt = attempt
        self._cause = cause

    def __enter__(self) -> None:
        """Start."""
        self._begin()

    def _open(self) -> tuple[Span, Context]:
        deliveries = self._deliveries
        queue = deliveries[0].queue
        attributes = self._kit.attributes("process", "process", queue)
        attributes[names.ATTEMPT] = self._attempt
        if self._type:
            attributes[names.MESSAGE_TYPE] = cut(self._type)
        context, links = _origin(deliveries, attributes)
        around = trace.get_current_span().get_span_context()
        if around.is_valid:
            links.append(Link(around))
        span = self._kit.tracer.start_span(
            f"process {cut(queue)}", context, SpanKind.CONSUMER, attributes, links
        )
        return span, context

    def _close(self, span: Span, seconds: float, error: BaseException | None) -> None:
        ended = _ended(error, self._cause)
        span.set_attribute(names.OUTCOME, ended.outcome)
        failure = _mark_failure(span, error, ended.failure) if ended.failure else ""
        queue = self._deliveries[0].queue
        self._kit.meters.processed(seconds, queue, self._type, failure)


class Settling(_Around, AbstractContextManager[None]):
    """A settle: in its message's trace; of a batch, linked to all."""

    __slots__ = ("_deliveries", "_operation", "_queue")

    def __init__(
        self, kit: Kit, queue: str, operation: str, deliveries: Sequence[Delivery]
    ) -> None:
        super().__init__(kit)
        self._queue = queue
        self._operation = operation
        self._deliveries = deliveries

    def __enter__(self) -> None:
        """Start."""
        self._begin()

    def _open(self) -> tuple[Span, Context]:
        attributes = self._kit.attributes(self._operation, "settle", self._queue)
        context, links = _origin(self._deliveries, attributes)
        span = self._kit.tracer.start_span(
            f"{self._operation} {cut(self._queue)}", context, SpanKind.CLIENT, attributes, links
        )
        return span, context

    def _close(self, span: Span, seconds: float, error: BaseException | None) -> None:
        failure = _mark_failure(span, error)
        self._kit.meters.performed(seconds, self._operation, "settle", self._queue, failure)


def _origin(
    deliveries: Sequence[Delivery], attributes: SpanAttributes
) -> tuple[Context, list[Link]]:
    """The context to start in and the links to make; completes ``attributes``.

    The context holds nothing of what is current: neither another message's span nor its
    baggage can leak into this one.
    """
    if len(deliveries) != 1:
        attributes[names.BATCH_COUNT] = len(deliveries)
        links: list[Link] = []
        for delivery in deliveries[:_MAX_LINKS]:
            span = w3c.read(delivery.message.headers).span
            if span is not None:
                links.append(Link(span, _of_message(delivery)))
        return Context(), links
    message = deliveries[0].message
    if message.id:
        attributes[names.MESSAGE_ID] = cut(message.id)
    if message.redrives:
        attributes[names.REDRIVES] = message.redrives
    carried = w3c.read(message.headers)
    return carried.as_context(), [] if carried.span is None else [Link(carried.span)]


def _of_message(delivery: Delivery) -> SpanAttributes:
    message = delivery.message
    attributes: SpanAttributes = {names.ATTEMPT: message.attempts + delivery.receives}
    if message.id:
        attributes[names.MESSAGE_ID] = cut(message.id)
    return attributes


class _Ended(NamedTuple):
    """How a handler ended.

    Attributes:
        outcome: In the words of ``JobEnded.outcome``.
        failure: What failed, as ``error.type``; empty where nothing did.
    """

    outcome: str
    failure: str


def _ended(error: BaseException | None, cause: Callable[[], str]) -> _Ended:
    if error is None:
        return _Ended("done", "")
    inner = without_lone_groups(error)
    if isinstance(inner, asyncio.CancelledError):
        return _cancelled(cause())
    if isinstance(inner, Done):
        return _Ended("done", "")
    if isinstance(inner, Snooze):
        return _Ended("snoozed", "")
    if isinstance(inner, Discard):
        return _Ended("discarded", "")
    outcome = "dead-lettered" if isinstance(inner, DeadLetter) else "failed"
    return _Ended(outcome, type_of(inner))


def _cancelled(cause: str) -> _Ended:
    if cause == "stop":
        # Not a failure: a deployment would otherwise look like a row of broken jobs.
        return _Ended("cancelled", "")
    if cause:
        return _Ended(cause, cause)
    return _Ended("failed", asyncio.CancelledError.__qualname__)


def _mark_failure(span: Span, error: BaseException | None, name: str = "") -> str:
    """Put ``error`` on ``span``; its name for metrics, empty without one."""
    if error is None:
        return ""
    name = name or type_of(error)
    if not span.is_recording():
        return name
    inner = without_lone_groups(error)
    text = text_of(inner)
    span.set_attribute(names.ERROR_TYPE, name)
    span.set_status(StatusCode.ERROR, text or name)
    if not isinstance(inner, (Outcome, asyncio.CancelledError)):
        # Span.record_exception would add the whole text, which may quote a payload.
        span.add_event(
            names.EXCEPTION,
            {
                names.EXCEPTION_TYPE: full_type_of(inner),
                names.EXCEPTION_MESSAGE: text,
                names.EXCEPTION_STACKTRACE: stack_of(error),
            },
        )
    return name

"""OpenTelemetry: traces and metrics, by its semantic conventions for messaging."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver.protocol import Delivery
from brokerwq.driver.registry import scheme_of
from brokerwq.errors import ConfigError
from brokerwq.events import Event
from brokerwq.telemetry import _names as names
from brokerwq.telemetry._fault import Fault
from brokerwq.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


class OpenTelemetry:
    """An ``Instrumentation`` that speaks OpenTelemetry; ``docs/telemetry.md`` lists what it says.

    It uses the API only: whoever runs the process sets up the SDK and its exporters.

    Args:
        tracer_provider: None takes the global one, also if that is set later.
        meter_provider: None takes the global one, also if that is set later.
        clock: Durations are read from it.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        try:
            from opentelemetry import metrics, trace  # noqa: PLC0415 -- an optional extra

            from brokerwq.telemetry import _instruments  # noqa: PLC0415 -- imports the extra
        except ImportError as exc:
            msg = (
                f"telemetry needs {exc.name or 'opentelemetry'}, which is not installed: "
                "pip install 'brokerwq[otel]'"
            )
            raise ConfigError(msg) from exc
        self._tracer = (tracer_provider or trace.get_tracer_provider()).get_tracer(
            names.SCOPE, __version__
        )
        self._instruments = _instruments.Instruments(meter_provider or metrics.get_meter_provider())
        self._clock = clock
        self._fault = Fault()
        self._bind({names.SYSTEM: names.SCOPE})

    def for_broker(self, url: str, /) -> OpenTelemetry:
        """The same, saying in every span and metric which broker it is about.

        The scheme of ``url`` becomes ``messaging.system``, in the conventions' words where they
        have one; host and port follow where the URL has them. Nothing else of it is kept.
        """
        bound = object.__new__(OpenTelemetry)
        bound._tracer = self._tracer
        bound._instruments = self._instruments
        bound._clock = self._clock
        bound._fault = self._fault
        bound._bind(_broker_attributes(url))
        return bound

    def _bind(self, broker: Mapping[str, str | int | bool]) -> None:
        from brokerwq.telemetry import _meters, _spans  # noqa: PLC0415 -- imports the extra

        self._spans = _spans
        self._meters = _meters.Meters(self._instruments, broker)
        self._kit = _spans.Kit(self._tracer, self._meters, broker, self._clock, self._fault)

    def emit(self, event: Event, /) -> None:
        """See ``Instrumentation.emit``: becomes metrics."""
        try:
            self._meters.take(event)
        except Exception as exc:  # noqa: BLE001 -- telemetry never breaks a job
            self._fault.report("a metric", exc)

    def sending(
        self, queue: str, type_: str, count: int, message_id: str = "", /
    ) -> AbstractContextManager[Mapping[str, str]]:
        """See ``Instrumentation.sending``: a PRODUCER span."""
        return self._spans.Sending(self._kit, queue, type_, count, message_id)

    def processing(
        self,
        deliveries: Sequence[Delivery],
        type_: str,
        attempt: int,
        cause: Callable[[], str] = str,
        /,
    ) -> AbstractContextManager[None]:
        """See ``Instrumentation.processing``: a CONSUMER span."""
        return self._spans.Processing(self._kit, deliveries, type_, attempt, cause)

    def settling(
        self, queue: str, operation: str, deliveries: Sequence[Delivery], /
    ) -> AbstractContextManager[None]:
        """See ``Instrumentation.settling``: a CLIENT span."""
        return self._spans.Settling(self._kit, queue, operation, deliveries)


def _broker_attributes(url: str) -> dict[str, str | int | bool]:
    scheme = scheme_of(url)
    attributes: dict[str, str | int | bool] = {names.SYSTEM: names.SYSTEMS.get(scheme, scheme)}
    if scheme in names.SCHEMES_WITH_SERVER:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # several hosts in one URL
            return attributes
        if host:
            attributes[names.SERVER_ADDRESS] = host
        if port:
            attributes[names.SERVER_PORT] = port
    return attributes

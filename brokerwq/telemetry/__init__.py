"""Telemetry: traces, metrics and structured logs of what the core does.

All of it hangs on one seam, ``brokerwq.events``, and none of it can break a job. Nothing here
imports OpenTelemetry before an ``OpenTelemetry`` is made. ``docs/telemetry.md`` lists what is
reported, and what it costs.
"""

from brokerwq.telemetry.combine import FanOut, NamesBroker, fan_out
from brokerwq.telemetry.formatters import JsonFormatter, TerseFormatter
from brokerwq.telemetry.logs import EventLog
from brokerwq.telemetry.otel import OpenTelemetry
from brokerwq.telemetry.selection import select_telemetry

__all__ = [
    "EventLog",
    "FanOut",
    "JsonFormatter",
    "NamesBroker",
    "OpenTelemetry",
    "TerseFormatter",
    "fan_out",
    "select_telemetry",
]

"""Log records as lines: JSON for machines, short ones for terminals.

Both show what a call gave in ``extra``, cut to 200 characters a value and without credentials,
and of an exception where it came from rather than all that it says.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import Any, Final

from brokerwq.telemetry._text import (
    LIMIT,
    STACK_LIMIT,
    cut,
    described,
    presentable,
    stack_of,
    text_of,
    type_of,
)

_OWN: Final = frozenset(
    {*logging.makeLogRecord({}).__dict__, "message", "asctime", "color_message", "taskName"}
)
_MESSAGE_LIMIT: Final = 10 * LIMIT


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII.

    ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, then the record's own fields;
    for an exception ``error_type``, ``error`` and ``stack``; inside a recorded span
    ``trace_id`` and ``span_id``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter.format``."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": presentable(_text(record), _MESSAGE_LIMIT),
            **_trace_ids(),
        }
        for name, value in _extra(record).items():
            line.setdefault(name, value)
        error = _error(record)
        if error is not None:
            line.setdefault("error_type", type_of(error))
            line.setdefault("error", text_of(error))
            line["stack"] = stack_of(error)
        elif record.exc_text:
            line["stack"] = presentable(record.exc_text, 2 * STACK_LIMIT)
        return json.dumps(line)


class TerseFormatter(logging.Formatter):
    """``12:34:56 WARNING job failed queue=images message_id=… attempt=2``, in local time."""

    default_time_format = "%H:%M:%S"

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter.format``."""
        time = self.formatTime(record, self.default_time_format)
        text = _printable(presentable(_text(record), _MESSAGE_LIMIT))
        fields = [
            f"{name}={_quoted(value)}" for name, value in _extra(record).items() if name != "event"
        ]
        line = " ".join([time, record.levelname, text, *fields])
        error = _error(record)
        if error is not None:
            return f"{line}\n{_printable(described(error))}"
        if record.exc_text:
            return f"{line}\n{_printable(presentable(record.exc_text, 2 * STACK_LIMIT))}"
        return line


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 -- arguments that do not fit cost the arguments, not the line
        return str(record.msg)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {
        cut(name): _plain(value)
        for name, value in record.__dict__.items()
        if name not in _OWN and not name.startswith("_")
    }


def _plain(value: object) -> str | float | bool | None:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    try:
        return presentable(str(value))
    except Exception:  # noqa: BLE001 -- any object may stand in ``extra``
        return f"({type(value).__name__})"


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if isinstance(record.exc_info, tuple) else None


def _quoted(value: object) -> str:
    text = str(value)
    # A value is one word or quoted: no message type of a stranger can pass for another field.
    plain = text.isprintable() and text and not any(sign in text for sign in " \"'=")
    return text if plain else json.dumps(text, ensure_ascii=False)


def _printable(text: str) -> str:
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else f"\\x{ord(sign):02x}" for sign in text
    )


def _trace_ids() -> dict[str, str]:
    # Never imported from here: a process that traces has it already.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    try:
        span = trace.get_current_span().get_span_context()
        ids = {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    except Exception:  # noqa: BLE001 -- a half-imported module costs the ids, not the line
        return {}
    return ids if span.is_valid else {}

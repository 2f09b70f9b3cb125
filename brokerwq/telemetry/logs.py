"""Events as structured log records, through the standard library's ``logging``.

Texts are constant, so that lines can be counted by text; what differs stands in ``extra``.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import fields
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any, Final, TypeAlias, cast

from brokerwq import events
from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver.protocol import Certainty, QueueStats
from brokerwq.events import Event
from brokerwq.telemetry._fault import Fault
from brokerwq.telemetry._text import described, presentable, text_of
from brokerwq.telemetry.formatters import TerseFormatter

LOGGER: Final = "brokerwq"

Line: TypeAlias = tuple[int, str]

# "name", "message" and others belong to logging's own records.
_RENAMED: Final = {"id": "message_id", "type": "message_type"}
_MAX_ITEMS: Final = 20

_FORMATTER: Final = TerseFormatter()

_PAUSE: Final = 2.0
"""Seconds between two lines of one kind that an outage repeats: with the line that ends it,
all kinds together stay under two lines a second."""

ENDED: Final[Mapping[str, Line]] = {
    "done": (DEBUG, "job done"),
    "failed": (WARNING, "job failed"),
    "timeout": (WARNING, "job ran out of time"),
    "lost": (WARNING, "job lost its lease"),
    "dead-lettered": (WARNING, "job gave its message up"),
    "snoozed": (DEBUG, "job snoozed"),
    "discarded": (INFO, "job discarded its message"),
    "cancelled": (INFO, "job cancelled"),
    "put-back": (DEBUG, "message put back unstarted"),
    "duplicate": (DEBUG, "duplicate acked"),
    "held": (WARNING, "message held, for want of a dead-letter queue"),
}

LINES: Final[Mapping[type[Event], Line]] = {
    events.MessagesSent: (DEBUG, "messages sent"),
    events.MessagesClaimed: (DEBUG, "messages claimed"),
    events.JobStarted: (DEBUG, "job started"),
    events.JobEnded: (INFO, "job ended"),
    events.TimeLimitOverrun: (WARNING, "job ran past its time limit"),
    events.LeasesExtended: (DEBUG, "leases extended"),
    events.LeaseLost: (WARNING, "lease lost"),
    events.DeadLettered: (ERROR, "message dead-lettered"),
    events.SettleFailed: (WARNING, "settle failed"),
    events.CrashSuspectIsolated: (WARNING, "crash suspect runs alone"),
    events.BrokerUnreachable: (WARNING, "broker unreachable"),
    events.BrokerReached: (INFO, "broker reached again"),
    events.StoreUnreachable: (WARNING, "store unreachable"),
    events.StoreReached: (INFO, "store reached again"),
    events.MarkerTrouble: (WARNING, "job done without its whole record"),
    events.LoopBlocked: (WARNING, "event loop blocked"),
    events.StateChanged: (INFO, "runner changed its state"),
    events.QueueAdopted: (WARNING, "queue adopted as it is, with fewer guarantees"),
    events.QueueInspected: (DEBUG, "queue inspected"),
}


class EventLog:
    """A ``Listener`` that logs every event; never a body, a header or a credential.

    Args:
        logger: Where to; None takes the logger ``brokerwq``.
        clock: Decides how often an outage is repeated.
    """

    def __init__(
        self, logger: logging.Logger | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._logger = logger or logging.getLogger(LOGGER)
        self._outage = _Pace(clock)
        self._settles = _Pace(clock)
        self._strangers = _Pace(clock)
        self._held = _Pace(clock)
        self._fault = Fault()

    def __call__(self, event: Event, /) -> None:
        """Log ``event``. Never raises."""
        try:
            self._log(event)
        except Exception as exc:  # noqa: BLE001 -- a log line never breaks a job
            self._fault.report(f"the log of {type(event).__name__}", exc)

    def _log(self, event: Event) -> None:
        level, text = _line(event)
        if not self._logger.isEnabledFor(level):
            return
        suppressed = self._suppressed(event)
        if suppressed is None:
            return
        extra = _fields(event)
        if suppressed:
            extra["suppressed"] = suppressed
        self._write(level, text, extra, getattr(event, "error", None))

    def _write(self, level: int, text: str, extra: dict[str, Any], error: object) -> None:
        logger = self._logger
        record = logger.makeRecord(
            logger.name, level, __file__, 0, text, (), None, func="EventLog", extra=extra
        )
        if isinstance(error, BaseException):
            # Not as exc_info: any formatter but ours would print all that the exception and
            # its causes say, and they may quote a payload.
            record.exc_text = described(error)
        if not logger.hasHandlers():
            # Nobody has set up logging: Python prints the text and nothing of what differs.
            record.msg, record.exc_text = _FORMATTER.format(record), None
        logger.handle(record)

    def _suppressed(self, event: Event) -> int | None:
        """How many lines were left out before this one; None leaves this one out as well."""
        if isinstance(event, events.BrokerUnreachable):
            return self._outage.admit()
        if isinstance(event, events.BrokerReached):
            return self._outage.end()
        if isinstance(event, events.SettleFailed):
            return self._settles.admit()
        if _is_stranger(event):
            return self._strangers.admit()
        if isinstance(event, events.JobEnded) and event.outcome == "held":
            return self._held.admit()
        return 0


class _Pace:
    """Lets one line of a kind through in ``_PAUSE`` seconds, and counts the others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next_at = -math.inf
        self._left_out = 0
        self._told = False

    def admit(self) -> int | None:
        """None to leave a line out; else how many were left out since the last one."""
        now = self._clock.now()
        with self._lock:
            if now < self._next_at:
                self._left_out += 1
                return None
            self._next_at = now + _PAUSE
            self._told = True
            return self._taken()

    def end(self) -> int | None:
        """None if no line has told of what now ends; else how many more were left out."""
        with self._lock:
            if not self._told:
                return None
            self._told = False
            return self._taken()

    def _taken(self) -> int:
        left_out, self._left_out = self._left_out, 0
        return left_out


def _is_stranger(event: Event) -> bool:
    return (
        isinstance(event, events.JobEnded)
        and event.outcome == "put-back"
        and event.reason == events.UNKNOWN_TYPE
    )


def _is_trouble(event: events.StateChanged) -> bool:
    # A broker that answers a moment later than the first one did is none.
    return event.state == "degraded" and not all(
        reason.endswith(events.NOT_YET_CONNECTED) for reason in event.reasons
    )


def _line(event: Event) -> Line:
    if _is_stranger(event):
        return WARNING, "message of unknown type put back"
    if isinstance(event, events.JobEnded):
        return ENDED.get(event.outcome, LINES[events.JobEnded])
    if isinstance(event, events.MessagesSent) and event.failed:
        return WARNING, "messages not sent"
    if isinstance(event, events.StateChanged) and _is_trouble(event):
        return WARNING, LINES[events.StateChanged][1]
    return LINES.get(type(event), (DEBUG, "event"))


def _fields(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = {"event": type(event).__name__}
    for field in fields(event):
        value: object = getattr(event, field.name)
        if value is None:
            continue
        if isinstance(value, BaseException):
            found[field.name] = text_of(value)
        elif isinstance(value, QueueStats):
            found.update(_counts(value))
        elif isinstance(value, tuple):
            if value:
                found[field.name] = _joined(cast("tuple[object, ...]", value))
        elif isinstance(value, str):
            if value:
                found[_RENAMED.get(field.name, field.name)] = presentable(value)
        elif isinstance(value, float):
            found[field.name] = round(value, 6)
        else:
            found[_RENAMED.get(field.name, field.name)] = value
    return found


def _joined(values: tuple[object, ...]) -> str:
    return ", ".join(presentable(str(value)) for value in values[:_MAX_ITEMS])


def _counts(stats: QueueStats) -> dict[str, Any]:
    counts = {
        "ready": stats.ready,
        "leased": stats.leased,
        "delayed": stats.delayed,
        "dead": stats.dead,
    }
    found: dict[str, Any] = {
        name: count.value
        for name, count in counts.items()
        if count.certainty is not Certainty.UNKNOWN
    }
    if stats.oldest_age is not None:
        found["oldest_age"] = round(stats.oldest_age, 3)
    return found

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Generator
from typing import Any

import pytest

from brokerwq import events
from brokerwq.driver.protocol import UNKNOWN_COUNT, Count, QueueStats
from brokerwq.telemetry import EventLog, JsonFormatter, TerseFormatter
from brokerwq.telemetry.logs import LINES
from brokerwq.testing import FakeClock
from tests.telemetry.lab import Journal, Lab, delivery

BLOCKED = events.LoopBlocked(seconds=3.5, running=("thumbnail", "resize"))
UNREACHABLE = events.BrokerUnreachable(
    queue="images", operation="claim", error="amqp://guest:hunter2@host is away", retry_in=0.5
)
UNSETTLED = events.SettleFailed(queue="images", id="id-1", operation="ack", error="away")
DEAD = events.DeadLettered(queue="images", type="thumbnail", id="id-1", reason="failed", attempts=5)


def ended(outcome: str) -> events.JobEnded:
    return events.JobEnded(
        queue="images",
        type="thumbnail",
        id="id-1",
        attempt=2,
        outcome=outcome,
        counted=True,
        seconds=0.1234567891,
        error_type="ValueError",
    )


STRANGER = dataclasses.replace(ended("put-back"), reason=events.UNKNOWN_TYPE)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def logger(journal: Journal) -> Generator[logging.Logger]:
    logger = logging.getLogger("brokerwq.under_test")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(journal)
    yield logger
    logger.removeHandler(journal)


@pytest.fixture
def log(logger: logging.Logger, clock: FakeClock) -> EventLog:
    return EventLog(logger, clock=clock)


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (ended("done"), "DEBUG", "job done"),
        (ended("failed"), "WARNING", "job failed"),
        (ended("timeout"), "WARNING", "job ran out of time"),
        (ended("lost"), "WARNING", "job lost its lease"),
        (ended("dead-lettered"), "WARNING", "job gave its message up"),
        (ended("snoozed"), "DEBUG", "job snoozed"),
        (ended("discarded"), "INFO", "job discarded its message"),
        (ended("cancelled"), "INFO", "job cancelled"),
        (ended("put-back"), "DEBUG", "message put back unstarted"),
        (STRANGER, "WARNING", "message of unknown type put back"),
        (ended("something new"), "INFO", "job ended"),
        (DEAD, "ERROR", "message dead-lettered"),
        (
            events.LeaseLost(queue="images", type="thumbnail", id="id-1", reason="late"),
            "WARNING",
            "lease lost",
        ),
        (UNREACHABLE, "WARNING", "broker unreachable"),
        (UNSETTLED, "WARNING", "settle failed"),
        (BLOCKED, "WARNING", "event loop blocked"),
        (events.StateChanged(state="ready", reasons=()), "INFO", "runner changed its state"),
        (
            events.StateChanged(state="degraded", reasons=("sqs://: not connected yet",)),
            "INFO",
            "runner changed its state",
        ),
        (
            events.StateChanged(
                state="degraded", reasons=("sqs://: not connected yet", "amqp://: no answer")
            ),
            "WARNING",
            "runner changed its state",
        ),
        (
            events.StateChanged(state="degraded", reasons=("no answer",)),
            "WARNING",
            "runner changed its state",
        ),
        (events.MessagesClaimed(queue="images", count=3), "DEBUG", "messages claimed"),
        (
            events.MessagesSent(queue="images", type="t", count=3, failed=0, seconds=0.1),
            "DEBUG",
            "messages sent",
        ),
        (
            events.MessagesSent(queue="images", type="t", count=3, failed=1, seconds=0.1),
            "WARNING",
            "messages not sent",
        ),
        (events.LeasesExtended(queue="images", count=3), "DEBUG", "leases extended"),
        (
            events.CrashSuspectIsolated(queue="images", type="t", id="i"),
            "WARNING",
            "crash suspect runs alone",
        ),
        (
            events.QueueInspected(queue="images", stats=QueueStats(ready=Count(1))),
            "DEBUG",
            "queue inspected",
        ),
    ],
)
def test_each_event_has_its_level_and_a_constant_text(
    log: EventLog, journal: Journal, event: events.Event, level: str, text: str
) -> None:
    log(event)

    assert journal.lines == [(level, text)]


def test_every_event_there_is_has_a_line_of_its_own() -> None:
    kinds = {
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
    }

    assert set(LINES) == kinds


def fields(record: logging.LogRecord) -> dict[str, Any]:
    # Other handlers' formatters leave "message" behind.
    blank = {*logging.makeLogRecord({}).__dict__, "message"}
    return {name: value for name, value in record.__dict__.items() if name not in blank}


def test_what_differs_stands_in_fields(log: EventLog, journal: Journal) -> None:
    log(ended("failed"))

    assert fields(journal.records[0]) == {
        "event": "JobEnded",
        "queue": "images",
        "message_type": "thumbnail",
        "message_id": "id-1",
        "attempt": 2,
        "outcome": "failed",
        "counted": True,
        "seconds": 0.123457,
        "error_type": "ValueError",
    }


def test_a_blocked_loop_says_for_how_long_and_what_ran(log: EventLog, journal: Journal) -> None:
    log(BLOCKED)

    assert fields(journal.records[0]) == {
        "event": "LoopBlocked",
        "seconds": 3.5,
        "running": "thumbnail, resize",
    }


def test_an_inspected_queue_shows_the_counts_that_are_known(
    log: EventLog, journal: Journal
) -> None:
    stats = QueueStats(ready=Count(5), leased=UNKNOWN_COUNT, dead=Count(1), oldest_age=2.0)

    log(events.QueueInspected(queue="images", stats=stats))

    assert fields(journal.records[0]) == {
        "event": "QueueInspected",
        "queue": "images",
        "ready": 5,
        "dead": 1,
        "oldest_age": 2.0,
    }


def test_a_level_that_is_off_costs_no_record(
    logger: logging.Logger, log: EventLog, journal: Journal
) -> None:
    logger.setLevel(logging.INFO)

    log(events.MessagesClaimed(queue="images", count=3))

    assert journal.records == []


def test_each_of_several_texts_is_told_whole(log: EventLog, journal: Journal) -> None:
    caveats = ("a" * 150, "b" * 150, "last")
    log(events.QueueAdopted(queue="orders", caveats=caveats))

    assert fields(journal.records[0])["caveats"] == ", ".join(caveats)


def test_values_are_cut_and_hold_no_credentials(log: EventLog, journal: Journal) -> None:
    log(UNREACHABLE)
    log(
        events.LeaseLost(
            queue="q" * 500, type="t", id="i" * 500, reason="password=hunter2 " + "x" * 500
        )
    )

    shown = [str(value) for record in journal.records for value in fields(record).values()]
    assert max(map(len, shown)) == 200
    assert not any("hunter2" in value for value in shown)


def test_an_outage_of_a_minute_stays_under_two_lines_a_second(
    log: EventLog, journal: Journal, clock: FakeClock
) -> None:
    for _ in range(600):
        for _ in range(10):
            log(UNREACHABLE)
            log(UNSETTLED)
        log(events.BrokerReached(queue="images"))
        clock.advance(0.1)

    assert 30 <= len(journal.records) < 120


def test_the_first_line_of_an_outage_comes_at_once_and_the_next_counts_the_rest(
    log: EventLog, journal: Journal, clock: FakeClock
) -> None:
    for _ in range(5):
        log(UNREACHABLE)
    clock.advance(10)
    log(UNREACHABLE)

    first, second = journal.records
    assert "suppressed" not in fields(first)
    assert fields(second)["suppressed"] == 4


def test_messages_of_unknown_type_do_not_flood_the_log(
    log: EventLog, journal: Journal, clock: FakeClock
) -> None:
    for _ in range(1000):
        log(STRANGER)
    clock.advance(10)
    log(STRANGER)

    assert [fields(record).get("suppressed") for record in journal.records] == [None, 999]


def test_what_is_empty_is_left_out(log: EventLog, journal: Journal) -> None:
    log(events.StateChanged(state="ready", reasons=()))

    assert "reasons" not in fields(journal.records[0])


def test_the_end_of_an_outage_is_told_once_with_what_was_left_out(
    log: EventLog, journal: Journal
) -> None:
    log(UNREACHABLE)
    log(UNREACHABLE)
    log(events.BrokerReached(queue="images"))
    log(events.BrokerReached(queue="other"))

    assert journal.lines == [("WARNING", "broker unreachable"), ("INFO", "broker reached again")]
    assert fields(journal.records[1])["suppressed"] == 1


def test_a_logger_that_fails_breaks_nothing_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(logging.Logger):
        def handle(self, record: logging.LogRecord) -> None:
            raise RuntimeError("disk full")

    log = EventLog(Broken("brokerwq", logging.DEBUG))
    log(DEAD)
    log(DEAD)

    assert [record.name for record in caplog.records] == ["brokerwq.telemetry"]


def test_the_default_logger_is_the_projects_own(caplog: pytest.LogCaptureFixture) -> None:
    EventLog()(DEAD)

    assert [record.name for record in caplog.records] == ["brokerwq"]


# -- formatters -----------------------------------------------------------------------------


def record_of(message: str = "job failed", *args: object, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("brokerwq", logging.WARNING, __file__, 1, message, args, None)
    record.created = 0.25
    record.__dict__.update(extra)
    return record


def test_json_is_one_object_a_line() -> None:
    line = JsonFormatter().format(record_of("two\nlines ä", queue="images", attempt=2, ok=True))

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "WARNING",
        "logger": "brokerwq",
        "message": "two\nlines ä",
        "queue": "images",
        "attempt": 2,
        "ok": True,
    }


def test_json_is_legal_whatever_stands_in_the_fields() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no")

    line = JsonFormatter().format(
        record_of(a=float("nan"), b=Odd(), c="\ud800", d=b"\xff", e=None, level="forged")
    )

    shown = json.loads(line, parse_constant=pytest.fail)
    assert shown["a"] == "nan"
    assert shown["b"] == "(Odd)"
    assert shown["e"] is None
    assert shown["level"] == "WARNING"


def test_values_of_anybody_are_cut_and_hold_no_credentials() -> None:
    record = record_of(
        "connecting to sqs://key:hunter2@eu", body="x" * 5000, dsn="postgres://u:hunter2@host/db"
    )

    for formatter in (JsonFormatter(), TerseFormatter()):
        line = formatter.format(record)
        assert "hunter2" not in line
        assert "x" * 200 not in line


def test_arguments_that_do_not_fit_cost_no_line() -> None:
    assert json.loads(JsonFormatter().format(record_of("%d", "text")))["message"] == "%d"


def inner() -> None:
    raise KeyError("secret=hunter2")


def outer() -> None:
    try:
        inner()
    except KeyError as exc:
        raise ValueError("outer " + "x" * 500) from exc


def failing() -> logging.LogRecord:
    record = record_of()
    try:
        outer()
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    return record


def test_json_shows_where_an_exception_came_from_and_little_of_what_it_says() -> None:
    line = json.loads(JsonFormatter().format(failing()))

    assert line["error_type"] == "ValueError"
    assert line["error"].startswith("outer x")
    assert len(line["error"]) == 200
    assert "in inner" in line["stack"]
    assert line["stack"].index("KeyError") < line["stack"].index("led to")
    assert "hunter2" not in json.dumps(line)


def test_a_terminal_sees_the_exception_below_its_line() -> None:
    text = TerseFormatter().format(failing())

    assert "in inner" in text
    assert "ValueError: outer x" in text
    assert "hunter2" not in text


def failed_job() -> events.JobEnded:
    try:
        outer()
    except ValueError as error:
        return dataclasses.replace(ended("failed"), error=error)
    raise AssertionError


def test_a_failed_job_shows_where_it_failed_whatever_the_formatter(
    log: EventLog, journal: Journal
) -> None:
    log(failed_job())

    (record,) = journal.records
    for formatter in (logging.Formatter(), JsonFormatter(), TerseFormatter()):
        shown = formatter.format(record)
        assert "in inner" in shown
        assert "ValueError" in shown
        assert "hunter2" not in shown
        assert "x" * 200 not in shown
    assert fields(record)["error"].startswith("outer xxx")
    assert json.loads(JsonFormatter().format(record))["stack"].count("in inner") == 1


def test_json_names_the_span_it_was_logged_in(lab: Lab) -> None:
    with lab.otel.processing([delivery()], "thumbnail", 1):
        inside = json.loads(JsonFormatter().format(record_of()))
    outside = json.loads(JsonFormatter().format(record_of()))

    context = lab.one("process images").get_span_context()
    assert context is not None
    assert inside["trace_id"] == f"{context.trace_id:032x}"
    assert inside["span_id"] == f"{context.span_id:016x}"
    assert "trace_id" not in outside


def test_a_terminal_sees_one_short_line(log: EventLog, journal: Journal) -> None:
    log(ended("failed"))

    line = TerseFormatter().format(journal.records[0])

    assert line[2] == line[5] == ":"
    assert line[8:] == (
        " WARNING job failed queue=images message_type=thumbnail message_id=id-1 attempt=2"
        " outcome=failed counted=True seconds=0.123457 error_type=ValueError"
    )


def test_no_message_can_forge_a_field_or_move_the_cursor() -> None:
    line = TerseFormatter().format(record_of("\x1b[2J", message_type="a outcome=done\x1b[2J\n"))

    assert "\x1b" not in line
    assert "\n" not in line
    assert 'message_type="a outcome=done\\u001b[2J\\n"' in line

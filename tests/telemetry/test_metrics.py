from __future__ import annotations

import pytest

from brokerwq import events
from brokerwq.driver.protocol import UNKNOWN_COUNT, Certainty, Count, QueueStats
from brokerwq.telemetry import OpenTelemetry
from tests.telemetry.lab import Lab


def ended(outcome: str, **more: object) -> events.JobEnded:
    fields: dict[str, object] = {
        "queue": "images",
        "type": "thumbnail",
        "id": "id-1",
        "attempt": 1,
        "outcome": outcome,
        "counted": True,
        "seconds": 0.5,
    }
    return events.JobEnded(**{**fields, **more})  # type: ignore[arg-type]


def test_attempts_are_counted_by_outcome_and_error(lab: Lab) -> None:
    for _ in range(2):
        lab.otel.emit(ended("done"))
    lab.otel.emit(ended("failed", error_type="ValueError"))
    lab.otel.emit(ended("put-back", counted=False, reason="unknown type"))

    counted = {
        (labels["brokerwq.outcome"], labels["brokerwq.counted"], labels.get("error.type")): (
            point.value,
            labels.get("brokerwq.reason"),
        )
        for labels, point in lab.points("brokerwq.attempts")
    }
    assert counted == {
        ("done", True, None): (2, None),
        ("failed", True, "ValueError"): (1, None),
        ("put-back", False, None): (1, "unknown type"),
    }


def test_a_handlers_own_words_make_no_series_of_attempts(lab: Lab) -> None:
    lab.otel.emit(ended("discarded", reason="order 123 is gone"))

    ((labels, _),) = lab.points("brokerwq.attempts")
    assert "brokerwq.reason" not in labels


def test_sent_messages_are_counted_apart_from_refused_ones(lab: Lab) -> None:
    lab.otel.emit(
        events.MessagesSent(queue="images", type="thumbnail", count=9, failed=1, seconds=0.1)
    )

    counted = {
        labels.get("error.type"): point.value
        for labels, point in lab.points("messaging.client.sent.messages")
    }
    assert counted == {None: 9, "_OTHER": 1}


def test_claimed_messages_are_counted(lab: Lab) -> None:
    lab.otel.emit(events.MessagesClaimed(queue="images", count=10))

    assert lab.total("messaging.client.consumed.messages") == 10


def test_leases_are_counted_as_extended_and_lost(lab: Lab) -> None:
    lab.otel.emit(events.LeasesExtended(queue="images", count=7))
    lab.otel.emit(events.LeaseLost(queue="images", type="thumbnail", id="id-1", reason="too late"))

    assert lab.total("brokerwq.leases.extended") == 7
    assert lab.total("brokerwq.leases.lost") == 1


def test_dead_letters_are_counted_by_reason(lab: Lab) -> None:
    for reason in ("failed", "failed", "decode"):
        lab.otel.emit(
            events.DeadLettered(
                queue="images", type="thumbnail", id="id-1", reason=reason, attempts=5
            )
        )

    assert {
        labels["brokerwq.reason"]: point.value
        for labels, point in lab.points("brokerwq.dead_letters")
    } == {"failed": 2, "decode": 1}


def test_trouble_with_the_broker_is_counted(lab: Lab) -> None:
    lab.otel.emit(
        events.BrokerUnreachable(queue="images", operation="claim", error="away", retry_in=1.0)
    )
    lab.otel.emit(events.SettleFailed(queue="images", id="id-1", operation="ack", error="away"))
    lab.otel.emit(events.CrashSuspectIsolated(queue="images", type="thumbnail", id="id-1"))

    assert lab.total("brokerwq.broker.failures") == 1
    assert lab.total("brokerwq.settles.failed") == 1
    assert lab.total("brokerwq.suspects.isolated") == 1


def test_a_blocked_loop_is_measured(lab: Lab) -> None:
    lab.otel.emit(events.LoopBlocked(seconds=3.5, running=("thumbnail",)))

    ((_, point),) = lab.points("brokerwq.loop.blocked")
    assert point.sum == 3.5


def test_queue_depth_is_reported_by_state_and_unknown_is_no_zero(lab: Lab) -> None:
    stats = QueueStats(
        ready=Count(5),
        leased=UNKNOWN_COUNT,
        delayed=Count(2, Certainty.ESTIMATE),
        dead=Count(1),
    )

    lab.otel.emit(events.QueueInspected(queue="images", stats=stats))

    assert {
        labels["brokerwq.state"]: point.value
        for labels, point in lab.points("brokerwq.queue.messages")
    } == {"ready": 5, "delayed": 2, "dead": 1}


def test_the_age_of_the_oldest_message_is_reported(lab: Lab) -> None:
    stats = QueueStats(ready=Count(5), oldest_age=12.5)

    lab.otel.emit(events.QueueInspected(queue="images", stats=stats))

    assert lab.total("brokerwq.queue.oldest_age") == 12.5


def test_an_emptied_queue_has_no_old_message(lab: Lab) -> None:
    lab.otel.emit(
        events.QueueInspected(queue="images", stats=QueueStats(ready=Count(5), oldest_age=99.0))
    )
    lab.otel.emit(events.QueueInspected(queue="images", stats=QueueStats(ready=Count(0))))

    assert lab.total("brokerwq.queue.oldest_age") == 0


@pytest.mark.parametrize(
    "event",
    [
        events.JobStarted(queue="images", type="thumbnail", id="id-1", attempt=1),
        events.BrokerReached(queue="images"),
        events.StateChanged(state="ready", reasons=()),
    ],
)
def test_an_event_without_a_metric_is_no_trouble(
    lab: Lab, event: events.Event, caplog: pytest.LogCaptureFixture
) -> None:
    lab.otel.emit(event)

    assert caplog.records == []


@pytest.mark.slow
def test_strangers_cannot_make_series_without_end(lab: Lab) -> None:
    for number in range(5000):
        lab.otel.emit(ended("done", type=f"type-{number}"))
    lab.otel.emit(ended("done", type="x" * 100_000))

    labels = [labels for labels, _ in lab.points("brokerwq.attempts")]
    assert len(labels) == 101
    assert "_OTHER" in [one["brokerwq.message.type"] for one in labels]
    assert lab.total("brokerwq.attempts") == 5001


def test_handlers_own_reasons_cannot_crowd_out_the_known_ones(lab: Lab) -> None:
    for number in range(500):
        lab.otel.emit(
            events.DeadLettered(
                queue="images", type="t", id="i", reason=f"order {number}", attempts=1
            )
        )
    lab.otel.emit(events.DeadLettered(queue="images", type="t", id="i", reason="lost", attempts=1))

    assert "lost" in [
        labels["brokerwq.reason"] for labels, _ in lab.points("brokerwq.dead_letters")
    ]


def test_two_brokers_share_the_instruments_and_keep_their_series_apart(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    for url in ("memory://", "sqlite:///jobs.db"):
        lab.otel.for_broker(url).emit(ended("done"))

    assert sorted(labels["messaging.system"] for labels, _ in lab.points("brokerwq.attempts")) == [
        "memory",
        "sqlite",
    ]
    assert caplog.records == []


def test_two_applications_of_one_process_report_to_one_provider(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    second = OpenTelemetry(lab.tracer_provider, lab.meter_provider)

    lab.otel.emit(ended("done"))
    second.emit(ended("done"))

    assert lab.total("brokerwq.attempts") == 2
    assert caplog.records == []

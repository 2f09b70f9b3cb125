"""What is decided about a foreign message before it runs, or instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from brokerwq import Message
from brokerwq._runtime.verdict import Judge, Verdict
from brokerwq.codecs import Reading
from brokerwq.driver import Capabilities, Delivery

NOW = datetime(2026, 9, 21, tzinfo=UTC)
HOUR = timedelta(hours=1)


def delivery(*, receives: int = 1, not_before: datetime | None = None) -> Delivery:
    message = Message(id="m", body=b"", not_before=not_before)
    return Delivery(message=message, queue="q", handle=None, receives=receives, lease_left=9)


def judge(parking: float = 5.0) -> Judge:
    return Judge(Capabilities(), unknown_after=60, longest_parking=parking)


@pytest.mark.parametrize(
    ("own", "theirs", "delay"),
    [
        (None, None, None),
        (None, NOW, None),
        (None, NOW + timedelta(seconds=2), 2.0),
        (None, NOW + HOUR, 5.0),
        (NOW + HOUR, None, 3600.0),
        (NOW + HOUR, NOW + HOUR / 2, 3600.0),
        (NOW + HOUR / 2, NOW + HOUR, 5.0),
        (NOW - HOUR, NOW - HOUR, None),
    ],
)
def test_the_later_of_two_times_counts_and_theirs_is_waited_for_in_steps(
    own: datetime | None, theirs: datetime | None, delay: float | None
) -> None:
    verdict = judge().before_start(
        delivery(not_before=own), max_attempts=3, now=NOW, reading=Reading(not_before=theirs)
    )

    assert (None if verdict is None else verdict.delay) == delay
    assert verdict is None or (verdict.operation, verdict.counted) == ("put_back", False)


def test_what_has_expired_is_not_waited_for() -> None:
    reading = Reading(not_before=NOW + HOUR, expires=NOW, expired="dead-letter")

    verdict = judge().before_start(delivery(), max_attempts=3, now=NOW, reading=reading)

    assert verdict is not None
    assert (verdict.operation, verdict.reason) == ("dead_letter", "expired")
    assert verdict.note is not None
    assert verdict.note.attempts == 0


@pytest.mark.parametrize(
    ("counted", "receives", "attempts"), [(True, 1, 3), (True, 4, 4), (False, 1, 0), (False, 5, 4)]
)
def test_what_is_held_has_no_attempt_left_if_one_was_spent(
    *, counted: bool, receives: int, attempts: int
) -> None:
    dead = Verdict("dead_letter", "dead-lettered", counted=counted, reason="failed")

    held = judge().held(delivery(receives=receives), dead, pause=600, max_attempts=3)

    assert (held.operation, held.label, held.reason) == ("put_back", "held", "failed")
    assert held.delay == 5.0
    assert held.mark is not None
    assert held.mark.attempts == attempts


def test_what_is_left_to_others_costs_nothing_and_is_never_given_up() -> None:
    left = judge().left(delivery(receives=2), NOW)

    assert (left.operation, left.counted, left.delay) == ("put_back", False, 2.0)
    assert left.mark is not None
    assert (left.mark.attempts, left.mark.unknown_since) == (1, None)

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from brokerwq._runtime.verdict import Judge, Verdict, is_crash_suspect, text_of, traceback_digest
from brokerwq.backoff import RetryPolicy
from brokerwq.driver import Capabilities, Mark, UncountedReturn
from brokerwq.message import Message
from brokerwq.outcomes import DeadLetter, Discard, Done, Outcome, Retry, Snooze
from tests.unit.runtime.fakes import NOW, delivery

POLICY = RetryPolicy(max_attempts=3, base=1, jitter="none")
JUDGE = Judge(Capabilities(), unknown_after=3600)
DAY = 86_400.0


def message(**values: object) -> Message:
    return replace(Message(id="a", body=b"", type="work"), **values)  # type: ignore[arg-type]


def after(outcome: Outcome, *, attempt: int = 1, judge: Judge = JUDGE) -> Verdict:
    return judge.after(
        delivery(receives=attempt),
        outcome,
        policy=POLICY,
        error=None,
        label="failed",
        now=NOW,
    )


def test_done_and_discarded_are_acked_and_told_apart() -> None:
    assert after(Done()) == Verdict("ack", "done")
    assert after(Discard("old")) == Verdict("ack", "discarded", reason="old")


def test_first_failure_is_released_with_the_backoff() -> None:
    assert after(Retry()) == Verdict("release", "failed", delay=1.0)
    assert after(Retry(after=7)) == Verdict("release", "failed", delay=7.0)


def test_failure_that_leads_to_the_last_attempt_comes_back_as_a_fresh_copy() -> None:
    verdict = after(Retry(), attempt=2)

    assert verdict.operation == "put_back"
    assert verdict.mark == Mark(attempts=2)
    assert verdict.counted


def test_failure_is_released_natively_where_every_return_counts() -> None:
    fifo = Judge(Capabilities(uncounted_return=UncountedReturn.COUNTED), unknown_after=1)

    assert after(Retry(), attempt=2, judge=fifo).operation == "release"


def test_last_failure_is_a_dead_letter_with_all_that_is_known() -> None:
    with pytest.raises(ValueError, match="invalid") as raised:
        int("no such image")
    verdict = JUDGE.after(
        delivery(receives=3, message=message(created_at=NOW - timedelta(hours=1))),
        Retry(),
        policy=POLICY,
        error=raised.value,
        label="failed",
        now=NOW,
    )
    note = verdict.note

    assert note is not None
    assert (note.reason, note.error_type) == ("failed", "ValueError")
    assert note.error == ("invalid literal for int() with base 10: 'no such image'")
    assert (note.attempts, note.queue, note.dead_at) == (3, "q", NOW)
    assert note.first_at == NOW - timedelta(hours=1)
    assert note.digest


def test_handlers_own_dead_letter_needs_no_more_attempts() -> None:
    verdict = after(DeadLetter("no such user"))

    assert (verdict.operation, verdict.reason) == ("dead_letter", "no such user")


def test_snooze_spends_no_attempt_and_adds_up() -> None:
    verdict = JUDGE.after(
        delivery(receives=2, message=message(snoozed=100.0)),
        Snooze(50),
        policy=POLICY,
        error=None,
        label="failed",
        now=NOW,
    )

    assert (verdict.operation, verdict.counted, verdict.delay) == ("put_back", False, 50.0)
    assert verdict.mark == Mark(attempts=1, snoozed=150.0)


def test_snoozing_for_ever_ends_in_the_dead_letter_queue() -> None:
    verdict = JUDGE.after(
        delivery(message=message(snoozed=14 * DAY - 1)),
        Snooze(2),
        policy=POLICY,
        error=None,
        label="failed",
        now=NOW,
    )

    assert (verdict.operation, verdict.reason) == ("dead_letter", "snoozed-too-long")


def test_delay_beyond_the_brokers_limit_is_kept_by_hops() -> None:
    short = Judge(Capabilities(max_release_delay=900), unknown_after=1)
    verdict = after(Retry(after=2000), judge=short)

    assert (verdict.operation, verdict.delay) == ("put_back", 900)
    assert verdict.mark == Mark(attempts=1, not_before=NOW + timedelta(seconds=2000))
    arrived = delivery(message=message(attempts=1, not_before=NOW + timedelta(seconds=1100)))
    hop = short.before_start(arrived, max_attempts=3, now=NOW)
    assert hop is not None
    assert (hop.operation, hop.delay, hop.counted) == ("put_back", 900, False)
    assert hop.mark is not None
    assert hop.mark.attempts == 1
    last = short.before_start(arrived, max_attempts=3, now=NOW + timedelta(seconds=1100))
    assert last is None


def test_message_beyond_its_attempts_dies_unrun_as_lost() -> None:
    verdict = JUDGE.before_start(delivery(receives=4), max_attempts=3, now=NOW)

    assert verdict is not None
    assert (verdict.operation, verdict.reason) == ("dead_letter", "lost")
    assert verdict.note is not None
    assert verdict.note.attempts == 3


def test_message_whose_attempts_were_all_counted_dies_as_failed() -> None:
    verdict = JUDGE.before_start(delivery(message=message(attempts=3)), max_attempts=3, now=NOW)

    assert verdict is not None
    assert verdict.reason == "failed"


def test_return_without_running_spends_nothing_and_keeps_what_is_known() -> None:
    since = NOW - timedelta(minutes=5)
    verdict = JUDGE.not_started(
        delivery(receives=2, message=message(attempts=1, snoozed=9.0, not_before=since)),
        0.0,
        now=NOW,
    )

    assert verdict.mark == Mark(attempts=2, suspect=True, snoozed=9.0, not_before=since)
    assert not verdict.counted


def test_unknown_type_waits_for_a_newer_runner_and_then_dies() -> None:
    first = JUDGE.unknown_type(delivery(), NOW)
    assert (first.operation, first.counted) == ("put_back", False)
    assert first.mark == Mark(attempts=0, unknown_since=NOW)
    assert 1 <= first.delay <= 30

    later = NOW + timedelta(hours=1)
    last = JUDGE.unknown_type(delivery(message=message(unknown_since=NOW)), later)
    assert (last.operation, last.reason) == ("dead_letter", "unknown-type")


@pytest.mark.parametrize(
    ("receives", "attempts", "marked", "suspect"),
    [
        (3, 0, False, True),  # lost before, and at its last attempt
        (1, 2, True, True),  # put back beside a suspect, and marked
        (1, 2, False, False),  # its attempts failed in an orderly way
        (2, 0, True, False),  # not its last attempt
        (4, 0, True, False),  # beyond its last: dies unrun
    ],
)
def test_crash_suspects_are_told_from_ordinary_failures(
    *, receives: int, attempts: int, marked: bool, suspect: bool
) -> None:
    each = delivery(receives=receives, message=message(attempts=attempts, suspect=marked))

    assert is_crash_suspect(each, 3) is suspect


def test_single_attempt_has_no_suspects() -> None:
    assert not is_crash_suspect(delivery(message=message(suspect=True)), 1)


class Mute(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError


def test_error_whose_text_cannot_be_had_is_still_described() -> None:
    assert "RuntimeError" in text_of(Mute())


def test_lone_surrogate_in_an_errors_text_can_be_carried() -> None:
    text_of(ValueError("a\ud800b")).encode()


def test_equal_faults_have_equal_digests_and_others_do_not() -> None:
    def fail(word: str) -> str:
        try:
            int(word)
        except ValueError as error:
            return traceback_digest(error)
        return ""

    def fail_elsewhere() -> str:
        try:
            int("c")
        except ValueError as error:
            return traceback_digest(error)
        return ""

    assert fail("a") == fail("b") != fail_elsewhere()

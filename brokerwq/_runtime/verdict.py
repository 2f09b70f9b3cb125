"""What becomes of a message: pure decisions, from what is known to one settle.

``attempt`` is the number of the attempt in hand. A return that is not counted writes
``attempt - 1`` on the message, a counted one ``attempt``.
"""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Literal, TypeAlias

from brokerwq._runtime.guard import Skip
from brokerwq.backoff import RetryPolicy
from brokerwq.driver.capabilities import Capabilities, UncountedReturn
from brokerwq.driver.protocol import Delivery, Mark
from brokerwq.driver.support import unstarted
from brokerwq.events import UNKNOWN_TYPE
from brokerwq.foreign import Expired, Reading
from brokerwq.message import DeadLetterNote
from brokerwq.outcomes import (
    SNOOZE_LIMIT,
    DeadLetter,
    Discard,
    Done,
    Outcome,
    Retry,
    Snooze,
)
from brokerwq.version import __version__

Operation: TypeAlias = Literal["ack", "release", "put_back", "dead_letter"]

MAX_TEXT = 1000
"""Characters of an error's text that a dead-letter note keeps."""

_UNKNOWN_TYPE_PAUSES = 20
_LONGEST_UNKNOWN_TYPE_PAUSE = 30.0
_SHORTEST_PAUSE = 1.0
_LEFT_PAUSE = 2.0
EXPIRED = "expired"
LEFT = "left-to-others"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One settle and how the job is counted.

    Attributes:
        operation: The settle.
        label: The outcome's name, as ``JobEnded.outcome`` has it.
        counted: Whether the attempt counts.
        delay: Seconds until the message may be claimed again.
        mark: For ``put_back``.
        note: For ``dead_letter``.
        reason: For people.
    """

    operation: Operation
    label: str
    counted: bool = True
    delay: float = 0.0
    mark: Mark | None = None
    note: DeadLetterNote | None = None
    reason: str = ""


_DONE = Verdict("ack", "done")


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides for one queue of one broker.

    Attributes:
        capabilities: The broker's.
        unknown_after: Seconds after which a message of unknown type is given up on.
        longest_parking: Seconds for which a message that is not for now may be put back at
            most; where a broker has no other way than to hold it, it keeps others out.
    """

    capabilities: Capabilities
    unknown_after: float
    longest_parking: float = math.inf

    # -- before the handler ---------------------------------------------------------------

    def before_start(
        self,
        delivery: Delivery,
        *,
        max_attempts: int,
        now: datetime,
        reading: Reading | None = None,
    ) -> Verdict | None:
        """What must happen instead of running the handler; None to run it."""
        message = delivery.message
        attempt = delivery.attempt
        if attempt > max_attempts:
            # A failed last attempt is dead-lettered at once. Who comes here was lost on the
            # way, unless its copy says that all attempts were counted and done.
            spent = message.attempts >= max_attempts and not message.suspect
            reason = "failed" if spent else "lost"
            note = self._note(delivery, reason, attempts=attempt - 1, now=now)
            return Verdict("dead_letter", "dead-lettered", counted=False, note=note, reason=reason)
        due, longest = message.not_before, math.inf
        if reading is not None:
            if reading.expires is not None and reading.expires <= now:
                return self._expired(delivery, reading.expired, now)
            theirs = reading.not_before
            if theirs is not None and (due is None or theirs > due):
                due, longest = theirs, self.longest_parking
        if due is not None and due > now:
            rest = min((due - now).total_seconds(), longest)
            return self.not_started(delivery, rest, now=now)
        return None

    def _expired(self, delivery: Delivery, expired: Expired, now: datetime) -> Verdict:
        if expired == "discard":
            return Verdict("ack", "discarded", counted=False, reason=EXPIRED)
        note = self._note(delivery, EXPIRED, attempts=delivery.attempt - 1, now=now)
        return Verdict("dead_letter", "dead-lettered", counted=False, note=note, reason=EXPIRED)

    def undecodable(self, delivery: Delivery, problem: str, now: datetime) -> Verdict:
        """The message cannot be read, and trying again cannot help."""
        reason = delivery.defect_reason
        note = self._note(delivery, reason, attempts=delivery.attempt, now=now, text=problem)
        return Verdict("dead_letter", "dead-lettered", counted=False, note=note, reason=reason)

    def unknown_type(self, delivery: Delivery, now: datetime) -> Verdict:
        """No worker here runs it; perhaps one of a newer release does."""
        message = delivery.message
        since = message.unknown_since or now
        if (now - since).total_seconds() >= self.unknown_after:
            text = f"no worker is registered for {message.type!r} on {delivery.queue!r}"
            note = self._note(
                delivery, "unknown-type", attempts=delivery.attempt - 1, now=now, text=text
            )
            return Verdict(
                "dead_letter", "dead-lettered", counted=False, note=note, reason="unknown-type"
            )
        pause = min(self.unknown_after / _UNKNOWN_TYPE_PAUSES, _LONGEST_UNKNOWN_TYPE_PAUSE)
        mark = _uncounted(delivery, unknown_since=since)
        return self._put_back(max(pause, _SHORTEST_PAUSE), mark, "put-back", now, UNKNOWN_TYPE)

    def left(self, delivery: Delivery, now: datetime) -> Verdict:
        """No worker here runs it, and somebody else reads the queue: for them, uncounted."""
        mark = _uncounted(delivery)
        return self._put_back(_LEFT_PAUSE, mark, "put-back", now, LEFT)

    def held(
        self, delivery: Delivery, verdict: Verdict, *, pause: float, max_attempts: int
    ) -> Verdict:
        """Where there is no dead-letter queue: back for a while, and never run again.

        What could not be read, or had no worker, is looked at anew each time, and runs once
        there is a runner that can do it.
        """
        spent = delivery.attempt if verdict.counted else delivery.attempt - 1
        if verdict.counted:
            spent = max(spent, max_attempts)
        mark = replace(_uncounted(delivery), attempts=spent)
        delay = min(pause, self.longest_parking, self.capabilities.max_release_delay)
        return Verdict("put_back", "held", verdict.counted, delay, mark, reason=verdict.reason)

    def not_started(self, delivery: Delivery, delay: float, *, now: datetime) -> Verdict:
        """Back unrun, and not counted."""
        return self._put_back(delay, _uncounted(delivery), "put-back", now)

    def skipped(self, delivery: Delivery, skip: Skip, now: datetime) -> Verdict:
        """The worker's guard decided instead of the handler."""
        if skip.kind == "duplicate":
            return Verdict("ack", "duplicate", counted=False)
        if skip.kind == "dead":
            note = self._note(
                delivery, skip.reason, attempts=delivery.attempt, now=now, text=skip.text
            )
            return Verdict(
                "dead_letter", "dead-lettered", counted=False, note=note, reason=skip.reason
            )
        mark = _uncounted(delivery)
        return self._put_back(skip.delay, mark, "put-back", now, skip.reason)

    # -- after the handler ----------------------------------------------------------------

    def after(
        self,
        delivery: Delivery,
        outcome: Outcome,
        *,
        policy: RetryPolicy,
        error: BaseException | None,
        label: str,
        now: datetime,
    ) -> Verdict:
        """What becomes of a message whose handler has ended."""
        if isinstance(outcome, Done):
            return _DONE
        if isinstance(outcome, Discard):
            return Verdict("ack", "discarded", reason=outcome.reason)
        if isinstance(outcome, DeadLetter):
            return self.given_up(delivery, outcome.reason, error=error, now=now)
        if isinstance(outcome, Snooze):
            return self._snoozed(delivery, outcome, now)
        attempt = delivery.attempt
        after, why = (outcome.after, outcome.reason) if isinstance(outcome, Retry) else (None, "")
        if attempt >= policy.max_attempts:
            return self.given_up(delivery, label, error=error, now=now, text=why)
        delay = policy.wait_after(attempt) if after is None else after
        return self._failed(delivery, delay, policy, label, now)

    def cancelled(self, delivery: Delivery, now: datetime) -> Verdict:
        """The runner stops: back at once, for another one."""
        return self._put_back(0.0, _uncounted(delivery), "cancelled", now)

    def given_up(
        self,
        delivery: Delivery,
        reason: str,
        *,
        now: datetime,
        error: BaseException | None = None,
        text: str = "",
    ) -> Verdict:
        """To the dead-letter queue, for ``reason``."""
        attempts = delivery.attempt
        note = self._note(delivery, reason, attempts=attempts, now=now, error=error, text=text)
        return Verdict("dead_letter", "dead-lettered", note=note, reason=reason)

    def returned(self, delivery: Delivery, delay: float, *, now: datetime) -> Verdict:
        """Back after ``delay`` seconds, counted as an attempt."""
        if delay <= self.capabilities.max_release_delay:
            return Verdict("release", "failed", delay=delay)
        mark = Mark(attempts=delivery.attempt, snoozed=delivery.message.snoozed)
        return self._put_back(delay, mark, "failed", now, counted=True)

    # -- pieces ---------------------------------------------------------------------------

    def _snoozed(self, delivery: Delivery, outcome: Snooze, now: datetime) -> Verdict:
        snoozed = delivery.message.snoozed + outcome.after
        if snoozed > SNOOZE_LIMIT:
            return self.given_up(delivery, "snoozed-too-long", now=now)
        mark = Mark(attempts=delivery.attempt - 1, snoozed=snoozed)
        return self._put_back(outcome.after, mark, "snoozed", now, outcome.reason)

    def _failed(
        self, delivery: Delivery, delay: float, policy: RetryPolicy, label: str, now: datetime
    ) -> Verdict:
        attempt = delivery.attempt
        limit = self.capabilities.max_release_delay
        copies = self.capabilities.uncounted_return is not UncountedReturn.COUNTED
        leads_to_last = attempt + 1 >= policy.max_attempts
        if copies and (leads_to_last or delay > limit):
            # A fresh copy shows that this attempt ended in an orderly way: at its last
            # attempt the message is then no crash suspect.
            mark = Mark(attempts=attempt, snoozed=delivery.message.snoozed)
            return self._put_back(delay, mark, label, now, counted=True)
        return Verdict("release", label, delay=min(delay, limit))

    def _put_back(
        self,
        delay: float,
        mark: Mark,
        label: str,
        now: datetime,
        reason: str = "",
        *,
        counted: bool = False,
    ) -> Verdict:
        limit = self.capabilities.max_release_delay
        if delay > limit:
            mark = replace(mark, not_before=now + timedelta(seconds=delay))
            delay = limit
        return Verdict("put_back", label, counted, delay, mark, reason=reason)

    def _note(
        self,
        delivery: Delivery,
        reason: str,
        *,
        attempts: int,
        now: datetime,
        error: BaseException | None = None,
        text: str = "",
    ) -> DeadLetterNote:
        return DeadLetterNote(
            reason=_carriable(reason[:MAX_TEXT]),
            error_type="" if error is None else type(error).__qualname__,
            error=_carriable(text[:MAX_TEXT]) if error is None else text_of(error),
            digest="" if error is None else traceback_digest(error),
            attempts=max(attempts, 0),
            queue=delivery.queue,
            first_at=delivery.message.created_at,
            dead_at=now,
            version=__version__,
        )


def _uncounted(delivery: Delivery, *, unknown_since: datetime | None = None) -> Mark:
    mark = unstarted(delivery.message, delivery.receives)
    return replace(mark, unknown_since=unknown_since)


def is_crash_suspect(delivery: Delivery, max_attempts: int) -> bool:
    """Whether this last attempt could be the one that kills its process, again."""
    return (
        max_attempts > 1
        and delivery.attempt == max_attempts
        and (delivery.receives > 1 or delivery.message.suspect)
    )


def text_of(error: BaseException) -> str:
    """The text of ``error``, cut; an exception whose text cannot be had says so."""
    try:
        return _carriable(str(error)[:MAX_TEXT])
    except BaseException as broken:  # noqa: BLE001 -- a user's __str__ may raise anything
        return f"(its text cannot be had: {type(broken).__qualname__})"


def _carriable(text: str) -> str:
    # Lone surrogates have no encoding; an error's text must not keep it from its dead letter.
    return text.encode("utf-8", "backslashreplace").decode()


def traceback_digest(error: BaseException) -> str:
    """Equal for errors of one class that came through the same places, 16 hex digits."""
    places = [
        f"{frame.f_code.co_filename}:{frame.f_code.co_name}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    text = "\n".join([type(error).__qualname__, *places])
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()

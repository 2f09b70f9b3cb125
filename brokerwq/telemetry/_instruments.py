"""The metrics' instruments of one meter provider, and the words their attributes may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from opentelemetry.metrics import MeterProvider

from brokerwq.telemetry import _names as names
from brokerwq.telemetry._text import presentable
from brokerwq.version import __version__

_CALL_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
# The conventions end at 10 seconds; a job may well take an hour.
_JOB_SECONDS: Final = (*_CALL_SECONDS, 30, 60, 300, 900, 3600)

_REASONS: Final = (
    "failed",
    "timeout",
    "lost",
    "decode",
    "unknown-type",
    "snoozed-too-long",
    "payload-mismatch",
)
_WORDS: Final = 100
_QUEUES: Final = 1000
_LONGEST_WORD: Final = 100


class Vocabulary:
    """Lets the ``known`` words and the first ``limit`` others through; all else is ``_OTHER``.

    Each new value of an attribute is a new time series, here and at whoever stores it; message
    types, reasons and names of errors may come from strangers.
    """

    __slots__ = ("_limit", "_words")

    def __init__(self, limit: int, known: Iterable[str] = ()) -> None:
        self._words = {word: word for word in known}
        self._limit = limit + len(self._words)

    def __call__(self, word: str) -> str:
        """``word``, presentable, or ``_OTHER``."""
        known = self._words.get(word)
        if known is not None:
            return known
        if len(self._words) >= self._limit or len(word) > _LONGEST_WORD:
            return names.OTHER
        return self._words.setdefault(word, presentable(word))


class Instruments:
    """Made once per meter provider: making one twice is a warning in some versions."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(names.SCOPE, __version__)
        counter, gauge, histogram = (
            meter.create_counter,
            meter.create_gauge,
            meter.create_histogram,
        )
        self.sent = counter(
            names.SENT_MESSAGES, "{message}", "Messages that were given to the broker."
        )
        self.consumed = counter(names.CONSUMED_MESSAGES, "{message}", "Messages that were claimed.")
        self.attempts = counter(names.ATTEMPTS, "{attempt}", "Jobs that ended, by outcome.")
        self.extended = counter(names.LEASES_EXTENDED, "{lease}", "Leases that were extended.")
        self.lost = counter(
            names.LEASES_LOST, "{lease}", "Leases that ended before their message was settled."
        )
        self.dead = counter(names.DEAD_LETTERS, "{message}", "Messages that were given up on.")
        self.unsettled = counter(
            names.SETTLES_FAILED, "{message}", "Settles that did not go through."
        )
        self.suspects = counter(
            names.SUSPECTS, "{message}", "Messages that were run alone as crash suspects."
        )
        self.failures = counter(names.BROKER_FAILURES, "{call}", "Broker calls that failed.")
        self.depth = gauge(
            names.QUEUE_MESSAGES, "{message}", "Messages in the queue when last looked at."
        )
        self.oldest_age = gauge(
            names.QUEUE_OLDEST_AGE, "s", "Age of the oldest ready message when last looked at."
        )
        self.blocked = histogram(
            names.LOOP_BLOCKED,
            "s",
            "How long handlers kept the event loop from running.",
            explicit_bucket_boundaries_advisory=_JOB_SECONDS,
        )
        self.operation_seconds = histogram(
            names.OPERATION_DURATION,
            "s",
            "Duration of sends and settles.",
            explicit_bucket_boundaries_advisory=_CALL_SECONDS,
        )
        self.process_seconds = histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of handler calls.",
            explicit_bucket_boundaries_advisory=_JOB_SECONDS,
        )
        self.vocabularies: Mapping[str, Vocabulary] = {
            names.DESTINATION: Vocabulary(_QUEUES),
            names.MESSAGE_TYPE: Vocabulary(_WORDS),
            names.REASON: Vocabulary(_WORDS, _REASONS),
            names.ERROR_TYPE: Vocabulary(_WORDS),
        }

"""Metrics of what happened at one broker, from events and from the ends of spans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from brokerwq import events
from brokerwq.driver.protocol import Certainty
from brokerwq.telemetry import _names as names
from brokerwq.telemetry._instruments import Instruments

Attributes: TypeAlias = Mapping[str, str | int | bool]

_CACHED: Final = 1000

# Elsewhere the reason is a handler's free text, which would use the vocabulary up.
_WITH_REASON: Final = frozenset({"dead-lettered", "held", "put-back"})


class Meters:
    """Its methods may be called in any thread.

    Args:
        instruments: What to record with.
        broker: Attributes that say which broker it is.
    """

    def __init__(self, instruments: Instruments, broker: Attributes) -> None:
        self._instruments = instruments
        self._broker = broker
        self._cache: dict[tuple[tuple[str, str | bool], ...], Attributes] = {}
        self._takers: Mapping[type[events.Event], Callable[[Any], None]] = {
            events.MessagesSent: self._sent,
            events.MessagesClaimed: self._claimed,
            events.JobEnded: self._ended,
            events.LeasesExtended: self._extended,
            events.LeaseLost: self._lost,
            events.DeadLettered: self._dead,
            events.SettleFailed: self._unsettled,
            events.CrashSuspectIsolated: self._suspect,
            events.BrokerUnreachable: self._unreachable,
            events.LoopBlocked: self._blocked,
            events.QueueInspected: self._inspected,
        }

    def take(self, event: events.Event) -> None:
        """Count ``event``, if there is anything to count in it."""
        taker = self._takers.get(type(event))
        if taker is not None:
            taker(event)

    def processed(self, seconds: float, queue: str, type_: str, error: str) -> None:
        """Note how long a handler took; ``error`` is empty if it did not fail."""
        self._instruments.process_seconds.record(
            seconds,
            self._labels(
                (names.DESTINATION, queue),
                (names.OPERATION, "process"),
                (names.OPERATION_TYPE, "process"),
                (names.MESSAGE_TYPE, type_),
                (names.ERROR_TYPE, error),
            ),
        )

    def performed(self, seconds: float, operation: str, kind: str, queue: str, error: str) -> None:
        """Note how long a send or settle took; ``error`` is empty if it did not fail."""
        self._instruments.operation_seconds.record(
            seconds,
            self._labels(
                (names.DESTINATION, queue),
                (names.OPERATION, operation),
                (names.OPERATION_TYPE, kind),
                (names.ERROR_TYPE, error),
            ),
        )

    def _labels(self, *pairs: tuple[str, str | bool]) -> Attributes:
        # Made once per combination: this runs for every message. Cached under what was given,
        # so the cache is bounded by count, not by the vocabularies.
        made = self._cache.get(pairs)
        if made is None:
            made = dict(self._broker)
            vocabularies = self._instruments.vocabularies
            for name, value in pairs:
                if isinstance(value, bool):
                    made[name] = value
                elif value:
                    vocabulary = vocabularies.get(name)
                    made[name] = vocabulary(value) if vocabulary else value
            if len(self._cache) < _CACHED:
                self._cache[pairs] = made
        return made

    # -- one for each event -----------------------------------------------------------------

    def _sent(self, event: events.MessagesSent) -> None:
        for count, error in ((event.count, ""), (event.failed, names.OTHER)):
            if count:
                self._instruments.sent.add(
                    count,
                    self._labels(
                        (names.DESTINATION, event.queue),
                        (names.OPERATION, "send"),
                        (names.MESSAGE_TYPE, event.type),
                        (names.ERROR_TYPE, error),
                    ),
                )

    def _claimed(self, event: events.MessagesClaimed) -> None:
        self._instruments.consumed.add(
            event.count,
            self._labels((names.DESTINATION, event.queue), (names.OPERATION, "claim")),
        )

    def _ended(self, event: events.JobEnded) -> None:
        self._instruments.attempts.add(
            1,
            self._labels(
                (names.DESTINATION, event.queue),
                (names.MESSAGE_TYPE, event.type),
                (names.OUTCOME, event.outcome),
                (names.COUNTED, event.counted),
                (names.REASON, event.reason if event.outcome in _WITH_REASON else ""),
                (names.ERROR_TYPE, event.error_type),
            ),
        )

    def _extended(self, event: events.LeasesExtended) -> None:
        self._instruments.extended.add(event.count, self._labels((names.DESTINATION, event.queue)))

    def _lost(self, event: events.LeaseLost) -> None:
        self._instruments.lost.add(
            1,
            self._labels((names.DESTINATION, event.queue), (names.MESSAGE_TYPE, event.type)),
        )

    def _dead(self, event: events.DeadLettered) -> None:
        self._instruments.dead.add(
            1,
            self._labels(
                (names.DESTINATION, event.queue),
                (names.MESSAGE_TYPE, event.type),
                (names.REASON, event.reason),
            ),
        )

    def _unsettled(self, event: events.SettleFailed) -> None:
        self._instruments.unsettled.add(
            1,
            self._labels((names.DESTINATION, event.queue), (names.OPERATION, event.operation)),
        )

    def _suspect(self, event: events.CrashSuspectIsolated) -> None:
        self._instruments.suspects.add(
            1,
            self._labels((names.DESTINATION, event.queue), (names.MESSAGE_TYPE, event.type)),
        )

    def _unreachable(self, event: events.BrokerUnreachable) -> None:
        self._instruments.failures.add(
            1,
            self._labels((names.DESTINATION, event.queue), (names.OPERATION, event.operation)),
        )

    def _blocked(self, event: events.LoopBlocked) -> None:
        self._instruments.blocked.record(event.seconds, self._labels())

    def _inspected(self, event: events.QueueInspected) -> None:
        stats = event.stats
        for state, count in (
            ("ready", stats.ready),
            ("leased", stats.leased),
            ("delayed", stats.delayed),
            ("dead", stats.dead),
        ):
            # An unknown count is no zero: a graph of zeros would say that all is well.
            if count.certainty is not Certainty.UNKNOWN:
                self._instruments.depth.set(
                    count.value,
                    self._labels((names.DESTINATION, event.queue), (names.STATE, state)),
                )
        nothing_ready = stats.ready.certainty is Certainty.EXACT and stats.ready.value == 0
        age = 0.0 if nothing_ready else stats.oldest_age
        if age is not None:
            self._instruments.oldest_age.set(age, self._labels((names.DESTINATION, event.queue)))

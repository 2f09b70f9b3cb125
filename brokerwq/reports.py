"""What came of an operation on many messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from brokerwq.errors import BrokerwqError

FAILURES_KEPT: Final = 1000
"""Failed items that a report keeps with their errors; the rest is only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSend:
    """One item that no broker has confirmed.

    Attributes:
        index: Its place in what was given, from 0.
        id: The id its message had; empty where no message could be made of it. Sending the
            item again under this id cannot make it two pieces of work for a store.
        error: ``PayloadError`` if it could not be encoded; else the broker's answer.
    """

    index: int
    id: str
    error: BrokerwqError


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReport:
    """What came of ``enqueue_many``.

    Attributes:
        sent: Items that the broker has accepted for keeping.
        failed_count: Items that were not confirmed.
        failed: The first 1,000 of those, by index.
    """

    sent: int = 0
    failed_count: int = 0
    failed: tuple[FailedSend, ...] = ()

    def joined(self, other: SendReport, *, offset: int) -> SendReport:
        """This report and ``other``, whose items started at ``offset``."""
        room = FAILURES_KEPT - len(self.failed)
        moved = (
            FailedSend(index=failed.index + offset, id=failed.id, error=failed.error)
            for failed in other.failed[: max(room, 0)]
        )
        return SendReport(
            sent=self.sent + other.sent,
            failed_count=self.failed_count + other.failed_count,
            failed=(*self.failed, *moved),
        )

    def __str__(self) -> str:
        """For people: ``997 sent, 3 failed; first: item 5, PayloadError: …``."""
        if not self.failed_count:
            return f"{self.sent} sent"
        text = f"{self.sent} sent, {self.failed_count} failed"
        if self.failed:
            first = self.failed[0]
            text += f"; first: item {first.index}, {type(first.error).__name__}: {first.error}"
        return text[:500]


_SAID: Final = (
    ("failed", "retried"),
    ("snoozed", "snoozed"),
    ("discarded", "discarded"),
    ("duplicates", "duplicates"),
    ("put_back", "put back"),
    ("lost", "leases lost"),
    ("unsettled", "not settled"),
    ("left_delayed", "left for later"),
)
"""The counts of a report that are only told where they are not 0, and their words."""


def _none_dead() -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a runner did, counted in messages as their settles went through.

    Attributes:
        done: Handler returned, acked.
        failed: Attempts that failed and were given another one.
        timeouts: Those of them that ran out of time.
        snoozed: Came back later at their own wish.
        discarded: Acked as unwanted.
        dead: Dead letters by reason.
        duplicates: Acked unrun, since their work was done before; see ``once``.
        put_back: Returned unrun or cancelled, without spending an attempt.
        lost: Leases that ended before their message was settled.
        unsettled: Settles that did not go through; those messages come back by themselves.
        seconds: From start to stop.
        stuck: Handlers that did not end; only ending the process ends them.
        exit_code: 0, or what a handler or a second signal asked for.
        drained: Nothing was left that a drain waits for.
        left_delayed: Messages that it did not await: delayed beyond the longest backoff, or held
            for want of a dead-letter queue.
        estimated: The broker's counts, by which it ended, were estimates.
    """

    done: int = 0
    failed: int = 0
    timeouts: int = 0
    snoozed: int = 0
    discarded: int = 0
    duplicates: int = 0
    dead: Mapping[str, int] = field(default_factory=_none_dead)
    put_back: int = 0
    lost: int = 0
    unsettled: int = 0
    seconds: float = 0.0
    stuck: int = 0
    exit_code: int = 0
    drained: bool = False
    left_delayed: int = 0
    estimated: bool = False

    def __str__(self) -> str:
        """For people: ``997 done, 4 retried, 3 dead (2 failed, 1 timeout)``."""
        counts = ((int(getattr(self, name)), text) for name, text in _SAID)
        parts = [f"{self.done:,} done", *(f"{count:,} {text}" for count, text in counts if count)]
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.dead.items()))
        parts.append(f"{self.dead_count:,} dead" + (f" ({reasons})" if reasons else ""))
        return ", ".join(parts)

    @property
    def dead_count(self) -> int:
        """All dead letters together."""
        return sum(self.dead.values())

    @property
    def rate(self) -> float:
        """Messages done per second."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

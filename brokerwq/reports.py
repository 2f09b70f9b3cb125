"""What came of an operation on many messages."""

from __future__ import annotations

from dataclasses import dataclass
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

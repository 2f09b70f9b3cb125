"""What a runner has done, counted as its settles go through."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counts of settled messages; ``lost`` and ``unsettled`` come back by themselves.

    The counts are those of ``brokerwq.reports.RunReport``.
    """

    done: int = 0
    failed: int = 0
    timeouts: int = 0
    snoozed: int = 0
    discarded: int = 0
    duplicates: int = 0
    put_back: int = 0
    lost: int = 0
    unsettled: int = 0
    dead: Counter[str] = field(default_factory=Counter[str])

    def settled(self, label: str, reason: str) -> None:
        """Count one settle that went through."""
        if label == "done":
            self.done += 1
        elif label == "dead-lettered":
            self.dead[reason] += 1
        elif label in {"failed", "timeout"}:
            self.failed += 1
            self.timeouts += label == "timeout"
        elif label == "snoozed":
            self.snoozed += 1
        elif label == "discarded":
            self.discarded += 1
        elif label == "duplicate":
            self.duplicates += 1
        elif label == "lost":
            self.lost += 1
        else:
            self.put_back += 1

"""What the lanes of one mover share, and what each of them reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from brokerwq.clock import Clock
from brokerwq.migrate.ledger import Ledger
from brokerwq.migrate.pace import Pace
from brokerwq.migrate.pair import Direction
from brokerwq.migrate.sending import Target
from brokerwq.migrate.side import Side


@dataclass(slots=True, kw_only=True)
class LaneReport:
    """What came of one queue.

    Attributes:
        queue: Its name at the source.
        moved: Messages that are at the target now.
        repeated: Those of them that a mover before had sent, and that were only deleted here.
        refused: Messages that do not fit, by id, and why; the first hundred.
        refused_count: How many there are.
        left_open: Sent, but their originals could not be deleted; they will be when met again.
        waiting: Messages that were still at the source at the last look.
        held_by_others: False if it is known that nobody else holds messages there.
        is_missing: There is no such queue at the source.
    """

    queue: str
    moved: int = 0
    repeated: int = 0
    refused: dict[str, str] = field(default_factory=dict[str, str])
    refused_count: int = 0
    left_open: int = 0
    waiting: int = 0
    held_by_others: bool = True
    is_missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the lanes of one mover share.

    Attributes:
        source: Where messages come from.
        target: Where they go.
        keeps_raw: Both are of one kind, so that native properties can be repeated.
        direction: For the ledger.
        ledger: Open.
        pace: Shared rate.
        clock: Time.
        lease: Seconds of one claim.
        patience: Seconds for which a source in trouble is asked again.
        waits: Whether what is delayed or held by others is waited for.
        stopping: Set when the lanes shall end.
        progressed: Called after every batch and every look.
    """

    source: Side
    target: Target
    keeps_raw: bool
    direction: Direction
    ledger: Ledger
    pace: Pace
    clock: Clock
    lease: float
    patience: float
    waits: bool
    stopping: asyncio.Event
    progressed: Callable[[], object]

"""The newest of many records, for stores that have them in no order."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from brokerwq.idempotency.record import Record, State


class Newest:
    """Keeps ``limit`` of the records that it is shown.

    Args:
        limit: So many.
        state: Only records in this state; None: in any.
        worker: Only this worker's; None: everybody's.
    """

    def __init__(self, limit: int, state: State | None, worker: str | None) -> None:
        self._limit = limit
        self._wanted = state, worker
        self._heap: list[tuple[float, int, Record]] = []
        self._numbers = count()

    def add(self, record: Record) -> None:
        """Look at one more."""
        state, worker = self._wanted
        if state not in (None, record.state) or worker not in (None, record.worker):
            return
        heapq.heappush(self._heap, (record.created_at, next(self._numbers), record))
        if len(self._heap) > self._limit:
            heapq.heappop(self._heap)

    def result(self) -> Sequence[Record]:
        """The newest first; one that was shown twice is one all the same."""
        found = {record.key: record for _, _, record in sorted(self._heap, reverse=True)}
        return list(found.values())

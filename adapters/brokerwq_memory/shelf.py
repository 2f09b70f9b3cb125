"""Where the messages of a queue lie that nobody holds: in a row, or by group."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from brokerwq.driver.rules.sqs import DEDUPLICATION

if TYPE_CHECKING:
    from brokerwq_memory.space import Record


class Shelf(Protocol):
    """The claimable messages of a queue."""

    def __len__(self) -> int:
        """How many lie here; of groups also those that wait for an earlier one."""
        ...

    def __iter__(self) -> Iterator[Record]:
        """Those that lie here, in no particular order."""
        ...

    def add(self, record: Record) -> None:
        """Take in a message: a new one, or one that was taken and comes back."""
        ...

    def take(self) -> Record | None:
        """Take out the next message; None if none may be had."""
        ...

    def done(self, record: Record) -> None:
        """A message that was taken will not come back."""
        ...

    def keep(self, wanted: Callable[[Record], bool]) -> list[Record]:
        """Throw out what lies here and is not wanted, and give it back."""
        ...


class Row:
    """First in, first out."""

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: deque[Record] = deque()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def add(self, record: Record) -> None:
        """See ``Shelf.add``."""
        self._records.append(record)

    def take(self) -> Record | None:
        """See ``Shelf.take``."""
        return self._records.popleft() if self._records else None

    def done(self, record: Record) -> None:
        """See ``Shelf.done``."""

    def keep(self, wanted: Callable[[Record], bool]) -> list[Record]:
        """See ``Shelf.keep``."""
        thrown = [record for record in self._records if not wanted(record)]
        if thrown:
            self._records = deque(filter(wanted, self._records))
        return thrown


class Groups:
    """One message of a group at a time, in the order of their sending, also those that return.

    A message that was taken keeps its place, and its group waits for it.
    """

    __slots__ = ("_at_work", "_groups", "_heads", "_order", "_places", "_sent", "_visible")

    def __init__(self) -> None:
        self._groups: dict[str, deque[Record]] = {}
        self._at_work: dict[str, Record] = {}
        self._heads: list[tuple[int, str]] = []
        self._places: dict[Record, int] = {}
        self._order = itertools.count()
        self._sent: dict[str, float] = {}
        self._visible = 0

    def __len__(self) -> int:
        return self._visible

    def __iter__(self) -> Iterator[Record]:
        taken = set(self._at_work.values())
        return (one for group in self._groups.values() for one in group if one not in taken)

    def is_repeated(self, deduplication_id: str, now: float) -> bool:
        """Whether that id was sent within five minutes; if not, it is from now on."""
        sent = self._sent
        while sent and next(iter(sent.values())) <= now - DEDUPLICATION:
            del sent[next(iter(sent))]
        if deduplication_id in sent:
            return True
        sent[deduplication_id] = now
        return False

    def add(self, record: Record) -> None:
        """See ``Shelf.add``."""
        name = record.group
        self._visible += 1
        if self._at_work.get(name) is record:
            del self._at_work[name]
            self._offer(name)
            return
        self._places[record] = next(self._order)
        group = self._groups.setdefault(name, deque())
        group.append(record)
        if len(group) == 1:
            self._offer(name)

    def take(self) -> Record | None:
        """See ``Shelf.take``."""
        while self._heads:
            place, name = heappop(self._heads)
            group = self._groups.get(name)
            if group and name not in self._at_work and self._places[group[0]] == place:
                self._at_work[name] = group[0]
                self._visible -= 1
                return group[0]
        return None

    def done(self, record: Record) -> None:
        """See ``Shelf.done``."""
        self._at_work.pop(record.group, None)
        self._remove(record)

    def keep(self, wanted: Callable[[Record], bool]) -> list[Record]:
        """See ``Shelf.keep``."""
        thrown = [record for record in self if not wanted(record)]
        for record in thrown:
            self._visible -= 1
            self._remove(record)
        return thrown

    def _remove(self, record: Record) -> None:
        name = record.group
        group = self._groups[name]
        group.remove(record)
        del self._places[record]
        if not group:
            del self._groups[name]
        elif name not in self._at_work:
            self._offer(name)

    def _offer(self, name: str) -> None:
        heappush(self._heads, (self._places[self._groups[name][0]], name))

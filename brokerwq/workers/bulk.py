"""Many messages, made one by one while they are sent."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from typing import Any

from brokerwq.errors import BrokerwqError
from brokerwq.message import Outgoing
from brokerwq.reports import FAILURES_KEPT, FailedSend, SendReport


class Bulk:
    """Makes messages of items, passes over what cannot be made, and remembers it.

    The sender counts the messages it was given; ``report`` turns its counts into places among
    the items.
    """

    def __init__(self, make: Callable[[Any], Outgoing]) -> None:
        self._make = make
        self._refused: list[FailedSend] = []
        # For each item passed over, how many messages were made before it: eight bytes each,
        # so that a million bad items do not break the promise of bounded memory.
        self._made_before = array("Q")

    def each(self, items: Iterable[Any]) -> Iterator[Outgoing]:
        """The messages of ``items``, lazily."""
        make = self._make
        for index, item in enumerate(items):
            try:
                outgoing = make(item)
            except BrokerwqError as exc:
                self._refuse(index, exc)
            else:
                yield outgoing

    async def each_async(self, items: AsyncIterable[Any]) -> AsyncGenerator[Outgoing]:
        """The messages of ``items``, lazily."""
        make = self._make
        index = -1
        async for item in items:
            index += 1
            try:
                outgoing = make(item)
            except BrokerwqError as exc:
                self._refuse(index, exc)
            else:
                yield outgoing

    def _refuse(self, index: int, error: BrokerwqError) -> None:
        if len(self._refused) < FAILURES_KEPT:
            self._refused.append(FailedSend(index=index, id="", error=error))
        self._made_before.append(index - len(self._made_before))

    def report(self, sent: SendReport) -> SendReport:
        """The whole: ``sent``, whose items are messages, and what was passed over."""
        refused = self._made_before
        if not refused:
            return sent
        failed = [
            FailedSend(
                index=each.index + bisect_right(refused, each.index), id=each.id, error=each.error
            )
            for each in sent.failed
        ]
        failed += self._refused
        failed.sort(key=lambda each: each.index)
        return SendReport(
            sent=sent.sent,
            failed_count=sent.failed_count + len(refused),
            failed=tuple(failed[:FAILURES_KEPT]),
        )

"""What the broker has said of the messages that were published on one channel.

RabbitMQ numbers them from 1 in the order of their arrival, answers in any order, often for many
at once, and returns what reaches no queue before it confirms it (Publisher Confirms, in its
documentation).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence

from brokerwq_rabbitmq.frames import Arrival
from brokerwq_rabbitmq.table import decode_properties


class Said(enum.Enum):
    """The broker's word on one message, or that there is none yet."""

    NOTHING = enum.auto()
    STORED = enum.auto()
    REFUSED = enum.auto()
    """The queue takes no more."""
    RETURNED = enum.auto()
    """There is no such queue."""


class Batch:
    """Messages that were written together.

    Attributes:
        said: The broker's word on each, in their order.
        failure: Why no more will be said; None while there may be.
        done: Done when nothing more will be said.
    """

    def __init__(self, count: int) -> None:
        self.said = [Said.NOTHING] * count
        self.failure: BaseException | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = count
        if not count:
            self.end()

    def confirmed(self, place: int, said: Said) -> None:
        """The last word on the message at ``place``, unless it was returned."""
        if self.said[place] is Said.NOTHING:
            self.said[place] = said
        self._left -= 1
        if not self._left:
            self.end()

    def end(self, failure: BaseException | None = None) -> None:
        """Nothing more will be said."""
        if not self.done.done():
            self.failure = failure
            self.done.set_result(None)


class Confirms:
    """See the module; it is the ``Answers`` of a ``FrameReader``.

    Attributes:
        has_ended: The channel takes nothing more.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self._failure: BaseException | None = None
        self._last = 0
        self._open: dict[int, tuple[Batch, int, str]] = {}
        self._by_id: dict[str, int] = {}

    def expect(self, ids: Sequence[str]) -> Batch:
        """Messages of these ids, of which none is under way, are written now, in this order.

        If the channel has ended the batch has failed already, and nothing may be written.
        """
        batch = Batch(len(ids))
        if self.has_ended:
            batch.end(self._failure or ConnectionResetError("the broker closes the channel"))
            return batch
        for place, id_ in enumerate(ids):
            self._last += 1
            self._open[self._last] = batch, place, id_
            self._by_id[id_] = self._last
        return batch

    def under_way(self, id_: str) -> Batch | None:
        """The batch of a message of this id that is not confirmed yet."""
        tag = self._by_id.get(id_)
        return None if tag is None else self._open[tag][0]

    def confirmed(self, tag: int, *, multiple: bool, is_stored: bool) -> None:
        """See ``brokerwq_rabbitmq.frames.Answers``."""
        said = Said.STORED if is_stored else Said.REFUSED
        if not multiple:
            self._close(tag, said)
            return
        while self._open and (first := next(iter(self._open))) <= tag:
            self._close(first, said)

    def _close(self, tag: int, said: Said) -> None:
        found = self._open.pop(tag, None)
        if found is not None:
            batch, place, id_ = found
            del self._by_id[id_]
            batch.confirmed(place, said)

    def returned(self, arrival: Arrival) -> None:
        """See ``brokerwq_rabbitmq.frames.Answers``."""
        properties = decode_properties(arrival.properties)
        tag = self._by_id.get(properties.text("message_id"))
        if tag is None:
            if self.has_ended:
                return
            # Its confirm would be taken for good news.
            msg = "RabbitMQ returned a message that is not under way"
            raise ConnectionError(msg)
        batch, place, _ = self._open[tag]
        batch.said[place] = Said.RETURNED

    def ended(self) -> None:
        """See ``brokerwq_rabbitmq.frames.Answers``."""
        self.has_ended = True

    def fail(self, failure: BaseException) -> None:
        """The channel is closed, for this reason: nothing more will be said."""
        self.has_ended, self._failure = True, failure
        batches = {id(batch): batch for batch, _, _ in self._open.values()}
        self._open.clear()
        self._by_id.clear()
        for batch in batches.values():
            batch.end(failure)

"""What a broker must do, as an oracle: it is told what happened and objects to what cannot be.

Exact brokers only: a return is one step, receives are counted, settles are fenced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from brokerwq.driver.protocol import Delivery, Mark
from brokerwq.message import DeadLetterNote, Message


class ModelError(AssertionError):
    """The broker did what no broker may do."""


class Moment(NamedTuple):
    """A reading of both clocks, in seconds."""

    now: float
    wall: float


class Counts(NamedTuple):
    """How many messages of a queue are in which state."""

    ready: int
    leased: int
    delayed: int


@dataclass(slots=True)
class Copy:
    """A stored message.

    Attributes:
        message: As it must come back.
        queue: Where it is.
        receives: How often it was handed out.
        holder: Who leases it, or leased it last.
        until: When its lease or delay ends.
        is_leased: Which of the two.
    """

    message: Message
    queue: str
    receives: int = 0
    holder: Delivery | None = None
    until: float = 0.0
    is_leased: bool = False


class BrokerModel:
    """The messages of a broker, each with an id of its own.

    Args:
        delays_follow_wall: Delays end by the wall clock; else by the one that never jumps.
    """

    def __init__(self, *, delays_follow_wall: bool = False) -> None:
        self.copies: dict[str, Copy] = {}
        self.done: set[str] = set()
        self._delays_follow_wall = delays_follow_wall

    def send(self, queue: str, message: Message, delay: float, at: Moment) -> None:
        """A send was done."""
        self.copies[message.id] = copy = Copy(message, queue)
        self._delay(copy, delay, at)

    def claimable(self, queue: str, at: Moment) -> set[str]:
        """The ids of the messages that a claim may bring."""
        return {
            id_
            for id_, copy in self.copies.items()
            if copy.queue == queue and self._is_free(copy, at)
        }

    def claim(self, queue: str, deliveries: Sequence[Delivery], lease: float, at: Moment) -> None:
        """A claim brought ``deliveries``.

        Raises:
            ModelError: it could not.
        """
        for delivery in deliveries:
            copy = self._claimed(queue, delivery, at)
            copy.receives += 1
            copy.holder, copy.until, copy.is_leased = delivery, at.now + lease, True
            if delivery.receives != copy.receives:
                msg = f"{delivery!r} is receive number {copy.receives}"
                raise ModelError(msg)
            if delivery.message != copy.message:
                msg = f"{delivery.message!r} came back, {copy.message!r} was stored"
                raise ModelError(msg)

    def _claimed(self, queue: str, delivery: Delivery, at: Moment) -> Copy:
        id_ = delivery.message.id
        if id_ in self.done:
            msg = f"{id_} was acked or purged, and came back"
            raise ModelError(msg)
        copy = self.copies.get(id_)
        if copy is None or copy.queue != queue:
            msg = f"{id_} came from {queue}, where it never was"
            raise ModelError(msg)
        if not self._is_free(copy, at):
            state = "leased" if copy.is_leased else "delayed"
            msg = f"{id_} was claimed while it was {state}"
            raise ModelError(msg)
        return copy

    def holds(self, delivery: Delivery, at: Moment) -> bool:
        """Whether the lease of ``delivery`` still runs, so that it may be settled."""
        copy = self.copies.get(delivery.message.id)
        return (
            copy is not None
            and copy.holder is delivery
            and copy.is_leased
            and not self._is_free(copy, at)
        )

    def ack(self, delivery: Delivery) -> None:
        """An ack was done."""
        del self.copies[delivery.message.id]
        self.done.add(delivery.message.id)

    def extend(self, delivery: Delivery, seconds: float, at: Moment) -> None:
        """An extend was done."""
        self.copies[delivery.message.id].until = at.now + seconds

    def release(self, delivery: Delivery, delay: float, at: Moment) -> None:
        """A release was done."""
        self._delay(self.copies[delivery.message.id], delay, at)

    def put_back(self, delivery: Delivery, delay: float, mark: Mark, at: Moment) -> None:
        """A put_back was done."""
        copy = self.copies[delivery.message.id]
        copy.message = replace(
            copy.message,
            attempts=mark.attempts,
            suspect=mark.suspect,
            unknown_since=mark.unknown_since,
            not_before=mark.not_before,
            snoozed=mark.snoozed,
        )
        copy.receives = 0
        self._delay(copy, delay, at)

    def dead_letter(self, delivery: Delivery, note: DeadLetterNote, queue: str, at: Moment) -> None:
        """A dead_letter to ``queue`` was done."""
        copy = self.copies[delivery.message.id]
        copy.message = replace(copy.message, attempts=0, dead=note)
        copy.queue, copy.receives = queue, 0
        self._delay(copy, 0.0, at)

    def purge(self, queue: str, at: Moment) -> None:
        """A purge was done; leased messages have survived."""
        for id_, copy in list(self.copies.items()):
            if copy.queue == queue and (not copy.is_leased or self._is_free(copy, at)):
                del self.copies[id_]
                self.done.add(id_)

    def counts(self, queue: str, at: Moment) -> Counts:
        """What an exact inspect must tell."""
        ready = leased = delayed = 0
        for copy in self.copies.values():
            if copy.queue == queue:
                is_free = self._is_free(copy, at)
                ready += is_free
                leased += copy.is_leased and not is_free
                delayed += not copy.is_leased and not is_free
        return Counts(ready, leased, delayed)

    @property
    def has_delays(self) -> bool:
        """Whether any message waits for a delay, or has waited for one and was not claimed."""
        return any(not copy.is_leased and copy.until > -math.inf for copy in self.copies.values())

    def _delay(self, copy: Copy, delay: float, at: Moment) -> None:
        copy.holder, copy.is_leased = None, False
        # What has no delay is ready for good: a wall clock that is set back cannot delay it.
        copy.until = self._delay_clock(at) + delay if delay > 0 else -math.inf

    def _is_free(self, copy: Copy, at: Moment) -> bool:
        clock = at.now if copy.is_leased else self._delay_clock(at)
        return copy.until <= clock

    def _delay_clock(self, at: Moment) -> float:
        return at.wall if self._delays_follow_wall else at.now

"""The contract between brokerwq and an adapter: two protocols and twelve rules.

The conformance kit (``brokerwq.testing``) has a check for each rule.

1. One attempt per call: no retry, timer or telemetry of the adapter's own.
2. Batch methods answer one slot per item, in order, None for done; they raise only when no
   item's fate is known.
3. Native errors become brokerwq errors, ``raise … from``.
4. A send is done when the broker has accepted it for keeping, not when it is written.
5. A settle that was done once and is repeated answers None or ``LeaseLostError``.
6. A settle never touches another consumer's lease, where ``Capabilities.fences`` is true.
   Where it is not, nothing is sent after the local deadline except an ack of finished work,
   which answers ``LeaseLostError(sent=True)``.
7. All methods may be called concurrently, except ``claim`` of one consumer.
8. A cancelled or quiesced claim strands nothing; a return by copy is shielded from
   cancellation.
9. After a lost connection the next call reconnects; deliveries of the old one are lost.
10. Body bytes, header names and header values come back as they were sent.
11. An outage is an error, never an empty claim.
12. Nothing above DEBUG is logged: the core reports once, with the context it has.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from brokerwq.driver.capabilities import Capabilities
from brokerwq.errors import DriverError
from brokerwq.message import DeadLetterNote, Message

Results: TypeAlias = Sequence[DriverError | None]
"""One slot per item given, in the same order; None means done."""

DEFAULT_BROKER_LIMIT = 100
"""The broker's own limit on receives where it has one; see ``QueueSpec.broker_limit``."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Delivery:
    """One receive of one message by one consumer. Compared and hashed by identity.

    Attributes:
        message: The decoded message.
        queue: The queue it was claimed from.
        handle: The adapter's own token for this receive; nobody else looks inside.
        receives: How often the broker has handed out this copy, this time included.
            Without ``Capabilities.counts_receives`` it is 1, or 2 for "not the first time".
        lease_left: Seconds the lease still runs, counted from the moment ``claim`` returned.
        defect: What of the stored envelope could not be read; empty if all of it could. The
            message then holds what was readable and goes to the dead-letter queue.
        defect_reason: Why it is dead there.
    """

    message: Message
    queue: str
    handle: object
    receives: int
    lease_left: float
    defect: str = ""
    defect_reason: str = "decode"

    @property
    def attempt(self) -> int:
        """Number of this attempt over all copies of the message, from 1."""
        return self.message.attempts + self.receives

    @property
    def raw(self) -> Mapping[str, object]:
        """Native properties and headers of a foreign message; see ``Message.raw``."""
        return self.message.raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a returned copy shall carry; see the ``Message`` attributes of the same names.

    The copy's receives start anew, so ``attempts`` is the whole count.
    """

    attempts: int = 0
    suspect: bool = False
    unknown_since: datetime | None = None
    not_before: datetime | None = None
    snoozed: float = 0.0

    @classmethod
    def of(cls, message: Message) -> Mark:
        """The mark that leaves ``message`` as it is."""
        return cls(
            attempts=message.attempts,
            suspect=message.suspect,
            unknown_since=message.unknown_since,
            not_before=message.not_before,
            snoozed=message.snoozed,
        )

    def on(self, message: Message) -> Message:
        """``message`` as one that carries this mark."""
        return replace(
            message,
            attempts=self.attempts,
            suspect=self.suspect,
            unknown_since=self.unknown_since,
            not_before=self.not_before,
            snoozed=self.snoozed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """How a queue should be.

    Attributes:
        name: Name at the broker.
        dead_letter: Name of its dead-letter queue; None takes ``dead_letter_queue``.
        dead_letter_via: The broker's own way to dead letters, by its name, where the owner of a
            queue that we only adopt has made one: they then go that way as they are, without a
            note. Needs ``declare="never"`` and a broker that has such ways.
        lease: Seconds a claim lasts unless extended; None keeps the queue's own.
        retention: Seconds an unclaimed message is kept; None takes the broker's longest.
        broker_limit: The broker's own limit on receives, a constant backstop far above any
            worker's ``max_attempts``: the core enforces those, and a broker's limit counts
            lost connections too.
        ordered: Whether groups are kept in order.
        on_dead: ``hold`` where there is no dead-letter queue: what would go there stays.
        declare: ``create`` what is missing; only ``check``; or ``never`` touch a queue that
            belongs to somebody else.
    """

    name: str
    dead_letter: str | None = None
    dead_letter_via: str | None = None
    lease: float | None = None
    retention: float | None = None
    broker_limit: int = DEFAULT_BROKER_LIMIT
    ordered: bool = False
    on_dead: Literal["dead-letter", "hold"] = "dead-letter"
    declare: Literal["create", "check", "never"] = "create"

    @property
    def dead_letter_queue(self) -> str:
        """The name of the queue that dead letters go to."""
        return self.dead_letter or dead_letter_name(self.name)

    @property
    def asked(self) -> QueueSpec:
        """What ``declare`` shall compare.

        Somebody else's queue need not have our lease: each claim brings its own.
        """
        return replace(self, lease=None) if self.declare == "never" else self


def dead_letter_name(queue: str) -> str:
    """The default dead-letter queue of ``queue``: ``orders`` → ``orders-dead``.

    A ``.fifo`` ending stays an ending, since the broker that has it insists on it.
    """
    stem = queue.removesuffix(".fifo")
    return f"{stem}-dead{queue[len(stem) :]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One property of an existing queue that is not what was asked for.

    ``fix`` is a line that would mend it, where there is one.
    """

    queue: str
    property: str
    wanted: object
    found: object
    fix: str = ""

    def __str__(self) -> str:
        """For people: ``orders: lease is 30, wanted 60``."""
        return f"{self.queue}: {self.property} is {self.found!r}, wanted {self.wanted!r}"


class Certainty(enum.Enum):
    """How far a count can be trusted."""

    EXACT = "exact"
    ESTIMATE = "estimate"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Count:
    """A number of messages and how far it can be trusted; 0 where unknown."""

    value: int = 0
    certainty: Certainty = Certainty.EXACT


UNKNOWN_COUNT = Count(0, Certainty.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """A look at a queue.

    Attributes:
        ready: Claimable now.
        leased: Held by runners.
        delayed: Claimable later.
        dead: In its dead-letter queue.
        oldest_age: Seconds since the oldest ready message was sent; None where unknown or
            where nothing is ready.
        next_due: Seconds until the first delayed message may be claimed; None where unknown
            or where nothing is delayed.
    """

    ready: Count
    leased: Count = UNKNOWN_COUNT
    delayed: Count = UNKNOWN_COUNT
    dead: Count = UNKNOWN_COUNT
    oldest_age: float | None = None
    next_due: float | None = None


class Consumer(Protocol):
    """Claims from one queue and settles what it claimed."""

    @property
    def lease(self) -> float:
        """The effective length of a lease in seconds."""
        ...

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        """Take up to ``max_items`` messages, waiting up to ``wait`` seconds for the first.

        Returns as soon as there is one. Nothing there is an empty answer; an outage raises.
        """
        ...

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        """Delete the messages: they are never handed out again."""
        ...

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        """Make each lease end ``seconds`` from now.

        A lease that has ended is not revived: its slot holds ``LeaseLostError``. One that
        cannot become that long keeps what it had: its slot holds ``CannotExtendError``.
        """
        ...

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        """Return each message, counted as an attempt, claimable after its own delay.

        The core never asks for more than ``Capabilities.max_release_delay``.
        """
        ...

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        """Return each message as one that carries ``marks`` and has not been received yet."""
        ...

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        """Move each message to the dead-letter queue, its note in the headers.

        There its ``attempts`` is 0, so that one moved back by a broker's own console starts
        afresh. Copy first, delete second: a crash in between may leave two, never none.
        """
        ...

    async def quiesce(self) -> None:
        """Stop receiving, for good; settling still works.

        A claim that waits ends early. On return nothing more can arrive, and what had
        arrived but was not handed out has been put back.
        """
        ...

    async def aclose(self) -> None:
        """Free the consumer. What it still holds comes back when its lease ends."""
        ...


@runtime_checkable
class Particular(Protocol):
    """What a ``Consumer`` may be besides: one of a queue that is unlike its driver's others."""

    @property
    def capabilities(self) -> Capabilities:
        """What this queue can do."""
        ...


@runtime_checkable
class Watchful(Protocol):
    """What a ``Consumer`` may be besides: one that hears of a loss before anybody asks."""

    def tell_losses(self, tell: Callable[[Collection[object]], object], /) -> None:
        """Have ``tell`` called, on the driver's loop, with the handles of all that is lost.

        Among them may be some that nobody has claimed, but none that was settled.
        """
        ...


@runtime_checkable
class Driver(Protocol):
    """One connection to one broker. Belongs to the event loop that opened it."""

    @property
    def capabilities(self) -> Capabilities:
        """What this broker can do; final once ``open`` has returned."""
        ...

    async def open(self) -> None:
        """Connect.

        Raises:
            ConfigError, AuthenticationError, PermissionDeniedError, ProtocolError: for good.
            ConnectionLostError: it may work later.
        """
        ...

    async def aclose(self) -> None:
        """Disconnect, whatever the state; never raises ``DriverError``."""
        ...

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """Store each message, claimable after its own delay in seconds.

        Raises:
            QueueNotFoundError: a driver never creates a queue on the way.
        """
        ...

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        """Start receiving.

        Args:
            queue: Its name.
            lease: Seconds; None takes the queue's own.
            prefetch: How many messages a broker that pushes may send ahead of ``claim``.

        Raises:
            QueueNotFoundError: there is no such queue.
            UnsupportedError: the lease is above ``Capabilities.max_lease``.
        """
        ...

    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """Create the queue and its dead-letter queue unless they exist; compare if they do.

        Returns the differences found; with any, nothing was created. The lease is none of
        them: it is only what a claim gets that names no lease, and creating sets it.

        Raises:
            QueueNotFoundError: ``check_only`` and the queue is missing.
            ConfigError: the broker does not take such a name.
        """
        ...

    async def inspect(self, queue: str, /) -> QueueStats:
        """Count.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...

    async def purge(self, queue: str, /) -> None:
        """Delete every claimable and delayed message; leased ones may survive.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...

    async def queues(self) -> Sequence[str]:
        """The names of the queues that exist, sorted.

        Raises:
            UnsupportedError: ``Capabilities.lists_queues`` is false.
        """
        ...


def capabilities_of(consumer: Consumer, driver: Driver) -> Capabilities:
    """What the queue of ``consumer`` can do: its own word, else its driver's."""
    return consumer.capabilities if isinstance(consumer, Particular) else driver.capabilities

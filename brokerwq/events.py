"""What happened, as small frozen records, and the seam that telemetry and tests plug into.

The core reports here and nowhere else. Nothing is built while nobody listens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, runtime_checkable

from brokerwq.driver.protocol import Delivery, QueueStats

UNKNOWN_TYPE: Final = "unknown type"
"""The reason of a message that was put back because no worker here has its type."""

NOT_YET_CONNECTED: Final = "not connected yet"
"""How a runner's reason ends for a broker that nothing is known to be wrong with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesSent(Event):
    """``count`` messages were accepted by the broker, ``failed`` were not."""

    queue: str
    type: str
    count: int
    failed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesClaimed(Event):
    """A claim brought ``count`` messages."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(Event):
    """A handler was called."""

    queue: str
    type: str
    id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(Event):
    """A job has an outcome; its settle follows.

    Attributes:
        outcome: ``done``, ``failed``, ``timeout``, ``snoozed``, ``discarded``,
            ``dead-lettered``, ``lost``, ``cancelled``, ``put-back`` (never started),
            ``duplicate`` (done before, by its key; acked) or ``held`` (given up on, where
            there is no dead-letter queue).
        counted: Whether the attempt counts.
        seconds: Time in the handler; 0 where it was never called.
        error_type: Class name of the exception; empty without one.
        reason: More words, where there are any.
        error: The exception itself, for its traceback.
    """

    queue: str
    type: str
    id: str
    attempt: int
    outcome: str
    counted: bool
    seconds: float
    error_type: str = ""
    reason: str = ""
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimitOverrun(Event):
    """A handler came to its end ``seconds`` after its start, past its limit; it is done.

    A thread cannot be stopped, and a coroutine may swallow its cancellation: what it did it
    did, so its job counts as any other.
    """

    queue: str
    type: str
    id: str
    seconds: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesExtended(Event):
    """A heartbeat extended ``count`` leases."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """A lease ended before its message was settled; another runner may have it."""

    queue: str
    type: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered(Event):
    """A message was moved to the dead-letter queue.

    ``error`` says why where no exception does, which ``JobEnded`` has.
    """

    queue: str
    type: str
    id: str
    reason: str
    attempts: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleFailed(Event):
    """A settle (``operation``) did not go through; the message comes back by itself."""

    queue: str
    id: str
    operation: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashSuspectIsolated(Event):
    """A message that may have killed its last runner is run alone."""

    queue: str
    type: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUnreachable(Event):
    """The store of processed keys does not answer; claiming stops until it does."""

    error: str
    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReached(Event):
    """The store of processed keys answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerTrouble(Event):
    """A job was done, and its record is not what it should be.

    Attributes:
        problem: ``unmarked`` (acked although the store could not be told) or ``no-result``
            (marked, but its result could not be kept).
        error: Why.
    """

    queue: str
    type: str
    id: str
    problem: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnreachable(Event):
    """A broker call failed; the next try is in ``retry_in`` seconds."""

    queue: str
    operation: str
    error: str
    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReached(Event):
    """The broker answers again."""

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBlocked(Event):
    """A handler kept the event loop from running for ``seconds``; leases went on."""

    seconds: float
    running: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged(Event):
    """The runner's state: ``starting``, ``ready``, ``degraded``, ``draining``, ``stopped``."""

    state: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAdopted(Event):
    """A queue that belongs to somebody else is worked on as it is.

    Attributes:
        caveats: What is not guaranteed there, a sentence each.
    """

    queue: str
    caveats: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInspected(Event):
    """A look at a queue that the core took anyway."""

    queue: str
    stats: QueueStats


Listener: TypeAlias = Callable[[Event], object]
"""Called on the loop or on the I/O thread; must be quick and must not raise."""


@runtime_checkable
class Instrumentation(Protocol):
    """Spans around what the core does; see ``brokerwq.telemetry`` for the one that ships.

    Each context manager is entered and left once, in one task. It must be quick, must not
    raise on its own account, and must not swallow what the block raises:
    ``brokerwq.telemetry.fan_out`` sees to that for one that may not keep to it.
    """

    def emit(self, event: Event, /) -> None:
        """Note an event. Called on the loop or on the I/O thread, inside a block or not."""
        ...

    def sending(
        self, queue: str, type_: str, count: int, message_id: str = "", /
    ) -> AbstractContextManager[Mapping[str, str]]:
        """Surround a send; yields the headers that carry the trace context.

        They belong into each of the ``count`` messages, below the sender's own headers: what
        a caller set himself stays. A message that is sent on (a retry, a dead letter, a
        redrive, a move to another broker) keeps the headers it has.

        Args:
            queue: Where it goes.
            type_: The messages' type; empty if they differ.
            count: How many.
            message_id: Id of the message if it is one; empty otherwise.
        """
        ...

    def processing(
        self,
        deliveries: Sequence[Delivery],
        type_: str,
        attempt: int,
        cause: Callable[[], str] = str,
        /,
    ) -> AbstractContextManager[None]:
        """Surround the handler, its context current inside; an exception marks the span.

        Args:
            deliveries: The message, or the messages of a batch.
            type_: The worker's name.
            attempt: Number of the attempt; of a batch the first message's.
            cause: Asked when the handler was cancelled: ``timeout``, ``lost`` or ``stop``;
                empty where it was not the runner that did it.
        """
        ...

    def settling(
        self, queue: str, operation: str, deliveries: Sequence[Delivery], /
    ) -> AbstractContextManager[None]:
        """Surround one batched settle: ``ack``, ``release``, ``put_back``, ``dead_letter``."""
        ...

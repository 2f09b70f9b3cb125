"""What the runtime knows of one worker: plain values and callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokerwq._runtime.guard import Guard
from brokerwq.backoff import RetryPolicy
from brokerwq.foreign import Reading
from brokerwq.message import Message

if TYPE_CHECKING:
    from brokerwq.middleware import Middleware


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foreign:
    """How a worker takes messages that carry no type.

    Attributes:
        codec: Compared: the workers of one queue must have equal ones.
        read: What a message says, a ``Reading``, if the codec does its part; raises anything
            for one that cannot be read.
        decode: The payload of what was read; raises ``EnvelopeError`` if it does not validate.
        key: The key of a payload; None where the message says it.
        names_types: A message may say which worker it is for.
        leaves_unknown: One for a worker that is not here is left to others.
    """

    codec: object
    read: Callable[[Message], object]
    decode: Callable[[Reading], object]
    key: Callable[[Any], str] | None = None
    names_types: bool = False
    leaves_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route:
    """One worker, resolved. Compared and hashed by identity.

    Attributes:
        queue: The queue it is bound to.
        name: The message type it runs.
        aliases: Older types it runs as well.
        foreign: How it takes the queue's messages that carry no type; None if it does not.
        decode: The payload of a message; raises ``EnvelopeError`` if it does not validate.
        call: ``call(job, payload)``, or ``call(jobs, payloads)`` for a batch. Returns an
            awaitable if ``is_async``; else it is run in a thread.
        is_async: Whether ``call`` must be awaited.
        lease: Seconds a claim lasts; None leaves it to the queue.
        timeout: Seconds one call may take; None has no limit.
        slots: Most jobs of this worker at once in one runner; None has no limit of its own.
        batch: Messages in one call; 0 for a worker that takes one.
        batch_wait: Seconds to wait for a full batch.
        retry: How often and when.
        middleware: Around ``call``, the first outermost; empty for a batch.
        guard: Keeps work from being done twice; None for none.
    """

    queue: str
    name: str
    decode: Callable[[Message], object]
    call: Callable[[Any, Any], Any]
    is_async: bool
    retry: RetryPolicy
    aliases: tuple[str, ...] = ()
    foreign: Foreign | None = None
    lease: float | None = None
    timeout: float | None = None
    slots: int | None = None
    batch: int = 0
    batch_wait: float = 0.0
    middleware: Sequence[Middleware] = ()
    guard: Guard | None = None

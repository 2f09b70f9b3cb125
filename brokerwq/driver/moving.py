"""What an adapter may offer for moving messages to it, or away from it; all of it optional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from brokerwq.driver.protocol import Results
from brokerwq.message import Message


@runtime_checkable
class Foresight(Protocol):
    """A driver that can tell what it would refuse, without sending anything."""

    async def foresee(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """What ``send`` would refuse for good: one answer each, None for what it would take.

        The queue need not exist yet.

        Raises:
            DriverError: the broker cannot be asked.
        """
        ...


@runtime_checkable
class Identified(Protocol):
    """A driver that can tell a queue from all others, whatever the URL was that led to it."""

    async def identity(self, queue: str, /) -> str:
        """Text that is the same for two drivers if, and only if, they mean the same queue.

        Empty where that cannot be told, because there is no such queue for instance.

        Raises:
            DriverError: the broker cannot be asked.
        """
        ...


@runtime_checkable
class Hastening(Protocol):
    """A driver that can bring out what is delayed for long, so that it need not be waited for."""

    async def hasten(self, queue: str, beyond: float, /) -> int:
        """Make what is due later than ``beyond`` seconds claimable now; how many that were.

        Each then says itself when it may be run, in ``Message.not_before``: a runner that meets
        it delays it again, and a mover takes its time along.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...


@runtime_checkable
class NativeRaw(Protocol):
    """``Message.raw`` of a foreign message that knows what of it is this broker's alone."""

    def untranslatable(self) -> Sequence[str]:
        """Names of the properties and headers that no other kind of broker could be given."""
        ...

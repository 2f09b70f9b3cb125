"""What an adapter may offer for moving messages to it, or away from it; all of it optional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from brokerwq.driver.capabilities import Capabilities
from brokerwq.driver.protocol import Driver, Results
from brokerwq.errors import PermissionDeniedError
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
class Varied(Protocol):
    """A driver whose queues cannot all do the same; see ``Particular`` for their consumers."""

    def abilities(self, queue: str, /) -> Capabilities:
        """What the queue of that name can do, whether it exists yet or not."""
        ...


@runtime_checkable
class Located(Protocol):
    """A driver that can tell its broker from all others, for a note that outlives the program."""

    async def place(self, queue: str, /) -> str:
        """Text like a URL: the same whatever credentials, options or spelling lead there.

        Never the same for two brokers, nor for two parts of one (virtual hosts, accounts,
        regions, prefixes, files). Empty where that cannot be told while there is no ``queue``.

        Raises:
            DriverError: the broker cannot be asked.
        """
        ...


@runtime_checkable
class Rights(Protocol):
    """A driver that can find out what its credentials do not allow, by calls without effect."""

    async def forbidden(self, queue: str, /, *, takes: bool) -> PermissionDeniedError | None:
        """What is known to be missing; None if nothing is, or if it cannot be told.

        Args:
            queue: It need not exist yet.
            takes: For claiming from it, acking, and putting back uncounted; else for sending.

        Raises:
            DriverError: nobody could send, or put back, in the state that the broker is in.
        """
        ...


@runtime_checkable
class Readable(Protocol):
    """A driver that can show what is in a queue without claiming it, however much that is."""

    async def read(self, queue: str, after: str, most: int, /) -> Sequence[tuple[str, Message]]:
        """Up to ``most`` messages, delayed and leased ones included, each with its place.

        Args:
            queue: Its name.
            after: The place behind which to go on; empty for the start.
            most: 1 or more.

        Raises:
            QueueNotFoundError: there is no such queue.
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


def abilities_of(driver: Driver, queue: str) -> Capabilities:
    """What ``queue`` can do: its own capabilities, or those of all queues of its driver."""
    return driver.abilities(queue) if isinstance(driver, Varied) else driver.capabilities

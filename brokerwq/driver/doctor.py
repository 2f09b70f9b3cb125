"""What an adapter that can examine a broker's set-up offers to ``brokerwq doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from brokerwq.driver.protocol import Difference, QueueSpec
from brokerwq.errors import UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: What: a queue, a permission, the server.
        level: ``ok``; ``warning`` if it works with fewer guarantees; ``error`` if it does not.
        text: What is so.
        fix: A line that would change it, where there is one.
    """

    subject: str
    level: Literal["ok", "warning", "error"]
    text: str
    fix: str = ""


@runtime_checkable
class Adopter(Protocol):
    """A driver that has more to say of queues that belong to somebody else."""

    @property
    def has_dead_letter_ways(self) -> bool:
        """Whether ``QueueSpec.dead_letter_via`` means something here."""
        ...

    async def caveats(self, spec: QueueSpec, /) -> Sequence[str]:
        """What is not guaranteed on a queue with ``declare="never"``, a sentence each.

        Asked once, after ``declare``, which has looked at the queue.

        Raises:
            DriverError: the broker cannot be asked.
        """
        ...


@runtime_checkable
class DeadLetterMaker(Protocol):
    """A driver that can make the dead-letter queue of a queue that belongs to somebody else."""

    async def declare_dead_letter(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """Make the dead-letter queue of ``spec`` and nothing else.

        An existing one is compared and never changed; the queue itself need not be there.

        Raises:
            QueueNotFoundError: ``check_only`` and it is missing.
        """
        ...


def check_dead_letter_way(spec: QueueSpec, driver: object) -> None:
    """Make sure that ``driver`` understands ``spec.dead_letter_via``, if that is set.

    Raises:
        UnsupportedError: it does not.
    """
    if spec.dead_letter_via is None:
        return
    if not isinstance(driver, Adopter) or not driver.has_dead_letter_ways:
        msg = f"dead_letter_via of queue {spec.name!r}: this broker has no such ways"
        raise UnsupportedError(msg)


@runtime_checkable
class Doctor(Protocol):
    """A driver that can say what of a queue's set-up is missing or weak."""

    async def examine(self, spec: QueueSpec, /) -> Sequence[Finding]:
        """Look at the queue, its neighbours and our permissions; changes nothing.

        Raises:
            DriverError: the broker cannot be asked.
        """
        ...

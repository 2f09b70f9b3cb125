"""The seam for what keeps work from being done twice: plain values in, plain values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from brokerwq.job import Child, Job
    from brokerwq.outcomes import Outcome

SkipKind: TypeAlias = Literal["duplicate", "later", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """What becomes of a message instead of what its handler did, or would have done.

    Attributes:
        kind: ``duplicate``: acked, it was done before. ``later``: put back, not counted.
            ``dead``: dead-lettered.
        delay: For ``later``, in seconds.
        reason: For ``later`` and ``dead``: a word.
        text: More words for a dead letter.
    """

    kind: SkipKind
    delay: float = 0.0
    reason: str = ""
    text: str = ""


class Admission(Protocol):
    """The right to run a handler for one message, until it is finished or abandoned.

    One of ``finish`` and ``abandon`` is called, and is never cancelled; ``abandon`` also after a
    ``finish`` of which the attempt failed, and both anew after an ``again`` that was granted.
    """

    @property
    def takes_children(self) -> bool:
        """Whether ``finish`` keeps what the job enqueued; else it is sent before."""
        ...

    @property
    def needs_extending(self) -> bool:
        """Whether ``extend`` is to be called with every heartbeat."""
        ...

    async def extend(self, seconds: float, /) -> bool:
        """Keep the right for ``seconds`` from now; False if it is another one's by now.

        Called on the I/O loop.
        """
        ...

    async def finish(self, answer: object, children: Sequence[Child], /) -> Skip | None:
        """The handler has returned ``answer``: make it last. None if the message is done.

        Raises:
            Outcome: what the attempt shall count as instead.
            Exception: the attempt has failed, of this.
        """
        ...

    async def again(self, error: BaseException, /) -> bool:
        """The handler, or ``finish``, has failed of ``error``: call the handler once more?

        Within the same attempt, after all that it has done was taken back. There is a bound.

        Raises:
            StoreUnavailableError: as ``abandon`` says.
        """
        ...

    async def abandon(self, outcome: Outcome, /, *, is_last: bool) -> Skip | None:
        """The handler has not succeeded. None if ``outcome`` is what it counts as.

        Args:
            outcome: What it asked for.
            is_last: The message is given up on.

        Raises:
            StoreUnavailableError: it cannot be told what is to become of the message.
        """
        ...


class Guard(Protocol):
    """Decides for one worker whether a message's work is still to be done."""

    @property
    def longest_wait(self) -> float:
        """Longest ``Skip.delay`` in seconds, about."""
        ...

    async def check(self) -> None:
        """Make sure that jobs can be admitted.

        Raises:
            StoreUnavailableError: not now; ask again.
            BrokerwqError: not until somebody has mended it.
        """
        ...

    async def aclose(self) -> None:
        """Free what the calling event loop has opened; called on both loops."""
        ...

    async def admit(self, job: Job, payload: object, lease: float, /) -> Admission | Skip:
        """The right to run ``job``, or what becomes of its message instead.

        Args:
            job: The job; its key, fence and transaction are set if it is admitted.
            payload: What the handler will be given.
            lease: Seconds for which the right must hold without being extended.

        Raises:
            StoreUnavailableError: it cannot be told now.
        """
        ...

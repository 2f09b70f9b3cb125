"""What a message says that a target could not, whatever the size of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brokerwq.driver.capabilities import Capabilities
from brokerwq.driver.moving import NativeRaw
from brokerwq.driver.protocol import Delivery
from brokerwq.errors import DriverError, MessageRefusedError, UnsupportedError
from brokerwq.migrate.cargo import Cargo, digest_of
from brokerwq.migrate.entry import Moved


class Fitting:
    """Looks at one message after another on their way to one queue.

    Args:
        target: What that queue can do.
        keeps_raw: The target repeats native properties, being of the source's kind.
        sent: What was sent there before, among other things under the ids to come.
    """

    def __init__(
        self, target: Capabilities, *, keeps_raw: bool, sent: Iterable[Moved] = ()
    ) -> None:
        self._delays = target.max_send_delay > 0
        self._drops_repeats = target.ordered_groups
        self._keeps_raw = keeps_raw
        self._sent = {moved.id: moved.digest for moved in sent}

    def accepted(self, cargo: Cargo) -> None:
        """``cargo`` goes there: what comes later under its id must say the same."""
        self._sent[cargo.id] = digest_of(cargo.message)

    def obstacle(self, delivery: Delivery, cargo: Cargo) -> DriverError | None:
        """Why ``delivery`` cannot be sent as ``cargo``; None if it can."""
        return (
            misfit(delivery, keeps_raw=self._keeps_raw)
            or self._undelayable(cargo)
            or self._namesake(cargo)
        )

    def _undelayable(self, cargo: Cargo) -> DriverError | None:
        if not cargo.delay or self._delays:
            return None
        return UnsupportedError("it is delayed, and the target delays no message; it goes when due")

    def _namesake(self, cargo: Cargo) -> DriverError | None:
        """A queue that keeps order takes a second message of one id for a repeated send.

        Other programs may mean two messages by one id, which then differ.
        """
        if not self._drops_repeats:
            return None
        digest = digest_of(cargo.message)
        if self._sent.get(cargo.id, digest) == digest:
            return None
        return MessageRefusedError(
            "another message of its id was sent to the target, which would drop this one"
        )


def misfit(delivery: Delivery, *, keeps_raw: bool) -> DriverError | None:
    """Why no copy could say all that the message says; None if one could."""
    if delivery.defect:
        return MessageRefusedError(f"it cannot be read: {delivery.defect:.200}")
    raw = delivery.message.raw
    if not raw or keeps_raw:
        return None
    if not isinstance(raw, NativeRaw):
        return MessageRefusedError("a message of another program, which only its broker can carry")
    lost = raw.untranslatable()
    if not lost:
        return None
    return MessageRefusedError(f"no other broker can carry its {_listed(lost)}")


def _listed(names: Sequence[str]) -> str:
    few = ", ".join(f"{name!r:.60}" for name in names[:5])
    return few if len(names) <= 5 else f"{few} and {len(names) - 5} more"  # noqa: PLR2004

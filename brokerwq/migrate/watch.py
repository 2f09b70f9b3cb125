"""How both sides stand, and since when the old side is empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from brokerwq.clock import Clock
from brokerwq.driver.protocol import Certainty, QueueStats
from brokerwq.errors import QueueNotFoundError
from brokerwq.message import Message
from brokerwq.migrate.cargo import digest_of, name_of
from brokerwq.migrate.entry import Moved, QueueCounts
from brokerwq.migrate.ledger import Ledger
from brokerwq.migrate.looking import are_newer, know, look_through
from brokerwq.migrate.pair import Direction, Pair
from brokerwq.migrate.side import Side

_CLAIM = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SideState:
    """One queue on both sides.

    Attributes:
        source: Its name at the side that is to become empty.
        target: Its name at the other.
        is_dead: It holds dead letters.
        old: Counts at the side that is to become empty; None where there is no such queue.
        new: Counts at the other side.
        counts: What the ledger says; misfits that are not there any more are left out where
            their number matters.
        empty_for: Seconds since a look first found nothing but misfits there, with no look in
            between that found more; None if there is something.
        held_by_others: Whether others may hold messages there: the broker does not say.
    """

    source: str
    target: str
    is_dead: bool
    old: QueueStats | None
    new: QueueStats | None
    counts: QueueCounts
    empty_for: float | None
    held_by_others: bool

    def is_empty(self, settle: float) -> bool:
        """Whether the old side is known to be empty, and has stayed so for ``settle`` seconds."""
        return self.empty_for is not None and self.empty_for >= settle and not self.held_by_others

    def objections(self, settle: float, *, leave_refused: bool, assume_idle: bool) -> list[str]:
        """What speaks against finishing the migration."""
        found: list[str] = []
        if self.empty_for is None:
            found.append(f"{self.source} is not empty at the source")
        elif self.empty_for < settle:
            found.append(
                f"{self.source} is known to be empty for {self.empty_for:.0f} s, "
                f"not yet for {settle:g} s: look again later"
            )
        if self.held_by_others and not assume_idle:
            found.append(
                f"{self.source} has consumers at the source that may hold messages: "
                "stop the workers there first"
            )
        if self.counts.refused and not leave_refused:
            found.append(f"{self.source} keeps {self.counts.refused:,} messages that do not fit")
        return found


async def look_at(
    source: Side,
    target: Side,
    pairs: Sequence[Pair],
    ledger: Ledger,
    direction: Direction,
    *,
    clock: Clock,
) -> list[SideState]:
    """Count both sides, and note in the ledger whether the old one is empty.

    What may be misfits only is looked through: others may have finished those, and a message that
    came later must not pass for one of them.

    Raises:
        DriverError: one of the sides cannot be asked.
    """
    counts = await ledger.counts(direction)
    states: list[SideState] = []
    for pair in pairs:
        await know(source, pair)
        await know(target, pair, at_target=True)
        old = await _stats(source, pair.source)
        key = pair.key(direction)
        known = counts.get(key, QueueCounts())
        left = 0 if old is None else old.ready.value + old.leased.value + old.delayed.value
        is_alone = True
        if old is None or not left:
            known = replace(known, refused=0)
        elif left <= known.refused:
            misfits = await ledger.misfits(direction, key)
            kept, is_alone = await _kept(source, pair, old, misfits, clock)
            known = replace(known, refused=kept)
        is_empty = is_alone and left <= known.refused
        states.append(
            SideState(
                source=pair.source,
                target=pair.target,
                is_dead=pair.is_dead,
                old=old,
                new=await _stats(target, pair.target),
                counts=known,
                empty_for=await ledger.looked(direction, key, empty=is_empty),
                # A dead-letter queue has no workers that could hold its messages unseen.
                held_by_others=old is not None
                and not pair.is_dead
                and old.leased.certainty is Certainty.UNKNOWN,
            )
        )
    return states


async def _kept(
    side: Side, pair: Pair, stats: QueueStats, misfits: Mapping[Moved, bool], clock: Clock
) -> tuple[int, bool]:
    """How many of ``misfits`` are still at the old side, and whether nothing else was met there.

    Those that are out of the way cannot be seen.
    """
    seen: set[Moved] = set()
    is_complete = True
    if stats.ready.value:
        started = clock.utcnow()
        async with look_through(side, pair, clock) as sweep:
            while claimed := await sweep.claim(min(_CLAIM, sweep.max_claim)):
                seen.update(_moved(delivery.message) for delivery in claimed)
                if are_newer([delivery.message for delivery in claimed], started):
                    break
            is_complete = sweep.is_complete
    away = sum(is_away for misfit, is_away in misfits.items() if misfit not in seen)
    # Where a delay is a long lease, what is out of the way counts as leased.
    kept = len(seen & misfits.keys()) + min(away, stats.delayed.value + stats.leased.value)
    return kept, is_complete and seen <= misfits.keys()


def _moved(message: Message) -> Moved:
    digest = digest_of(message)
    return Moved(name_of(message, digest), digest)


async def _stats(side: Side, queue: str) -> QueueStats | None:
    try:
        with side.named():
            return await side.driver.inspect(queue)
    except QueueNotFoundError:
        return None

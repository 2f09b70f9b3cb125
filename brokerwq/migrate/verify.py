"""The proof: every message that was met is at one of the two sides, by its id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from brokerwq.clock import Clock
from brokerwq.errors import QueueNotFoundError
from brokerwq.migrate.cargo import digest_of, name_of
from brokerwq.migrate.entry import Entry
from brokerwq.migrate.ledger import Ledger
from brokerwq.migrate.looking import are_newer, know, look_through
from brokerwq.migrate.pair import Pair
from brokerwq.migrate.side import Side

MAX_NAMED = 100
_CLAIM = 500


@dataclass(slots=True, kw_only=True)
class QueueProof:
    """One queue.

    Attributes:
        queue: Its name at the source.
        known: Messages in the ledger.
        at_target: Moved, and found there.
        at_source: Moved back, or never moved, and found there.
        refused: Misfits that were found at the source, as they should be.
        at_both: Found on both sides: a mover died in between, and the next one deletes the
            source's copy; or a second copy of that id.
        hidden: Moved, and not to be found because it is delayed or held by a worker there, or
            because one look cannot hold so many: at most so many, by the counts of the target.
        run: Moved, and not there any more although nothing hides them: they have been run, or
            they are lost. Which of both only the workers' records can tell.
        altered: Found, with another content than was sent: their ids.
        missing: The ids of those that ``run`` counts, the first hundred.
        unknown: Found at the source, and not yet in the ledger.
        is_complete: Both queues were seen to their ends.
    """

    queue: str
    known: int = 0
    at_target: int = 0
    at_source: int = 0
    refused: int = 0
    at_both: int = 0
    hidden: int = 0
    run: int = 0
    altered: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    unknown: int = 0
    is_complete: bool = True


@dataclass(slots=True, kw_only=True)
class Verification:
    """What a look at both sides proves.

    Attributes:
        queues: Queue by queue.
        workers_run: Workers take messages at the target, so that what is gone has been run.
    """

    queues: list[QueueProof] = field(default_factory=list[QueueProof])
    workers_run: bool = False

    @property
    def missing(self) -> int:
        """Messages of which nothing is known."""
        return 0 if self.workers_run else sum(queue.run for queue in self.queues)

    @property
    def adds_up(self) -> bool:
        """Source + target + refused = sent, by id, and nothing was changed on the way."""
        return not self.missing and not any(queue.altered for queue in self.queues)

    @property
    def is_complete(self) -> bool:
        """Whether all queues were seen to their ends."""
        return all(queue.is_complete for queue in self.queues)


async def verify(
    source: Side,
    target: Side,
    pairs: Sequence[Pair],
    ledger: Ledger,
    *,
    clock: Clock,
    workers_run: bool,
) -> Verification:
    """Look through both sides and compare them with the ledger.

    What is looked at is held for the time of the look, and put back uncounted.

    Raises:
        DriverError: one of the sides cannot be asked.
    """
    found = Verification(workers_run=workers_run)
    for pair in pairs:
        proof = QueueProof(queue=pair.source)
        entries = {entry.id: entry for entry in await ledger.entries(pair.source)}
        old, old_whole = await _contents(source, pair, clock, at_target=False)
        new, new_whole = await _contents(target, pair, clock, at_target=True)
        proof.is_complete = old_whole and new_whole
        _compare(proof, entries, old, new)
        hidden = 0
        if proof.run:
            hidden = await _hidden(target, pair, seen=None if new_whole else len(new))
        proof.hidden = min(hidden, proof.run)
        proof.run -= proof.hidden
        if not proof.run:
            proof.missing.clear()
        found.queues.append(proof)
    return found


def _compare(
    proof: QueueProof,
    entries: dict[str, Entry],
    old: dict[str, bytes],
    new: dict[str, bytes],
) -> None:
    proof.known = len(entries)
    proof.unknown = sum(id_ not in entries for id_ in old)
    for id_, entry in entries.items():
        is_old, is_new = id_ in old, id_ in new
        proof.at_both += is_old and is_new
        if is_new:
            proof.at_target += 1
        elif is_old and entry.refusal:
            proof.refused += 1
        elif is_old:
            proof.at_source += 1
        elif not entry.refusal or entry.done + entry.pending:
            proof.run += 1
            if len(proof.missing) < MAX_NAMED:
                proof.missing.append(id_)
        for contents in (old, new):
            if contents.get(id_, entry.digest) != entry.digest and len(proof.altered) < MAX_NAMED:
                proof.altered.append(id_)


async def _contents(
    side: Side, pair: Pair, clock: Clock, *, at_target: bool
) -> tuple[dict[str, bytes], bool]:
    """Ids and digests of what can be claimed, and whether that was all."""
    contents: dict[str, bytes] = {}
    started = clock.utcnow()
    try:
        async with look_through(side, pair, clock, at_target=at_target) as sweep:
            while claimed := await sweep.claim(min(_CLAIM, sweep.max_claim)):
                for delivery in claimed:
                    digest = digest_of(delivery.message)
                    contents[name_of(delivery.message, digest)] = digest
                if are_newer(claimed, started):
                    break
            return contents, sweep.is_complete
    except QueueNotFoundError:
        return contents, True


async def _hidden(side: Side, pair: Pair, *, seen: int | None) -> int:
    """How many messages of the target were not seen, of which ``seen`` were if not all."""
    await know(side, pair, at_target=True)
    try:
        with side.named():
            stats = await side.driver.inspect(pair.target)
    except QueueNotFoundError:
        return 0
    unseen = 0 if seen is None else max(0, stats.ready.value - seen)
    return unseen + stats.leased.value + stats.delayed.value

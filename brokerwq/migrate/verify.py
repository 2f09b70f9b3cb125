"""The proof: every message that was met is at one of the two sides, by its id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from brokerwq.clock import Clock
from brokerwq.driver.moving import Readable
from brokerwq.errors import QueueNotFoundError
from brokerwq.message import Message
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
        old = await _contents(source, pair, clock, at_target=False)
        new = await _contents(target, pair, clock, at_target=True)
        proof.is_complete = old.is_complete and new.is_complete
        _compare(proof, entries, old.digests, new.digests)
        hidden = await _hidden(target, pair, new) if proof.run and new.may_hide else 0
        proof.hidden = min(hidden, proof.run)
        proof.run -= proof.hidden
        if not proof.run:
            proof.missing.clear()
        found.queues.append(proof)
    return found


def _compare(
    proof: QueueProof,
    entries: dict[str, Entry],
    old: Mapping[str, set[bytes]],
    new: Mapping[str, set[bytes]],
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
        # Two messages may have one id: the ledger knows the last of them.
        found = old.get(id_, set()) | new.get(id_, set())
        if found and entry.digest not in found and len(proof.altered) < MAX_NAMED:
            proof.altered.append(id_)


@dataclass(slots=True)
class _Contents:
    """What was found in a queue.

    Attributes:
        digests: By id.
        count: How many messages.
        is_complete: That was all.
        may_hide: Delayed and leased messages were not to be seen.
    """

    digests: dict[str, set[bytes]] = field(default_factory=dict[str, "set[bytes]"])
    count: int = 0
    is_complete: bool = True
    may_hide: bool = True

    def add(self, message: Message) -> None:
        digest = digest_of(message)
        self.digests.setdefault(name_of(message, digest), set()).add(digest)
        self.count += 1


async def _contents(side: Side, pair: Pair, clock: Clock, *, at_target: bool) -> _Contents:
    found = _Contents()
    started = clock.utcnow()
    with suppress(QueueNotFoundError):
        if isinstance(side.driver, Readable):
            found.may_hide = False
            with side.named():
                queue = pair.target if at_target else pair.source
                await _read(side.driver, queue, found, started)
            return found
        async with look_through(side, pair, clock, at_target=at_target) as sweep:
            while claimed := await sweep.claim(min(_CLAIM, sweep.max_claim)):
                for delivery in claimed:
                    found.add(delivery.message)
                if are_newer([delivery.message for delivery in claimed], started):
                    break
            found.is_complete = sweep.is_complete
    return found


async def _read(driver: Readable, queue: str, found: _Contents, started: datetime) -> None:
    place = ""
    while part := await driver.read(queue, place, _CLAIM):
        place = part[-1][0]
        for _, message in part:
            found.add(message)
        if are_newer([message for _, message in part], started):
            break


async def _hidden(side: Side, pair: Pair, found: _Contents) -> int:
    """How many messages of the target were not to be seen."""
    await know(side, pair, at_target=True)
    try:
        with side.named():
            stats = await side.driver.inspect(pair.target)
    except QueueNotFoundError:
        return 0
    unseen = 0 if found.is_complete else max(0, stats.ready.value - found.count)
    return unseen + stats.leased.value + stats.delayed.value

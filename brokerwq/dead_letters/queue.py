"""Dead letters: look at them, send them back, delete them; the same at every broker.

A dead-letter queue is an ordinary queue. Everything here is claims and settles on it, through
``Sweep``, so nothing is known about any broker and nothing is lost when it is killed half-way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.dead_letters.selection import EVERYTHING, Letter, Selection
from brokerwq.dead_letters.sweep import DEFAULT_LEASE, DEFAULT_MAX_HELD, Sweep
from brokerwq.driver import Delivery, Driver, QueueSpec, Results, dead_letter_name
from brokerwq.durations import positive_seconds
from brokerwq.errors import (
    ConfigError,
    DriverError,
    MessageRefusedError,
    MessageTooLargeError,
    QueueNotFoundError,
)
from brokerwq.message import Message

_MAX_FAILURES = 100


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Dead letters that are alike."""

    reason: str
    type: str
    error_type: str
    digest: str


@dataclass(slots=True, kw_only=True)
class Report:
    """What a pass over a dead-letter queue did.

    Attributes:
        seen: Messages looked at.
        matched: Those that the selection meant.
        done: Those that were sent back, or deleted, and are gone from the dead-letter queue.
        failed: Those that were not; they are where they were.
        failures: Message ids and what went wrong, the first hundred.
        is_complete: False if the pass ended before the end of the queue.
    """

    seen: int = 0
    matched: int = 0
    done: int = 0
    failed: int = 0
    failures: list[tuple[str, DriverError]] = field(default_factory=list[tuple[str, DriverError]])
    is_complete: bool = True

    def fail(self, message: Message, error: DriverError) -> None:
        """Count one that failed."""
        self.failed += 1
        if len(self.failures) < _MAX_FAILURES:
            self.failures.append((message.id, error))


Progress = Callable[[Report], object]


def _ignore(_: Report) -> None:
    pass


class DeadLetters:
    """The dead letters of one queue.

    Looking at them claims them for a moment and puts them back uncounted: a runner that
    consumes the dead-letter queue meanwhile, or a second look at the same time, misses some.
    """

    def __init__(
        self,
        driver: Driver,
        queue: str,
        *,
        dead_letter_queue: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        lease: float = DEFAULT_LEASE,
        max_held: int = DEFAULT_MAX_HELD,
        seen: Callable[[Delivery], Delivery] | None = None,
    ) -> None:
        """Nothing is claimed yet.

        Args:
            driver: An open driver.
            queue: The queue that the messages were taken from.
            dead_letter_queue: Where they are; None takes ``dead_letter_name(queue)``.
            clock: For ages and the pace of a redrive.
            lease: Seconds for which a pass that is killed keeps what it had claimed.
            max_held: Most messages that one pass leaves in place; then it ends incomplete.
            seen: Reads id and type of another program's message that has no note.
        """
        self.queue = queue
        self.name = dead_letter_queue or dead_letter_name(queue)
        self._driver = driver
        self._clock = clock
        self._lease = lease
        self._max_held = max_held
        self._seen = seen

    async def each(
        self,
        visit: Callable[[Letter], object],
        selection: Selection = EVERYTHING,
        *,
        limit: int | None = None,
    ) -> Report:
        """Call ``visit`` with each dead letter that is meant, the oldest first where kept so.

        Args:
            visit: Must not wait; what it raises ends the pass and is raised.
            selection: Which are meant.
            limit: Stop after so many; the report then says incomplete.

        Raises:
            QueueNotFoundError: there is no such dead-letter queue.
        """
        report = Report()
        async with self._sweep(selection, limit) as sweep:
            while claimed := await sweep.claim(_room(limit, report, sweep.max_claim)):
                for letter, _ in self._meant(claimed, selection, limit, report):
                    visit(letter)
            report.is_complete = sweep.is_complete and not sweep.keeps_back
        return report

    async def find(
        self, selection: Selection = EVERYTHING, *, limit: int | None = None
    ) -> tuple[list[Letter], Report]:
        """The dead letters that are meant; arguments and errors as ``each``."""
        letters: list[Letter] = []
        return letters, await self.each(letters.append, selection, limit=limit)

    async def groups(
        self, selection: Selection = EVERYTHING
    ) -> tuple[list[tuple[Group, int]], Report]:
        """How many there are of each kind, the largest group first; errors as ``each``."""
        counts: Counter[Group] = Counter()

        def count(letter: Letter) -> None:
            note = letter.note
            counts[Group(note.reason, letter.type, note.error_type, note.digest)] += 1

        report = await self.each(count, selection)
        return sorted(counts.items(), key=lambda item: (-item[1], item[0])), report

    async def redrive(
        self,
        selection: Selection = EVERYTHING,
        *,
        to: str | None = None,
        limit: int | None = None,
        rate: float | None = None,
        on_progress: Progress = _ignore,
    ) -> Report:
        """Send dead letters back to be run again, with fresh attempts.

        Each is copied, and deleted from the dead-letter queue once the broker has confirmed
        the copy: a crash in between leaves two of one id, never none. The copy keeps id, body,
        headers and the note, so that its history can be seen, and counts one more redrive.
        One that dies again while the pass goes on is not sent back twice.

        Args:
            selection: Which are meant.
            to: The queue they go to; None takes where each came from, by its note.
            limit: Send back so many at most.
            rate: Messages a second at most.
            on_progress: Called after every chunk.

        Raises:
            ConfigError: they would go where they are, or the rate is no positive number.
            QueueNotFoundError: there is no such dead-letter queue.
            DriverError: the broker failed; what was not done yet is where it was.
        """
        pace = _Pace(self._clock, rate)
        if to == self.name:
            msg = f"{to} is the dead-letter queue itself; name another queue to redrive to"
            raise ConfigError(msg)
        most = self._driver.capabilities.max_send
        chunk = most if rate is None else max(1, min(most, int(rate)))
        sent_back: set[int] = set()
        report = Report()
        async with self._sweep(selection, limit) as sweep:
            while claimed := await sweep.claim(_room(limit, report, chunk)):
                known = [d for d in claimed if _identity(d.message) not in sent_back]
                meant = [
                    (_fresh(letter.message), delivery)
                    for letter, delivery in self._meant(known, selection, limit, report)
                ]
                sent_back.update(_identity(copy) for copy, _ in meant)
                await self._move(sweep, meant, to, report)
                on_progress(report)
                await pace.keep(report.done)
            report.is_complete = sweep.is_complete and not sweep.keeps_back
        return report

    async def delete(
        self,
        selection: Selection = EVERYTHING,
        *,
        limit: int | None = None,
        on_progress: Progress = _ignore,
    ) -> Report:
        """Delete dead letters for good; arguments and errors as ``redrive``."""
        report = Report()
        async with self._sweep(selection, limit) as sweep:
            while claimed := await sweep.claim(_room(limit, report, sweep.max_claim)):
                meant = [d for _, d in self._meant(claimed, selection, limit, report)]
                _count(report, meant, await sweep.ack(meant))
                on_progress(report)
            report.is_complete = sweep.is_complete and not sweep.keeps_back
        return report

    async def restore(
        self, messages: Iterable[Message], *, on_progress: Progress = _ignore
    ) -> Report:
        """Put ``messages``, once exported, into the dead-letter queue.

        Taken lazily; what ``messages`` raises ends it, with whole chunks sent before.

        Raises:
            QueueNotFoundError, DriverError: what was sent before is there already.
        """
        report = Report()
        source = iter(messages)
        while chunk := list(islice(source, self._driver.capabilities.max_send)):
            await self._store(chunk, report)
            on_progress(report)
        return report

    async def _store(self, chunk: Sequence[Message], report: Report) -> None:
        report.seen += len(chunk)
        report.matched += len(chunk)
        answers = await self._driver.send(self.name, chunk, [0.0] * len(chunk))
        for message, answer in zip(chunk, answers, strict=True):
            if answer is None:
                report.done += 1
            else:
                report.fail(message, answer)

    def _sweep(self, selection: Selection, limit: int | None) -> Sweep:
        # Without a choice to make a pass sees no more than its limit.
        bound = self._max_held
        if limit is not None and selection == EVERYTHING:
            bound = min(bound, limit)
        return Sweep(
            self._driver,
            self.name,
            clock=self._clock,
            lease=self._lease,
            max_held=bound,
            spec=QueueSpec(name=self.queue, dead_letter=self.name, declare="never", on_dead="hold"),
        )

    def _meant(
        self,
        claimed: Sequence[Delivery],
        selection: Selection,
        limit: int | None,
        report: Report,
    ) -> list[tuple[Letter, Delivery]]:
        now = self._clock.utcnow()
        report.seen += len(claimed)
        seen = self._seen
        letters = [(Letter.of(each, seen(each) if seen else None), each) for each in claimed]
        meant = [pair for pair in letters if selection.matches(pair[0], now)]
        if limit is not None:
            meant = meant[: limit - report.matched]
        report.matched += len(meant)
        return meant

    async def _move(
        self,
        sweep: Sweep,
        meant: Sequence[tuple[Message, Delivery]],
        to: str | None,
        report: Report,
    ) -> None:
        targets: dict[str, list[tuple[Message, Delivery]]] = {}
        for copy, delivery in meant:
            origin = copy.dead.queue if copy.dead else ""
            targets.setdefault(to or origin or self.queue, []).append((copy, delivery))
        for target, pairs in targets.items():
            copied: list[Delivery] = []
            answers = await self._send(target, [copy for copy, _ in pairs])
            for (copy, delivery), answer in zip(pairs, answers, strict=True):
                if answer is None:
                    copied.append(delivery)
                else:
                    report.fail(copy, answer)
            _count(report, copied, await sweep.ack(copied))

    async def _send(self, target: str, copies: Sequence[Message]) -> Results:
        if target == self.name:
            msg = f"its note says it came from {target}, the dead-letter queue itself; use `to`"
            return [MessageRefusedError(msg)] * len(copies)
        try:
            return await self._driver.send(target, copies, [0.0] * len(copies))
        except (QueueNotFoundError, MessageTooLargeError, MessageRefusedError) as exc:
            # A fault of these messages or their queue; the others can still go.
            return [exc] * len(copies)


class _Pace:
    """Keeps an average rate from the first message on."""

    def __init__(self, clock: Clock, rate: float | None) -> None:
        self._clock = clock
        self._seconds_each = 0.0 if rate is None else 1 / positive_seconds(rate, "rate")
        self._start = clock.now()

    async def keep(self, done: int) -> None:
        ahead = self._start + done * self._seconds_each - self._clock.now()
        if ahead > 0:
            await self._clock.sleep(ahead)


def _room(limit: int | None, report: Report, chunk: int) -> int:
    return chunk if limit is None else max(0, min(chunk, limit - report.matched))


def _count(report: Report, deliveries: Sequence[Delivery], answers: Results) -> None:
    for delivery, answer in zip(deliveries, answers, strict=True):
        if answer is None:
            report.done += 1
        else:
            report.fail(delivery.message, answer)


def _fresh(message: Message) -> Message:
    """``message`` as one that starts anew: no attempt spent, no suspicion, no time elapsed."""
    return replace(
        message,
        attempts=0,
        redrives=message.redrives + 1,
        suspect=False,
        not_before=None,
        unknown_since=None,
        snoozed=0.0,
    )


def _identity(message: Message) -> int:
    """Tells a message that was sent back from the same one before; ids may be missing."""
    return hash((message.id or blake2b(message.body).digest(), message.redrives))

"""Drives a broker and the model of one side by side, at random; needs the extra ``testing``.

::

    class MyMachine(BrokerMachine):
        def new_broker(self, clock):
            settings = adapter.parse_url("mine://")
            return lambda: adapter.build(settings, clock)

    TestMyBroker = MyMachine.TestCase

For brokers that keep time by the injected clock, return messages in one step, fence, and leave
leased messages alone in a purge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerwq.driver.protocol import (
    Consumer,
    Count,
    Delivery,
    Driver,
    Mark,
    QueueSpec,
    Results,
)
from brokerwq.errors import LeaseLostError
from brokerwq.message import DeadLetterNote, Message, new_message_id
from brokerwq.testing.clock import FakeClock
from brokerwq.testing.model import BrokerModel, ModelError, Moment

T = TypeVar("T")

WORK = QueueSpec(name="work")
DEAD = WORK.dead_letter_queue
QUEUES = (WORK.name, DEAD)

# The clock shows whole seconds and every lease and delay ends on a half one, so that no moment
# is the very end of anything: which side of it counts, brokers may choose.
LEASE = 10.5
_delays = st.sampled_from((0.0, 0.0, 0.0, 1.5, 5.5, 20.5, 3600.5))
_extensions = st.sampled_from((0.5, 0.5, 3.5, 30.5))
_steps = st.sampled_from((1, 1, 2, 4, 9, 11, 40))
_jumps = st.sampled_from((-7200, -3, 3, 7200))
_moments = st.none() | st.sampled_from(
    (datetime(2031, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC), datetime(1999, 1, 1, tzinfo=UTC))
)
_marks = st.builds(
    Mark,
    attempts=st.integers(0, 9),
    suspect=st.booleans(),
    unknown_since=_moments,
    not_before=_moments,
    snoozed=st.sampled_from((0.0, 0.125, 86_400.0)),
)
_picks = st.lists(st.integers(0, 2) | st.integers(0, 11), min_size=1, max_size=4)
_seats = st.sampled_from((0, 0, 1, 1, 2))  # the last one is at the dead-letter queue
_tears = st.sampled_from(("purge", "quiesce", "consumer", "consumer", "driver", "wall", "wall"))
_bodies = st.sampled_from((b"", b"\x00\xff", b"text", b"x" * 5000))
_batches = st.lists(st.tuples(_bodies, _delays), max_size=4)


@dataclass
class _Seat:
    """A consumer, which of the drivers made it, and what it claimed, settled or not."""

    consumer: Consumer
    driver: int
    queue: str
    is_quiesced: bool = False
    deliveries: list[Delivery] = field(default_factory=list[Delivery])


class BrokerMachine(RuleBasedStateMachine):
    """Two drivers, three consumers, one queue and its dead letters. Subclass it.

    What must hold: nothing acked comes back, nothing unsettled vanishes, no message has two
    live leases, no late settle does anything, every message is as it was sent and marked, and
    the counts agree after every step.

    Attributes:
        delays_follow_wall: Delays end by the wall clock of the machine, which jumps here.
    """

    delays_follow_wall: ClassVar[bool] = False

    def new_broker(self, clock: FakeClock) -> Callable[[], Driver]:
        """A new and empty broker; the answer makes drivers of it that are not yet open."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.Runner()
        self._clock = FakeClock()
        self._make = self.new_broker(self._clock)
        self._model = BrokerModel(delays_follow_wall=self.delays_follow_wall)
        self._drivers = [self._run(self._open()) for _ in range(2)]
        if self._run(self._drivers[0].declare(WORK)):
            msg = "a new broker must have no queue that differs"
            raise ModelError(msg)
        self._seats = [
            self._run(self._sit(driver, queue))
            for driver, queue in ((0, WORK.name), (1, WORK.name), (1, DEAD))
        ]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    async def _open(self) -> Driver:
        driver = self._make()
        await driver.open()
        return driver

    async def _sit(self, driver: int, queue: str) -> _Seat:
        consumer = await self._drivers[driver].consume(queue, lease=LEASE, prefetch=1)
        return _Seat(consumer, driver, queue)

    @property
    def _at(self) -> Moment:
        return Moment(self._clock.now(), self._clock.utcnow().timestamp())

    @initialize(count=st.integers(1, 8))
    def begin(self, count: int) -> None:
        """Fill the queue, so that there is something to do from the first step."""
        for _ in range(0, count, 4):
            self.send(0, [(b"begin", 0.0)] * min(count, 4))
        self.claim(0, count)

    @rule(driver=st.integers(0, 1), items=_batches)
    def send(self, driver: int, items: list[tuple[bytes, float]]) -> None:
        """Send a few messages."""
        messages = [
            Message(id=new_message_id(), body=body, headers={"n": str(nth)})
            for nth, (body, _) in enumerate(items)
        ]
        waits = [delay for _, delay in items]
        results = self._run(self._drivers[driver].send(WORK.name, messages, waits))
        _expect(list(results) == [None] * len(items), f"send answered {results!r}")
        for message, delay in zip(messages, waits, strict=True):
            self._model.send(WORK.name, message, delay, self._at)

    @rule(who=_seats, most=st.integers(1, 4))
    def claim(self, who: int, most: int) -> None:
        """Claim; a quiesced consumer gets nothing, any other all that there is."""
        seat = self._seats[who]
        could = len(self._model.claimable(seat.queue, self._at))
        got = list(self._run(seat.consumer.claim(most, 0.0)))
        wanted = 0 if seat.is_quiesced else min(most, could)
        _expect(len(got) == wanted, f"claim({most}) must bring {wanted}, not {len(got)}")
        self._model.claim(seat.queue, got, LEASE, self._at)
        seat.deliveries = (seat.deliveries + got)[-12:]

    def _has_claimed(self) -> bool:
        return any(seat.deliveries for seat in self._seats)

    def _at_work(self) -> bool:
        return any(seat.deliveries for seat in self._seats[:2])

    def _picked(
        self, who: int, picked: Iterable[int], *, seats: int = 3
    ) -> tuple[_Seat, list[Delivery]]:
        """Some deliveries of one of the first ``seats``; small numbers pick what is held."""
        claimed = [seat for seat in self._seats[:seats] if seat.deliveries]
        seat = claimed[who % len(claimed)]
        ranked = sorted(seat.deliveries, key=lambda it: not self._model.holds(it, self._at))
        places = dict.fromkeys(pick % len(ranked) for pick in picked)
        return seat, [ranked[place] for place in places]

    def _settled(self, held: Sequence[Delivery], results: Results) -> list[int]:
        """The places of the deliveries whose lease ran, which must be the ones that are done."""
        _expect(len(held) == len(results), f"{len(held)} items had {len(results)} answers")
        done: list[int] = []
        for nth, (delivery, result) in enumerate(zip(held, results, strict=True)):
            if self._model.holds(delivery, self._at):
                _expect(result is None, f"a settle in time answered {result!r}")
                done.append(nth)
            else:
                _expect(isinstance(result, LeaseLostError), f"a late settle answered {result!r}")
        return done

    @precondition(_has_claimed)
    @rule(who=_seats, picked=_picks)
    def ack(self, who: int, picked: list[int]) -> None:
        """Ack a batch in which some leases may have ended."""
        seat, held = self._picked(who, picked)
        for nth in self._settled(held, self._run(_results(seat.consumer.ack(held)))):
            self._model.ack(held[nth])

    @precondition(_has_claimed)
    @rule(who=_seats, picked=_picks, seconds=_extensions)
    def extend(self, who: int, picked: list[int], seconds: float) -> None:
        """Extend a batch in which some leases may have ended."""
        seat, held = self._picked(who, picked)
        for nth in self._settled(held, self._run(_results(seat.consumer.extend(held, seconds)))):
            self._model.extend(held[nth], seconds, self._at)

    @precondition(_has_claimed)
    @rule(who=_seats, picked=_picks, waits=st.lists(_delays, min_size=4, max_size=4))
    def release(self, who: int, picked: list[int], waits: list[float]) -> None:
        """Release a batch in which some leases may have ended, each with its own delay."""
        seat, held = self._picked(who, picked)
        results = self._run(_results(seat.consumer.release(held, waits[: len(held)])))
        for nth in self._settled(held, results):
            self._model.release(held[nth], waits[nth], self._at)

    @precondition(_has_claimed)
    @rule(
        who=_seats,
        picked=_picks,
        waits=st.lists(_delays, min_size=4, max_size=4),
        notes=st.lists(_marks, min_size=4, max_size=4),
    )
    def put_back(self, who: int, picked: list[int], waits: list[float], notes: list[Mark]) -> None:
        """Put a batch back in which some leases may have ended, each with its own mark."""
        seat, held = self._picked(who, picked)
        count = len(held)
        results = self._run(_results(seat.consumer.put_back(held, waits[:count], notes[:count])))
        for nth in self._settled(held, results):
            self._model.put_back(held[nth], waits[nth], notes[nth], self._at)

    @precondition(_at_work)
    @rule(who=_seats, picked=_picks, reason=st.sampled_from(("failed", "Ärger")))
    def dead_letter(self, who: int, picked: list[int], reason: str) -> None:
        """Dead-letter a batch in which some leases may have ended."""
        seat, held = self._picked(who, picked, seats=2)
        notes = [DeadLetterNote(reason=reason, attempts=nth) for nth in range(len(held))]
        results = self._run(_results(seat.consumer.dead_letter(held, notes)))
        for nth in self._settled(held, results):
            self._model.dead_letter(held[nth], notes[nth], DEAD, self._at)

    @rule(seconds=_steps)
    def advance(self, seconds: int) -> None:
        """Let time pass."""
        self._clock.advance(seconds)

    @rule(kind=_tears, who=_seats, jump=_jumps)
    def disturb(self, kind: str, who: int, jump: int) -> None:
        """Purge, quiesce or close a consumer, close a driver, or set the wall clock."""
        seat = self._seats[who]
        if kind == "purge":
            self._run(self._drivers[0].purge(seat.queue))
            self._model.purge(seat.queue, self._at)
        elif kind == "quiesce":
            self._run(seat.consumer.quiesce())
            seat.is_quiesced = True
        elif kind == "consumer":
            self._run(seat.consumer.aclose())
            self._seats[who] = self._run(self._sit(seat.driver, seat.queue))
        elif kind == "driver":
            self._reconnect(seat.driver)
        elif jump > 0 or not self._model.has_delays:
            # A delay that is over may begin again when the wall clock is set back, or may not.
            self._clock.jump_wall(jump)

    def _reconnect(self, driver: int) -> None:
        self._run(self._drivers[driver].aclose())
        self._drivers[driver] = self._run(self._open())
        for who, seat in enumerate(self._seats):
            if seat.driver == driver:
                self._seats[who] = self._run(self._sit(driver, seat.queue))

    @invariant()
    def counts_agree(self) -> None:
        """The counts are what the model has."""
        for queue in QUEUES:
            stats = self._run(self._drivers[1].inspect(queue))
            wanted = self._model.counts(queue, self._at)
            found = (stats.ready, stats.leased, stats.delayed)
            _expect(
                found == tuple(Count(value) for value in wanted),
                f"{queue}: the counts must be {wanted}, not {found}",
            )

    def teardown(self) -> None:
        """Wait for the end of every lease and delay, and expect each message that is left."""
        try:
            self._clock.advance(10**6)
            for driver, queue in enumerate(QUEUES):
                self._run(self._find_all(driver, queue))
        finally:
            for opened in self._drivers:
                self._run(opened.aclose())
            self._loop.close()

    async def _find_all(self, driver: int, queue: str) -> None:
        consumer = (await self._sit(driver, queue)).consumer
        left = self._model.claimable(queue, self._at)
        while got := await consumer.claim(100, 0.0):
            self._model.claim(queue, got, LEASE, self._at)
            left -= {delivery.message.id for delivery in got}
        _expect(not left, f"{len(left)} messages of {queue} have vanished")


async def _results(call: Any) -> Results:
    results: Results = await call
    return results


def _expect(fact: object, words: str) -> None:
    if not fact:
        raise ModelError(words)

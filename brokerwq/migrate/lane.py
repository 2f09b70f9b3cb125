"""Moving one queue: claim, send, note in the ledger, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from brokerwq._runtime.leases import Held
from brokerwq._runtime.pauses import Pauses
from brokerwq.driver.capabilities import Lease, UncountedReturn
from brokerwq.driver.moving import abilities_of
from brokerwq.driver.protocol import Delivery, Mark
from brokerwq.errors import (
    BrokerwqError,
    DriverError,
    PermissionDeniedError,
    QueueNotFoundError,
)
from brokerwq.migrate.cargo import REFUSALS, Cargo, cargo_of, digest_of, name_of, unmoved
from brokerwq.migrate.entry import Moved
from brokerwq.migrate.fitting import Fitting
from brokerwq.migrate.holding import Holding
from brokerwq.migrate.line import LaneReport, Line
from brokerwq.migrate.pair import Pair
from brokerwq.migrate.rest import Rest

MAX_MISFITS_TOLD = 100

_BATCH = 400
_SMALL_CLAIMS = 10
_WAIT = 1.0
_SHORT_WAIT = 0.2
"""Seconds a claim waits, and what lies between two looks; short where neither costs anything."""
_LONGEST_PAUSE = 10.0
_SHORTEST_STAY = 15.0
_LONGEST_STAY = 300.0
"""Seconds that a misfit is out of the way; after the longer time no queue that keeps order takes a
message for a repeat any more (five minutes at SQS)."""
_FEW = 20
_CLEAN = 2
"""Claims without a message that was received before, after which killed movers held no more."""
_WORN = 2
"""Receives by movers that were killed, after which a message is put back as a new one."""
_COUNTED_STAY = 3600.0
"""Seconds before a misfit is met again, where each meeting costs it a receive."""


class Lane:
    """Moves the messages of one pair until it is told to stop.

    Attributes:
        report: Kept up to date.
        rest: What is left at the source.
        forgiven: Receives that may have been those of movers which died.
    """

    def __init__(self, line: Line, pair: Pair) -> None:
        self.pair = pair
        self.report = LaneReport(queue=pair.source)
        self.forgiven = 0
        self._line = line
        self._key = pair.key(line.direction)
        capabilities = abilities_of(line.source.driver, pair.source)
        is_near = capabilities.exact_stats and capabilities.lease is Lease.TIMED
        self._wait = min(_SHORT_WAIT if is_near else _WAIT, capabilities.max_wait)
        self._most = min(_BATCH, capabilities.max_claim)
        is_small = self._most <= _SMALL_CLAIMS
        self._count = 1 if capabilities.ordered_groups else (8 if is_small else 3)
        self._counts_returns = capabilities.uncounted_return is UncountedReturn.COUNTED
        self._holdings: list[Holding] = []
        self._notes: set[asyncio.Future[None]] = set()
        self._refused: set[str] = set()
        self._renewed: set[str] = set()
        self._at_work = 0
        self.rest = Rest(line, pair, self.report, self._wait)
        self._goal = abilities_of(line.target.driver, pair.target)
        # One after another where the order is kept: a group must not overtake itself.
        self._in_order = self._goal.ordered_groups

    async def run(self) -> None:
        """Move until told to stop.

        Raises:
            DriverError: one of the sides refuses, or has not answered for all of the patience.
            StoreError: the ledger cannot be written.
        """
        try:
            if not await self._begin():
                return
            for _ in range(0 if self._in_order else self._count - 1):
                await self._open(self._most)
            answers = await asyncio.gather(
                *(self._keep_moving(holding) for holding in self._holdings), return_exceptions=True
            )
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
        finally:
            for holding in self._holdings:
                await holding.aclose()
            await asyncio.gather(*self._notes, return_exceptions=True)

    async def _begin(self) -> bool:
        """Move the first messages, few at a time; whether there is such a queue.

        What is not allowed comes out with one message. What killed movers held is met first as a
        rule: each time it costs a receive, which workers at the source take for an attempt.
        """
        try:
            holding = await self._open(min(_FEW, self._most) if self.forgiven else self._most)
        except QueueNotFoundError:
            if not self.pair.is_dead:
                raise
            self.rest.is_missing()
            return False
        await self._prove(holding)
        # No more than those movers can have held.
        left = 0 if self.pair.is_dead else self.forgiven * self._count * self._most
        clean = 0
        while left > 0 and clean < _CLEAN and not self._line.stopping.is_set():
            helds = await self._move_some(holding, _FEW)
            left -= len(helds) or left
            clean = 0 if any(held.delivery.receives > 1 for held in helds) else clean + 1
        return True

    async def _open(self, prefetch: int) -> Holding:
        line = self._line
        holding = Holding(
            line.source.driver,
            self.pair.source,
            prefetch=prefetch,
            lease=line.lease,
            clock=line.clock,
            mark_of=self._mark_of,
        )
        with line.source.named():
            await holding.open()
        self._holdings.append(holding)
        return holding

    async def _prove(self, holding: Holding) -> None:
        """Move one message alone: what is not allowed shall come out before many are touched."""
        line = self._line
        helds: Sequence[Held] = ()
        while not helds and (claimed := await self._claim(holding, 1)):
            helds = await self._unworn(holding, claimed)
        if helds:
            refusal = await self._move(holding, helds)
            if isinstance(refusal, PermissionDeniedError):
                id_ = helds[0].delivery.message.id
                msg = (
                    f"{line.source} does not allow to delete, so {id_} is on both sides: {refusal}"
                )
                raise PermissionDeniedError(msg) from refusal
            line.progressed()

    async def _keep_moving(self, holding: Holding) -> None:
        """Move until told to stop; an error tells all others to, whose batches end first."""
        try:
            await self._move_on(holding)
        except BrokerwqError:
            self._line.stopping.set()
            raise

    async def _move_on(self, holding: Holding) -> None:
        while not self._line.stopping.is_set():
            if not await self._move_some(holding, self._most):
                await self.rest.look(is_idle=self._is_idle)

    @property
    def _is_idle(self) -> bool:
        return not self._at_work and not any(one.count for one in self._holdings)

    async def _move_some(self, holding: Holding, most: int) -> list[Held]:
        """Claim up to ``most`` messages and move them; which they were."""
        line = self._line
        helds = await self._claim(holding, await line.pace.room(min(most, self._most)))
        if helds:
            self.rest.quiet_since = None
            await line.pace.spend(len(helds))
            await self._move(holding, await self._unworn(holding, helds))
            line.progressed()
        return helds

    async def _unworn(self, holding: Holding, helds: Sequence[Held]) -> Sequence[Held]:
        """Put back at once what several killed movers have held, as if none had: the rest.

        Whatever keeps the target from taking it, and this mover from ending, it must not come to
        the number of receives at which workers give it up.
        """
        if self.pair.is_dead or self._counts_returns or self.forgiven < _WORN:
            return helds
        # Each once: where that fails, it is counted instead, and comes again.
        worn = [
            held
            for held in helds
            if held.delivery.receives > _WORN and held.delivery.message.id not in self._renewed
        ]
        self._renewed.update(held.delivery.message.id for held in worn)
        if worn:
            await holding.put_back(worn, [0.0] * len(worn))
        return [held for held in helds if held not in worn]

    async def _claim(self, holding: Holding, most: int) -> list[Held]:
        clock = self._line.clock
        pauses, since = Pauses(_LONGEST_PAUSE), clock.now()
        while True:
            try:
                helds = await holding.claim(most, self._wait)
            except DriverError as error:
                if not error.retryable or clock.now() - since > self._line.patience:
                    self._line.source.name(error)
                    raise
                if self._line.stopping.is_set():
                    return []
                await clock.sleep(pauses.next())
            else:
                return helds

    # -- one batch ------------------------------------------------------------------------

    async def _move(self, holding: Holding, helds: Sequence[Held]) -> DriverError | None:
        self._at_work += 1
        try:
            return await self._move_each(holding, helds)
        finally:
            self._at_work -= 1

    async def _move_each(self, holding: Holding, helds: Sequence[Held]) -> DriverError | None:
        line, now = self._line, self._line.clock.utcnow()
        cargo = [
            cargo_of(
                held.delivery,
                now=now,
                is_dead=self.pair.is_dead,
                forgiven=self.forgiven,
                keeps_raw=line.keeps_raw,
            )
            for held in helds
        ]
        ids = [one.id for one in cargo]
        known = await line.ledger.pending(line.direction, self._key, ids, settled=self._in_order)
        fitting = Fitting(self._goal, keeps_raw=line.keeps_raw, sent=known)
        to_send: list[int] = []
        repeated: list[int] = []
        later: list[int] = []
        refusals: dict[int, DriverError] = {}
        for n, (held, one) in enumerate(zip(helds, cargo, strict=True)):
            moved = Moved(one.id, digest_of(one.message))
            error = fitting.obstacle(held.delivery, one)
            if known.get(moved, 0) > 0:
                known[moved] -= 1
                repeated.append(n)
            elif error is not None:
                refusals[n] = error
            elif self._in_order and any(cargo[other].id == one.id for other in to_send):
                later.append(n)  # when it is known whether the first was accepted
            elif not held.lost:
                to_send.append(n)
        sent, unsent, refused = await self._send(cargo, to_send)
        refusals.update(refused)
        refusal = await self._delete(holding, helds, cargo, [*repeated, *sent])
        self.report.repeated += len(repeated)
        await self._leave(holding, helds, cargo, refusals)
        if unsent := [*unsent, *later]:
            await holding.put_back([helds[n] for n in unsent], [0.0] * len(unsent))
        if line.target.failure is not None:
            raise line.target.failure
        return refusal

    async def _send(
        self, cargo: Sequence[Cargo], places: Sequence[int]
    ) -> tuple[list[int], list[int], dict[int, DriverError]]:
        """Which were accepted, which could not be sent, and which do not fit."""
        line = self._line
        if not places:
            return [], [], {}
        answers = await line.target.send(
            self.pair.target, [cargo[n] for n in places], in_order=self._in_order
        )
        sent = [n for n, answer in zip(places, answers, strict=True) if answer is None]
        refused: dict[int, DriverError] = {
            n: answer
            for n, answer in zip(places, answers, strict=True)
            if isinstance(answer, REFUSALS)
        }
        done = {*sent, *refused}
        unsent = [n for n in places if n not in done]
        if sent:
            await line.ledger.sent(
                line.direction,
                self._key,
                [Moved(cargo[n].id, digest_of(cargo[n].message)) for n in sent],
            )
        return sent, unsent, refused

    async def _delete(
        self, holding: Holding, helds: Sequence[Held], cargo: Sequence[Cargo], places: Sequence[int]
    ) -> DriverError | None:
        if not places:
            return None
        line = self._line
        answers = await holding.delete([helds[n] for n in places])
        deleted = [cargo[n].id for n, answer in zip(places, answers, strict=True) if answer is None]
        # Nobody needs to wait for that: should it be missing, the id counts as open, and a copy
        # that is met again is only deleted.
        noting = asyncio.ensure_future(line.ledger.deleted(line.direction, self._key, deleted))
        self._notes.add(noting)
        noting.add_done_callback(self._noted)
        self.report.moved += len(places)
        self.report.left_open += len(places) - len(deleted)
        return next((answer for answer in answers if answer is not None), None)

    def _noted(self, noting: asyncio.Future[None]) -> None:
        self._notes.discard(noting)
        if not noting.cancelled():
            noting.exception()  # the next note meets the same trouble, and reports it

    async def _leave(
        self,
        holding: Holding,
        helds: Sequence[Held],
        cargo: Sequence[Cargo],
        refusals: dict[int, DriverError],
    ) -> None:
        """Leave misfits where they are, out of the way for a while."""
        if not refusals:
            return
        line, report = self._line, self.report
        named = [
            (name_of(helds[n].delivery.message, digest_of(cargo[n].message)), n) for n in refusals
        ]
        sightings = await line.ledger.refused(
            line.direction,
            self._key,
            [(Moved(name, digest_of(cargo[n].message)), str(refusals[n])) for name, n in named],
        )
        delays: dict[str, float] = {}
        for (name, n), seen in zip(named, sightings, strict=True):
            if name not in self._refused:
                self._refused.add(name)
                report.refused_count += 1
                if len(report.refused) < MAX_MISFITS_TOLD:
                    report.refused[name] = str(refusals[n])
            stay = min(_SHORTEST_STAY * 2.0 ** min(seen - 1, 20), _LONGEST_STAY)
            if self._in_order:
                stay = _LONGEST_STAY
            if self._counts_returns:
                stay = _COUNTED_STAY
            delays[name] = max(stay, cargo[n].delay)
        await holding.put_back([helds[n] for _, n in named], [delays[name] for name, _ in named])
        await line.ledger.parked(line.direction, self._key, delays)

    def _mark_of(self, delivery: Delivery) -> Mark:
        return unmoved(delivery, forgiven=self.forgiven, is_dead=self.pair.is_dead)

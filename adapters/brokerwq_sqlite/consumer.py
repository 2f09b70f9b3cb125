"""Claims from one queue in the file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

from brokerwq.clock import Clock
from brokerwq.driver import Delivery, Mark, Results
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.message import DeadLetterNote
from brokerwq_sqlite import statements, wire
from brokerwq_sqlite.engine import Engine
from brokerwq_sqlite.errors import closed, lease_lost
from brokerwq_sqlite.operation import Claim
from brokerwq_sqlite.statements import Handle, Leased, Moment

if TYPE_CHECKING:
    from brokerwq_sqlite.driver import SqliteDriver

MAX_CLAIM: Final = 500

_Change: TypeAlias = Callable[[sqlite3.Connection, Moment, Sequence[Handle]], Sequence[bool]]
"""Changes what is still leased; an answer for each."""


class SqliteConsumer:
    """See ``brokerwq.driver.Consumer``."""

    def __init__(
        self,
        driver: SqliteDriver,
        engine: Engine,
        queue: tuple[str, int],
        lease: float,
        clock: Clock,
    ) -> None:
        self._driver = driver  # kept alive: its end is the end of the engine
        self._engine = engine
        self._queue, self._queue_id = queue
        self._lease = lease
        self._clock = clock
        self._current: Claim | None = None
        self._is_quiesced = False
        self._is_closed = False

    @property
    def lease(self) -> float:
        """See ``Consumer.lease``."""
        return self._lease

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        """See ``Consumer.claim``."""
        self._check_open()
        if self._is_quiesced or max_items < 1:
            return []
        future: asyncio.Future[Leased] = asyncio.get_running_loop().create_future()
        claim = self._new_claim(future, min(max_items, MAX_CLAIM), waits=wait > 0)
        leased = await self._wait(claim, future, wait)
        if self._is_closed:
            undoing = claim.undo(leased)
            if undoing is not None:
                self._engine.submit(undoing)
            raise closed("consumer")
        left = leased.until - self._clock.now()
        return [wire.delivery_of(row, leased.token, self._queue, left) for row in leased.rows]

    def _new_claim(self, future: asyncio.Future[Leased], most: int, *, waits: bool) -> Claim:
        return Claim(
            work=lambda db, moment: statements.claim(db, moment, self._queue_id, most, self._lease),
            writes=True,
            weight=most,
            loop=future.get_loop(),
            future=future,
            queue=self._queue_id,
            waits=waits,
        )

    async def _wait(self, claim: Claim, future: asyncio.Future[Leased], wait: float) -> Leased:
        self._engine.submit(claim)
        self._current = claim

        def end() -> None:
            claim.is_late = True
            self._engine.poke()

        timer = self._clock.call_at(self._clock.now() + wait, end) if 0 < wait < inf else None
        try:
            return await future
        except asyncio.CancelledError:
            self._give_up(claim)
            raise
        finally:
            self._current = None
            if timer is not None:
                timer.cancel()

    def _give_up(self, claim: Claim) -> None:
        claim.is_over = True
        self._engine.poke()

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        """See ``Consumer.ack``."""
        self._check_open()
        return await self._change(deliveries, statements.ack, feeds=False)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        """See ``Consumer.extend``."""
        self._check_open()
        seconds = positive_seconds(seconds, "lease")
        return await self._change(
            deliveries,
            lambda db, moment, handles: statements.extend(db, moment, handles, seconds),
            feeds=False,
        )

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        """See ``Consumer.release``."""
        self._check_open()
        waits = [seconds_of(delay, "delay", floor=0.0) for delay in delays]
        return await self._change(
            deliveries,
            lambda db, moment, handles: statements.release(db, moment, handles, waits),
        )

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        """See ``Consumer.put_back``."""
        self._check_open()
        waits = [seconds_of(delay, "delay", floor=0.0) for delay in delays]
        envelopes = [
            wire.marked(delivery.message, mark)
            for delivery, mark in zip(deliveries, marks, strict=True)
        ]
        return await self._change(
            deliveries,
            lambda db, moment, handles: statements.put_back(db, moment, handles, waits, envelopes),
        )

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        """See ``Consumer.dead_letter``."""
        self._check_open()
        envelopes = [
            wire.buried(delivery.message, note)
            for delivery, note in zip(deliveries, notes, strict=True)
        ]
        return await self._change(
            deliveries,
            lambda db, moment, handles: statements.dead_letter(
                db, moment, self._queue, handles, envelopes
            ),
        )

    async def _change(
        self, deliveries: Sequence[Delivery], change: _Change, *, feeds: bool = True
    ) -> Results:
        handles = _handles(deliveries)
        done = await self._engine.call(
            lambda db, moment: change(db, moment, handles),
            writes=True,
            feeds=feeds,
            weight=len(handles),
        )
        return [
            None if is_done else lease_lost(delivery)
            for delivery, is_done in zip(deliveries, done, strict=True)
        ]

    async def quiesce(self) -> None:
        """See ``Consumer.quiesce``."""
        claim = self._stop_claiming()
        if claim is not None and claim.future is not None:
            await asyncio.wait([claim.future])

    async def aclose(self) -> None:
        """See ``Consumer.aclose``."""
        self._is_closed = True
        await self.quiesce()

    def close(self) -> None:
        """Close it without waiting; a claim that still waits raises ``ClosedError``."""
        self._is_closed = True
        self._stop_claiming()

    def _stop_claiming(self) -> Claim | None:
        self._is_quiesced = True
        claim = self._current
        if claim is not None:
            self._give_up(claim)
        return claim

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed("consumer")


def _handles(deliveries: Sequence[Delivery]) -> list[Handle]:
    return [_handle(delivery) for delivery in deliveries]


def _handle(delivery: Delivery) -> Handle:
    match delivery.handle:
        case (int() as seq, int() as token):
            return seq, token
        case _:
            return 0, 0  # of another adapter: no row has that number

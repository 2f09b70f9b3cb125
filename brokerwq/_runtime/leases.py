"""Leases: heartbeats, the trust window, and who may still settle.

A lease is trusted until the moment its extension was *asked for*, plus its length, minus a
margin: a slow but successful extension cannot stretch trust, and stopping before the end
leaves time to step down. Heartbeats and the alarm are apart: the alarm does no I/O, so a
broker that hangs cannot delay it.

All of this runs on the I/O side of the bridge.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias

from brokerwq._runtime.bridge import Bridge
from brokerwq.clock import Clock, Timer, move_on_after
from brokerwq.driver.capabilities import Capabilities, Lease
from brokerwq.driver.protocol import Consumer, Delivery, Watchful
from brokerwq.errors import CannotExtendError, DriverError, LeaseLostError, TransientError
from brokerwq.events import Event, Instrumentation, LeaseLost, LeasesExtended
from brokerwq.foreign import Reading

BEATS_PER_LEASE = 3
_MARGIN_SHARE = 10
_LEAST_MARGIN = 0.5
_MOST_MARGIN_SHARE = 4
_TICK = 0.001
_HANGING_SECONDS = 30.0
"""What a claim may take beyond its wait before the broker counts as hanging."""
_AT_LIMIT = "the broker's limit for one receive is reached"
_TAKEN_BACK = "the broker has taken it back"
_TAKEN = "its record in the store has another owner"

OnLost: TypeAlias = Callable[["Held"], object]
Companion: TypeAlias = Callable[[float], Awaitable[bool]]
"""Extends what must live as long as the lease; False if somebody else has it."""


def margin_of(lease: float) -> float:
    """Seconds before its end at which a lease of ``lease`` seconds is no longer trusted."""
    return min(max(_LEAST_MARGIN, lease / _MARGIN_SHARE), lease / _MOST_MARGIN_SHARE)


class Held:
    """One claimed message and how long it is ours. Satisfies ``brokerwq.job.JobLease``.

    ``delivery`` is the adapter's, and what is settled; ``view`` is what everybody else sees:
    the same, with what the worker's codec has read in the message of another program.
    """

    __slots__ = (
        "_clock",
        "_lost",
        "companion",
        "delivery",
        "is_leaving",
        "keeper",
        "limit_at",
        "on_lost",
        "reading",
        "trusted_until",
        "view",
    )

    def __init__(
        self, delivery: Delivery, keeper: LeaseKeeper, clock: Clock, trusted_until: float
    ) -> None:
        self.delivery = delivery
        self.view = delivery
        self.reading: Reading | None = None
        self.keeper = keeper
        self.trusted_until = trusted_until
        self.limit_at = math.inf
        self.is_leaving = False
        self.on_lost: OnLost | None = None
        self.companion: Companion | None = None
        self._clock = clock
        self._lost = False

    @property
    def remaining(self) -> float:
        """See ``brokerwq.job.JobLease``."""
        return 0.0 if self._lost else max(0.0, self.trusted_until - self._clock.now())

    @property
    def limit(self) -> float:
        """See ``brokerwq.job.JobLease``."""
        return self.keeper.capabilities.max_lease

    @property
    def lost(self) -> bool:
        """See ``brokerwq.job.JobLease``: by the alarm, or by the clock if that is late."""
        return self._lost or self._clock.now() >= self.trusted_until

    @property
    def is_reported_lost(self) -> bool:
        """The alarm has been raised."""
        return self._lost

    def mark_lost(self) -> None:
        """For the keeper alone."""
        self._lost = True


class LeaseKeeper:
    """Keeps the leases of what one consumer has claimed.

    Attributes:
        instrumentation: Told of the jobs that its messages make; None for nobody.

    Args:
        consumer: Whose claims they are.
        capabilities: Its broker's.
        clock: For everything.
        bridge: To the handlers' loop.
        heartbeat: False leaves leases to end by themselves.
        emit: Told of extensions and losses.
    """

    def __init__(
        self,
        consumer: Consumer,
        capabilities: Capabilities,
        *,
        clock: Clock,
        bridge: Bridge,
        heartbeat: bool,
        emit: Callable[[Event], object] | None,
    ) -> None:
        self.consumer = consumer
        self.capabilities = capabilities
        self.lease = consumer.lease
        self.margin = margin_of(self.lease)
        self.instrumentation: Instrumentation | None = None
        self._is_timed = capabilities.lease is Lease.TIMED
        self._clock = clock
        self._bridge = bridge
        self._heartbeat = heartbeat
        self._emit = emit
        self._held: set[Held] = set()
        self._beating: set[Held] = set()
        self._rounds: set[asyncio.Task[None]] = set()
        self._beat: Timer | None = None
        self._alarm: Timer | None = None
        self._alarm_at = math.inf
        if isinstance(consumer, Watchful):
            consumer.tell_losses(self._lose_all)

    # -- claiming -------------------------------------------------------------------------

    async def claim(self, max_items: int, wait: float) -> list[Held]:
        """Claim, and keep the leases of what comes.

        Raises:
            DriverError: the broker could not be asked, or did not answer in time.
        """
        bound = wait + _HANGING_SECONDS
        deliveries: Sequence[Delivery] | None = None
        with move_on_after(self._clock, bound):
            deliveries = await self.consumer.claim(max_items, wait)
        if deliveries is None:
            msg = f"claim: no answer within {bound:g} seconds"
            raise TransientError(msg)
        if not deliveries:
            return []
        now = self._clock.now()
        helds: list[Held] = []
        for delivery in deliveries:
            held = Held(delivery, self, self._clock, now + delivery.lease_left - self.margin)
            spent = self.lease - delivery.lease_left
            held.limit_at = now - spent + self.capabilities.max_lease - self.margin
            helds.append(held)
        self._held.update(helds)
        self._arm(min(held.trusted_until for held in helds))
        return helds

    # -- settling -------------------------------------------------------------------------

    def still_ours(self, held: Held, *, is_ack: bool) -> bool:
        """Whether a settle may be sent.

        After the deadline nothing is, except an ack of finished work: where the broker does
        not fence, since it may still save the work from being done again; and where the
        connection is the lease, since while that lives nobody else can have the message.
        """
        return not held.lost or (is_ack and not (self.capabilities.fences and self._is_timed))

    async def hand_back(self, helds: Sequence[Held]) -> None:
        """Let others have what we no longer trust ourselves to hold.

        A timed lease ends by itself. One that is the connection does not: the broker would
        keep the message for us as long as we are connected.
        """
        if not self._is_timed:
            with move_on_after(self._clock, self.lease), contextlib.suppress(DriverError):
                await self.consumer.release([h.delivery for h in helds], [0.0] * len(helds))

    async def stop_beating(self, helds: Sequence[Held]) -> None:
        """No extension of ``helds`` is under way, and none follows.

        A heartbeat that overtakes a release would hide the message for another lease.
        """
        for held in helds:
            held.is_leaving = True
        busy = bool(self._rounds) and not self._beating.isdisjoint(helds)
        self._beating.difference_update(helds)
        self._held.difference_update(helds)
        if busy:
            with move_on_after(self._clock, self.margin):
                await asyncio.wait(self._rounds)

    def keep_again(self, held: Held) -> None:
        """Watch over ``held`` again: its settle did not go through.

        What is on its way back is not extended any more, so that its settle is tried for one
        lease at most.
        """
        if not held.lost:
            self._held.add(held)
            self._arm(held.trusted_until)

    def let_go(self, held: Held) -> None:
        """``held`` is settled."""
        self._held.discard(held)

    def lose(self, held: Held, reason: str) -> None:
        """``held`` is no longer ours: raise the alarm, once."""
        self._held.discard(held)
        if held.is_reported_lost:
            return
        held.mark_lost()
        if self._emit is not None:
            delivery = held.delivery
            message = delivery.message
            self._emit(
                LeaseLost(queue=delivery.queue, type=message.type, id=message.id, reason=reason)
            )
        if held.on_lost is not None:
            self._bridge.notify(held.on_lost, held)

    def _lose_all(self, handles: Collection[object]) -> None:
        for held in [held for held in self._held if held.delivery.handle in handles]:
            self.lose(held, _TAKEN_BACK)

    # -- extending ------------------------------------------------------------------------

    async def extend(self, held: Held, seconds: float) -> float:
        """Make one lease end ``seconds`` from now unless it runs longer; how long it runs."""
        if held.lost:
            msg = f"the lease on {held.delivery.message.id!r} is lost"
            raise LeaseLostError(msg)
        asked = self._clock.now()
        wanted = seconds - self.margin
        if asked + wanted > held.limit_at or seconds > self.capabilities.max_lease:
            limit = self.capabilities.max_lease
            msg = f"the lease cannot run {seconds:g} seconds more: one receive lasts {limit:g}"
            raise CannotExtendError(msg, limit=limit)
        if held.trusted_until < asked + wanted:
            error: DriverError | None = TransientError("extend: no answer in time")
            with move_on_after(self._clock, held.remaining):
                (error,) = await self.consumer.extend([held.delivery], seconds)
            if isinstance(error, LeaseLostError):
                self.lose(held, str(error))
            if error is not None:
                raise error
            if held.companion is not None and not await held.companion(wanted):
                self.lose(held, _TAKEN)
                raise LeaseLostError(_TAKEN)
            held.trusted_until = max(held.trusted_until, asked + wanted)
        return held.remaining

    def _arm(self, alarm_at: float) -> None:
        self._arm_beat()
        if self._alarm is None or alarm_at < self._alarm_at:
            self._set_alarm(alarm_at)

    def _arm_beat(self) -> None:
        if self._heartbeat and self._beat is None:
            self._beat = self._clock.call_at(
                self._clock.now() + self.lease / BEATS_PER_LEASE, self._start_round
            )

    def _start_round(self) -> None:
        self._beat = None
        if not self._held:
            return
        round_ = asyncio.get_running_loop().create_task(self._extend_all())
        self._rounds.add(round_)
        round_.add_done_callback(self._rounds.discard)
        self._arm_beat()

    async def _extend_all(self) -> None:
        now = self._clock.now()
        # Neither what runs longer anyway (the job asked for it) nor what is being extended.
        short = now + self.lease - self.margin - _TICK
        due = [
            held
            for held in self._held
            if held.trusted_until < short and not held.is_leaving and held not in self._beating
        ]
        self._beating.update(due)
        size = self.capabilities.max_settle
        try:
            for start in range(0, len(due), size):
                await self._extend_batch(due[start : start + size])
        finally:
            self._beating.difference_update(due)

    async def _extend_batch(self, helds: list[Held]) -> None:
        asked = self._clock.now()
        helds = [h for h in helds if h in self._held and not h.is_leaving and asked < h.limit_at]
        if not helds:
            return
        results: Sequence[DriverError | None] = ()
        with move_on_after(self._clock, self.lease / 2):
            try:
                results = await self._extend_both(helds)
            except Exception:  # noqa: BLE001 -- an adapter's bug is no better than an outage
                return  # the alarm decides: the broker may answer the next round in time
        extended = 0
        for held, error in zip(helds, results, strict=False):
            if error is None:
                until = min(asked + self.lease - self.margin, held.limit_at)
                held.trusted_until = max(held.trusted_until, until)
                extended += 1
            elif isinstance(error, LeaseLostError) and held in self._held:
                self.lose(held, str(error))
        if extended and self._emit is not None:
            self._emit(LeasesExtended(queue=helds[0].delivery.queue, count=extended))

    async def _extend_both(self, helds: list[Held]) -> Sequence[DriverError | None]:
        """Extend the leases and their companions in one tick; both, or not extended."""
        extending = self.consumer.extend([held.delivery for held in helds], self.lease)
        companions = [held for held in helds if held.companion is not None]
        if not companions:
            return await extending
        results, answers = await asyncio.gather(
            extending, asyncio.gather(*(self._extend_companion(held) for held in companions))
        )
        of_companion = dict(zip(companions, answers, strict=True))
        return [error or of_companion.get(held) for held, error in zip(helds, results, strict=True)]

    async def _extend_companion(self, held: Held) -> DriverError | None:
        try:
            if held.companion is None or await held.companion(self.lease - self.margin):
                return None
        except Exception as error:  # noqa: BLE001 -- the alarm decides, as with the broker
            return DriverError(f"{type(error).__name__} while extending the record")
        return LeaseLostError(_TAKEN)

    # -- the alarm ------------------------------------------------------------------------

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._clock.call_at(at, self._sound)

    def _sound(self) -> None:
        self._alarm = None
        now = self._clock.now()
        for held in [held for held in self._held if held.trusted_until <= now]:
            is_at_limit = now >= held.limit_at
            self.lose(held, _AT_LIMIT if is_at_limit else "it was not extended in time")
        if self._held:
            self._set_alarm(min(held.trusted_until for held in self._held))

    async def aclose(self) -> None:
        """Stop the heartbeats; what is still held comes back when its lease ends."""
        for timer in (self._beat, self._alarm):
            if timer is not None:
                timer.cancel()
        self._held.clear()
        rounds = list(self._rounds)
        for round_ in rounds:
            round_.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)

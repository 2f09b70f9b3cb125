"""Claim, ack, extend, release, put back, dead-letter: one delivery at a time, batched inside."""

from __future__ import annotations

import asyncio

from brokerwq._runtime.bridge import InlineBridge
from brokerwq._runtime.leases import Held, LeaseKeeper
from brokerwq._runtime.settler import Settle, Settler
from brokerwq._runtime.verdict import Judge, Verdict
from brokerwq.clock import Clock, move_on_after
from brokerwq.driver.capabilities import Capabilities
from brokerwq.driver.protocol import Consumer, Delivery
from brokerwq.durations import Seconds, positive_seconds, seconds_of
from brokerwq.errors import ConfigError, DriverError, LeaseLostError
from brokerwq.limits import MAX_DELAY, MAX_LEASE
from brokerwq.outcomes import DeadLetter

_CLOSE_SECONDS = 10.0


class Claimer:
    """Claims from one queue. Made by ``Broker.claimer``.

    Leases are not extended by themselves here. Every method that settles raises
    ``LeaseLostError`` once the lease has ended, and ``DriverError`` where the broker could
    not be told; the message then comes back by itself.
    """

    def __init__(self, consumer: Consumer, capabilities: Capabilities, clock: Clock) -> None:
        bridge = InlineBridge()
        self._clock = clock
        self._judge = Judge(capabilities, unknown_after=0.0)
        self._keeper = LeaseKeeper(
            consumer, capabilities, clock=clock, bridge=bridge, heartbeat=False, emit=None
        )
        self._settler = Settler(
            self._keeper,
            bridge,
            clock=clock,
            instrumentation=None,
            troubled=lambda _why: None,
        )
        self._helds: dict[Delivery, Held] = {}

    @property
    def lease(self) -> float:
        """Seconds a claim lasts unless extended."""
        return self._keeper.lease

    async def claim(self, n: int = 1, *, wait: Seconds = 10.0) -> list[Delivery]:
        """Up to ``n`` messages, waiting up to ``wait`` seconds for the first.

        Returns as soon as there is one; empty if there was none.

        Raises:
            DriverError: the broker could not be asked.
            ConfigError: ``n`` is below 1.
        """
        _check_count(n)
        capabilities = self._keeper.capabilities
        until = self._clock.now() + seconds_of(wait, "wait", floor=0.0, limit=MAX_DELAY)
        most = min(n, capabilities.max_claim)
        while True:
            left = max(until - self._clock.now(), 0.0)
            helds = await self._keeper.claim(most, min(left, capabilities.max_wait))
            if helds or self._clock.now() >= until:
                break
        for held in helds:
            self._helds[held.delivery] = held
        return [held.delivery for held in helds]

    async def ack(self, delivery: Delivery, /) -> None:
        """Done: the message is never handed out again."""
        await self._settle(delivery, Verdict("ack", "done"))

    async def extend(self, delivery: Delivery, seconds: Seconds, /) -> float:
        """Make the lease end ``seconds`` from now, if it would end sooner; how long it runs.

        Raises:
            LeaseLostError: it has ended.
            CannotExtendError: the broker gives no more.
        """
        wanted = positive_seconds(seconds, "seconds", limit=MAX_LEASE)
        return await self._keeper.extend(self._held(delivery), wanted)

    async def release(self, delivery: Delivery, /, *, delay: Seconds = 0.0) -> None:
        """Return the message, counted as an attempt, claimable after ``delay`` seconds."""
        after = seconds_of(delay, "delay", floor=0.0, limit=MAX_DELAY)
        now = self._clock.utcnow()
        await self._settle(delivery, self._judge.returned(delivery, after, now=now))

    async def put_back(self, delivery: Delivery, /, *, delay: Seconds = 0.0) -> None:
        """Return the message, not counted, claimable after ``delay`` seconds."""
        after = seconds_of(delay, "delay", floor=0.0, limit=MAX_DELAY)
        now = self._clock.utcnow()
        await self._settle(delivery, self._judge.not_started(delivery, after, now=now))

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        """Move the message to the dead-letter queue, with ``reason`` in its note."""
        now = self._clock.utcnow()
        why = DeadLetter(reason).reason  # whatever was given, as text
        await self._settle(delivery, self._judge.given_up(delivery, why, now=now))

    async def aclose(self) -> None:
        """Stop claiming, and let settles that are under way end."""
        with move_on_after(self._clock, _CLOSE_SECONDS):
            await self._keeper.consumer.quiesce()
            await self._settler.flush()
        await self._settler.aclose()
        await self._keeper.aclose()
        with move_on_after(self._clock, _CLOSE_SECONDS):
            await self._keeper.consumer.aclose()
        self._helds.clear()

    def _held(self, delivery: Delivery) -> Held:
        held = self._helds.get(delivery)
        if held is None:
            msg = f"{delivery.message.id!r} is not held here: settled already, or never claimed"
            raise LeaseLostError(msg)
        return held

    async def _settle(self, delivery: Delivery, verdict: Verdict) -> None:
        held = self._held(delivery)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def concluded(request: Settle, error: DriverError | None) -> None:
            error = error or _spoiled(request, verdict)
            self._helds.pop(delivery, None)
            if answer.done():
                return
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self._settler.settle(held, verdict, concluded)
        await answer


def _spoiled(request: Settle, asked: Verdict) -> DriverError | None:
    """The failure behind a settle that had to end in another way than was asked."""
    return request.failure if request.verdict.operation != asked.operation else None


def _check_count(n: object) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        msg = f"n must be a whole number, 1 or more, not {n!r:.200}"
        raise ConfigError(msg)

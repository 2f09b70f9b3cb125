"""Consumers whose claims, leases or closing are broken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from brokerwq.driver import Delivery, Mark
from brokerwq.errors import DriverError, TransientError
from tests.contract.broken import consumer
from tests.contract.sound import SoundConsumer
from tests.contract.sound_capabilities import SOUND
from tests.contract.sound_fifo import FIFO


@consumer("claiming.no_claim_brings_more_than_asked")
class GreedyClaim(SoundConsumer):
    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        return await super().claim(2 * max_items, wait)


@consumer(
    "claiming.a_claim_waits_as_long_as_it_may",
    "claiming.a_waiting_claim_is_woken_by_a_send",
    "claiming.a_wait_beyond_the_longest_is_taken",
)
class ImpatientClaim(SoundConsumer):
    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        return await super().claim(max_items, 0.0)


@consumer(
    "claiming.a_waiting_claim_is_woken_by_a_send",
    "claiming.a_claim_does_not_wait_for_more_than_one",
    "leases.the_end_of_a_lease_wakes_a_waiting_claim",
    "delays.a_delayed_message_wakes_a_waiting_claim",
    "lifecycle.quiesce_ends_a_waiting_claim",
)
class SleepyClaim(SoundConsumer):
    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        await self.broker.clock.sleep(wait)
        return await super().claim(max_items, 0.0)


@consumer(
    "failures.an_outage_is_an_error",
    "failures.an_outage_ends_a_waiting_claim",
    "failures.a_cut_does_not_look_like_an_empty_queue",
)
class DeafClaim(SoundConsumer):
    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        try:
            return await super().claim(max_items, wait)
        except DriverError:
            return []


@consumer(
    "claiming.a_cancelled_claim_strands_nothing",
    "claiming.a_claim_cancelled_before_it_starts_takes_nothing",
)
class StrandingClaim(SoundConsumer):
    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        return await asyncio.shield(asyncio.ensure_future(super().claim(max_items, wait)))


@consumer("claiming.two_consumers_never_get_the_same_message", "claiming.a_full_claim_is_taken")
class DoublingClaim(SoundConsumer):
    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        got = await super().claim(max_items, wait)
        return [*got[: max_items - 1], got[0]] if len(got) > 1 else got


@consumer("claiming.a_first_delivery_says_what_it_is")
class ZeroBasedReceives(SoundConsumer):
    def _received(self, delivery: Delivery) -> Delivery:
        return replace(delivery, receives=delivery.receives - 1)


@consumer(
    "claiming.a_claimed_message_is_nobody_elses",
    "leases.a_message_comes_back_when_its_lease_ends",
)
class LeaselessClaim(SoundConsumer):
    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        got = await super().claim(max_items, wait)
        await self.inner.release(got, [0.0] * len(got))
        return got


class PrefetchingConsumer(SoundConsumer):
    """Receives ahead, as what a broker pushes does, and puts back what was not handed out."""

    is_tidy: ClassVar[bool] = True

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        if self.is_quiesced:
            return []
        if not self.buffer:
            self.buffer = list(await super().claim(10, wait))
        got, self.buffer = self.buffer[:max_items], self.buffer[max_items:]
        return got

    async def quiesce(self) -> None:
        await super().quiesce()
        self.is_quiesced = True
        if self.is_tidy:
            left, self.buffer = self.buffer, []
            await self.inner.put_back(left, [0.0] * len(left), [Mark()] * len(left))

    buffer: list[Delivery]
    is_quiesced: bool

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.buffer = []
        self.is_quiesced = False


@consumer("lifecycle.quiesce_strands_nothing")
class StrandingQuiesce(PrefetchingConsumer):
    is_tidy = False


@consumer("lifecycle.quiesce_ends_a_waiting_claim", "lifecycle.a_quiesced_consumer_claims_nothing")
class IdleQuiesce(SoundConsumer):
    async def quiesce(self) -> None:
        return


@consumer("lifecycle.settling_works_after_quiesce")
class FinalQuiesce(SoundConsumer):
    async def quiesce(self) -> None:
        await super().quiesce()
        await self.inner.aclose()


@consumer("lifecycle.a_closed_consumer_refuses", "lifecycle.closing_ends_a_waiting_claim")
class IdleClose(SoundConsumer):
    async def aclose(self) -> None:
        return


@consumer(
    "leases.a_closed_consumer_gives_back_what_it_held",
    "lifecycle.closing_a_driver_gives_back_what_it_held",
)
class AckingClose(SoundConsumer):
    is_closed = False

    async def aclose(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            await self.inner.ack(list(self.held))
        await super().aclose()


@consumer("leases.a_held_message_stays_with_its_connection", can=SOUND["connection"])
class TimedConnection(SoundConsumer):
    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        got = await super().claim(max_items, wait)
        await self.inner.extend(got, self.lease)
        return got


@consumer("returning.a_released_message_says_it_is_not_new", can=SOUND["connection, classic"])
class CountsAfterAll(SoundConsumer):
    def _received(self, delivery: Delivery) -> Delivery:
        return delivery


@consumer("claiming.no_claim_waits_beyond_the_longest", can=SOUND["unfenced"])
class EndlessWait(SoundConsumer):
    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        return await self.inner.claim(max_items, wait)


@consumer(
    "claiming.a_group_is_claimed_in_order",
    "claiming.a_returned_message_keeps_its_place",
    can=FIFO,
)
class OrderIsForgotten(SoundConsumer):
    """Over a broker that keeps no order."""


@consumer("claiming.an_empty_queue_brings_nothing")
class EmptyIsAnError(SoundConsumer):
    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        if got := await super().claim(max_items, wait):
            return got
        raise TransientError("nothing there")


@consumer("leases.receives_survive_a_crash")
class CountsForItself(SoundConsumer):
    """Counts receives where a crash forgets them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counts: Counter[str] = Counter()

    def _received(self, delivery: Delivery) -> Delivery:
        self.counts[delivery.message.id] += 1
        return replace(delivery, receives=self.counts[delivery.message.id])


@consumer("lifecycle.quiesce_strands_nothing_that_just_arrives")
class OpenPoll(SoundConsumer):
    """Ends a claim when it is quiesced, but not the request that waits for it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.is_over = asyncio.Event()

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        polling = asyncio.ensure_future(super().claim(max_items, wait))
        over = asyncio.ensure_future(self.is_over.wait())
        await asyncio.wait({polling, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        return polling.result() if polling.done() else []

    async def quiesce(self) -> None:
        self.is_over.set()

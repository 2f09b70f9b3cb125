"""Consumers whose settles are answered wrongly, or settle what is not theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from brokerwq.driver import Delivery, Results
from brokerwq.errors import CannotExtendError, LeaseLostError, UnsupportedError
from tests.contract.broken import consumer
from tests.contract.sound import SoundConsumer
from tests.contract.sound_capabilities import SOUND


def _done(items: Sequence[object]) -> Results:
    return [None] * len(items)


@consumer(
    "settling.an_acked_message_never_comes_back", "lifecycle.a_crash_in_a_batch_loses_nothing"
)
class ForgetfulAck(SoundConsumer):
    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        return _done(deliveries)


@consumer("leases.an_extended_lease_lasts_longer", "leases.an_extend_counts_from_now")
class IdleExtend(SoundConsumer):
    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        return _done(deliveries)


@consumer("leases.an_extend_counts_from_now")
class AddingExtend(SoundConsumer):
    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        return await super().extend(deliveries, seconds + self.lease)


@consumer("lost_leases.an_extend_never_revives", "lost_leases.nothing_is_settled_after_its_lease")
class RevivingExtend(SoundConsumer):
    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        results = list(await super().extend(deliveries, seconds))
        if any(isinstance(result, LeaseLostError) for result in results):
            for delivery in await self.inner.claim(10, 0.0):
                await self.inner.extend([delivery], seconds)
            return _done(deliveries)
        return results


class HushedLoss(SoundConsumer):
    async def _each(self, *args: Any, **kwargs: Any) -> Results:
        results = await super()._each(*args, **kwargs)
        return [None if isinstance(it, LeaseLostError) else it for it in results]


consumer(
    "lost_leases.an_extend_answers_for_each",
    "lost_leases.a_late_ack_is_refused",
    "lost_leases.a_late_extend_is_refused",
    "lost_leases.a_late_release_is_refused",
    "lost_leases.a_late_put_back_is_refused",
    "lost_leases.a_late_dead_letter_is_refused",
    "lost_leases.nothing_is_settled_after_its_lease",
)(HushedLoss)


@consumer(
    "lost_leases.a_late_ack_is_refused", "settling.a_settled_message_cannot_be_settled_otherwise"
)
class UnfencedSettle(SoundConsumer):
    """Acts on the message, whoever holds it by now, and owns up to the loss."""

    holders: ClassVar[dict[str, tuple[SoundConsumer, Delivery]]] = {}

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        got = await super().claim(max_items, wait)
        self.holders.update((delivery.message.id, (self, delivery)) for delivery in got)
        return got

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        results = await super().ack(deliveries)
        for delivery, result in zip(deliveries, results, strict=True):
            if result is not None:
                holder, held = self.holders[delivery.message.id]
                await holder.inner.ack([held])
                for found in await self.inner.claim(10, 0.0):
                    await self.inner.ack([found])
        return results


@consumer("lost_leases.late_settles_are_not_sent", can=SOUND["unfenced"])
class LateRelease(UnfencedSettle):
    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        results = await super().release(deliveries, delays)
        for delivery, result in zip(deliveries, results, strict=True):
            if result is not None:
                holder, held = self.holders[delivery.message.id]
                await holder.inner.release([held], [0.0])
        return results


@consumer("lost_leases.a_late_ack_is_owned_up_to", can=SOUND["unfenced"])
class SecretLateAck(SoundConsumer):
    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        results = await super().ack(deliveries)
        return [it if it is None else LeaseLostError("late") for it in results]


@consumer(
    "lost_leases.an_ack_answers_for_each",
    "lost_leases.a_release_answers_for_each",
    "lost_leases.a_dead_letter_answers_for_each",
)
class WrongSlotOrder(SoundConsumer):
    async def _each(self, *args: Any, **kwargs: Any) -> Results:
        results = list(await super()._each(*args, **kwargs))
        return [*results[1:], *results[:1]]


@consumer("lost_leases.an_ack_answers_for_each", "lost_leases.a_put_back_answers_for_each")
class RaisingForOne(SoundConsumer):
    async def _each(self, *args: Any, **kwargs: Any) -> Results:
        results = await super()._each(*args, **kwargs)
        for result in results:
            if result is not None:
                raise result
        return results


@consumer("settling.an_empty_batch_is_no_settle")
class EmptySettleFails(SoundConsumer):
    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        if not deliveries:
            raise UnsupportedError("an empty batch")
        return await super().release(deliveries, delays)


@consumer("lost_leases.an_ack_answers_for_each", "settling.a_settled_item_spoils_nothing")
class AllOrNothingAck(SoundConsumer):
    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        if any(self.broker.clock.now() >= self.held.get(delivery, 0) for delivery in deliveries):
            return [LeaseLostError("one of them")] * len(deliveries)
        return await super().ack(deliveries)


@consumer("settling.a_repeated_release_is_harmless", "settling.a_repeated_ack_is_harmless")
class RepeatedSettleFails(SoundConsumer):
    async def _each(self, *args: Any, **kwargs: Any) -> Results:
        results = await super()._each(*args, **kwargs)
        return [it and UnsupportedError("unknown delivery") for it in results]


@consumer(
    "settling.a_full_batch_is_acked",
    "settling.a_full_batch_is_put_back",
    "settling.a_full_batch_is_extended",
    "settling.a_full_batch_is_released",
    "settling.a_full_batch_is_dead_lettered",
)
class ShortBatches(SoundConsumer):
    async def _each(self, deliveries: Sequence[Delivery], *args: Any, **kwargs: Any) -> Results:
        return await super()._each(deliveries[:10], *args, **kwargs)


@consumer("settling.settles_may_run_at_the_same_time")
class SettlesThatMix(SoundConsumer):
    """Keeps the deliveries of a call where a call beside it overwrites them."""

    async def _each(self, deliveries: Sequence[Delivery], *args: Any, **kwargs: Any) -> Results:
        self.now_settling = deliveries
        await self.broker.clock.sleep(0)
        if self.now_settling is not deliveries:
            return _done(deliveries)
        return await super()._each(deliveries, *args, **kwargs)


@consumer("leases.an_extend_above_the_longest_keeps_the_lease", can=SOUND["unfenced"])
class ForgetfulExtend(SoundConsumer):
    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        results = await super().extend(deliveries, seconds)
        if any(isinstance(result, CannotExtendError) for result in results):
            await self.inner.release(deliveries, [0.0] * len(deliveries))
        return results


@consumer("failures.deliveries_of_a_lost_connection_are_lost", can=SOUND["connection"])
class DeliveriesOutliveTheirConnection(SoundConsumer):
    def _is_lost(self, delivery: Delivery) -> bool:
        return False


@consumer("leases.an_extend_within_the_longest_lease_is_granted", can=SOUND["connection"])
class StingyExtend(SoundConsumer):
    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        return [CannotExtendError("no", limit=0.0)] * len(deliveries)

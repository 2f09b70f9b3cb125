"""Drivers that are broken outside their consumers and their send."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from brokerwq.driver import (
    UNKNOWN_COUNT,
    Capabilities,
    Consumer,
    Count,
    Difference,
    QueueSpec,
    QueueStats,
    Results,
)
from brokerwq.errors import BrokerwqError, ConnectionLostError, DriverError, QueueNotFoundError
from brokerwq.message import Message
from tests.contract.broken import driver
from tests.contract.sound import SoundDriver
from tests.contract.sound_capabilities import SOUND


@driver(
    "sending.a_missing_queue_is_refused_and_not_made",
    "claiming.a_missing_queue_cannot_be_consumed",
    "admin.a_missing_queue_cannot_be_inspected",
    "admin.a_missing_queue_cannot_be_purged",
)
class NativeErrors(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        await self.inspect(queue)
        return await super().send(queue, messages, delays)

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        await self.inspect(queue)
        return await super().consume(queue, lease=lease, prefetch=prefetch)

    async def inspect(self, queue: str, /) -> QueueStats:
        try:
            return await super().inspect(queue)
        except BrokerwqError as exc:
            raise KeyError(queue) from exc

    async def purge(self, queue: str, /) -> None:
        await self.inspect(queue)
        await super().purge(queue)


@driver("admin.check_only_never_makes_a_queue")
class CheckMakes(SoundDriver):
    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        return await super().declare(spec)


@driver("admin.a_difference_is_reported_and_nothing_is_made")
class BlindDeclare(SoundDriver):
    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        if await super().declare(spec, check_only=check_only):
            await super().declare(QueueSpec(name=spec.dead_letter_queue))
        return []


@driver("admin.declare_twice_changes_nothing")
class DeclareEmpties(SoundDriver):
    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        differences = await super().declare(spec, check_only=check_only)
        await self.inner.purge(spec.name)
        return differences


@driver("admin.check_only_finds_no_fault_with_a_sound_queue")
class FaultFinder(SoundDriver):
    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        found = await super().declare(spec, check_only=check_only)
        odd = Difference(queue=spec.name, property="colour", wanted="blue", found="green")
        return [*found, odd] if check_only else found


@driver("claiming.an_ordered_queue_is_not_promised")
class EmptyPromise(SoundDriver):
    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        return await super().declare(replace(spec, ordered=False), check_only=check_only)


@driver("admin.purge_deletes_what_is_ready")
class IdlePurge(SoundDriver):
    async def purge(self, queue: str, /) -> None:
        await self.inspect(queue)


@driver("admin.purge_deletes_what_is_delayed")
class PurgeOfTheReady(SoundDriver):
    async def purge(self, queue: str, /) -> None:
        consumer = await self.inner.consume(queue, lease=60, prefetch=1)
        while got := await consumer.claim(100, 0.0):
            await consumer.ack(got)


@driver("admin.purge_leaves_other_queues_alone")
class PurgeOfAll(SoundDriver):
    async def purge(self, queue: str, /) -> None:
        for name in await self.queues():
            await super().purge(name)


@driver("admin.counts_are_exact", "admin.the_oldest_age_grows", "admin.the_next_delay_is_told")
class GuessedCounts(SoundDriver):
    async def inspect(self, queue: str, /) -> QueueStats:
        stats = await super().inspect(queue)
        ready = Count(stats.ready.value + stats.leased.value)
        return replace(stats, ready=ready, leased=UNKNOWN_COUNT, oldest_age=7.0, next_due=7e9)


@driver("admin.an_unknown_count_is_zero", "admin.estimates_become_right", can=SOUND["unfenced"])
class WildEstimates(SoundDriver):
    async def inspect(self, queue: str, /) -> QueueStats:
        stats = await super().inspect(queue)
        return replace(stats, ready=replace(stats.ready, value=stats.ready.value - 9))


@driver("admin.queues_are_listed")
class UnsortedList(SoundDriver):
    async def queues(self) -> Sequence[str]:
        return list(reversed(await super().queues()))


@driver("admin.queues_cannot_be_listed", can=SOUND["unfenced"])
class SecretList(SoundDriver):
    async def queues(self) -> Sequence[str]:
        return await self.inner.queues()


@driver("admin.an_impossible_name_is_a_config_error")
class AnyNameIsRefusedLater(SoundDriver):
    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        return [] if len(spec.name) > 1000 else await super().declare(spec, check_only=check_only)


@driver("admin.capabilities_are_sane")
class ChangingCapabilities(SoundDriver):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, max_claim=100 + len(self.broker.dead))


@driver("leases.a_lease_above_the_longest_is_refused", can=SOUND["unfenced"])
class ClampedLease(SoundDriver):
    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        most = self.capabilities.max_lease
        asked = None if lease is None else min(lease, most)
        return await super().consume(queue, lease=asked, prefetch=prefetch)


@driver("leases.a_consumer_tells_its_lease", "leases.a_lease_of_ten_years_is_granted")
class FixedLease(SoundDriver):
    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        return await super().consume(queue, lease=30.0, prefetch=prefetch)


@driver("lifecycle.a_closed_driver_refuses")
class IdleDriverClose(SoundDriver):
    async def aclose(self) -> None:
        return


@driver("lifecycle.closing_leaves_no_task_behind", "lifecycle.an_idle_driver_sets_no_timer")
class KeepAlive(SoundDriver):
    async def open(self) -> None:
        await super().open()
        self.beats = asyncio.ensure_future(self.broker.clock.sleep(10**6))


@driver("lifecycle.a_tour_is_silent", "admin.a_missing_queue_cannot_be_inspected")
class Chatty(SoundDriver):
    async def inspect(self, queue: str, /) -> QueueStats:
        try:
            return await super().inspect(queue)
        except QueueNotFoundError:
            logging.getLogger("brokerwq_memory.driver").info("queue %s is missing", queue)
            raise


@driver("failures.an_outage_is_an_error")
class PatientRetries(SoundDriver):
    """Tries again by itself, which makes an outage look like a slow broker."""

    async def inspect(self, queue: str, /) -> QueueStats:
        for _ in range(100):
            try:
                return await super().inspect(queue)
            except QueueNotFoundError:
                raise
            except DriverError:
                await self.broker.clock.sleep(1)
        return await super().inspect(queue)


@driver("failures.an_outage_is_an_error")
class CauseIsLost(SoundDriver):
    async def purge(self, queue: str, /) -> None:
        try:
            await super().purge(queue)
        except ConnectionLostError:
            raise ConnectionLostError("the broker is gone") from None


@driver("failures.what_was_sent_survives_a_restart", can=SOUND["connection"])
class NotDurableAfterAll(SoundDriver):
    async def open(self) -> None:
        await super().open()
        if self.broker.restarts:
            for name in await self.inner.queues():
                await self.inner.purge(name)


@driver("failures.a_restart_begins_anew", can=SOUND["connection, classic"])
class DurableAfterAll(SoundDriver):
    async def open(self) -> None:
        self.inner = self.broker.build(0)
        await super().open()


@driver("failures.a_lost_connection_is_made_again", "failures.a_consumer_outlives_its_connection")
class CutForGood(SoundDriver):
    async def cut(self) -> None:
        await self.inner.aclose()


@driver("leases.a_queues_own_lease_is_taken")
class OwnLeaseIsIgnored(SoundDriver):
    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        asked = 17.0 if lease is None else lease
        return await super().consume(queue, lease=asked, prefetch=prefetch)


@driver("dead_letters.the_dead_letter_queue_is_a_queue")
class DeadLettersAreFinal(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        if queue.endswith("-dead"):
            raise QueueNotFoundError(queue)
        return await super().send(queue, messages, delays)


@driver("admin.declare_makes_both_queues")
class IdleDeclare(SoundDriver):
    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        return []

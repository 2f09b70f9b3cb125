"""Drivers that are broken outside their consumers."""

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
from brokerwq.errors import (
    BrokerwqError,
    ConnectionLostError,
    DriverError,
    MessageTooLargeError,
    QueueNotFoundError,
    UnsupportedError,
)
from brokerwq.message import Message
from tests.contract.broken import driver
from tests.contract.sound import SOUND, SoundDriver


class Garbling(SoundDriver):
    """Sends every message as ``garbled`` makes it."""

    def garbled(self, message: Message) -> Message:
        return message

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        return await super().send(queue, [self.garbled(item) for item in messages], delays)


@driver("envelope.every_byte_comes_back", "envelope.no_body_is_misread")
class TextOnlyBody(Garbling):
    def garbled(self, message: Message) -> Message:
        return replace(message, body=message.body.decode(errors="replace").encode())


@driver("envelope.no_body_is_misread")
class GuessedBase64(Garbling):
    def garbled(self, message: Message) -> Message:
        return replace(message, body=b"par") if message.body == b"cGFy" else message


@driver("envelope.header_names_keep_their_case", "envelope.odd_header_names_come_back")
class LowerCaseHeaders(Garbling):
    def garbled(self, message: Message) -> Message:
        return replace(
            message, headers={name.lower(): text for name, text in message.headers.items()}
        )


@driver("envelope.forty_headers_come_back")
class TenHeaders(Garbling):
    def garbled(self, message: Message) -> Message:
        return replace(message, headers=dict(list(message.headers.items())[:10]))


@driver("envelope.odd_header_values_come_back", "envelope.a_message_can_travel_twice")
class AsciiHeaders(Garbling):
    def garbled(self, message: Message) -> Message:
        return replace(
            message,
            headers={
                name: text.encode("ascii", "ignore").decode()
                for name, text in message.headers.items()
            },
        )


@driver("envelope.empty_texts_are_not_absent")
class EmptyIsAbsent(Garbling):
    def garbled(self, message: Message) -> Message:
        headers = {name: text for name, text in message.headers.items() if text}
        return replace(message, key=message.key or None, headers=headers)


@driver("envelope.what_was_not_set_stays_so")
class DefaultType(Garbling):
    def garbled(self, message: Message) -> Message:
        return replace(message, type=message.type or "message")


@driver("envelope.every_field_comes_back", "dead_letters.a_dead_letter_can_be_sent_back")
class ForgottenFields(Garbling):
    def garbled(self, message: Message) -> Message:
        return replace(message, redrives=0)


@driver("envelope.every_field_comes_back")
class WholeSeconds(Garbling):
    def garbled(self, message: Message) -> Message:
        if message.created_at is None:
            return message
        return replace(message, created_at=message.created_at.replace(second=0, microsecond=0))


@driver("delays.each_sent_message_has_its_own_delay")
class OneDelayForAll(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        return await super().send(queue, messages, [max(delays, default=0.0)] * len(delays))


@driver(
    "delays.each_sent_message_has_its_own_delay",
    "delays.a_send_delay_of_ten_years_is_kept",
)
class EarlyBird(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        return await super().send(queue, messages, [delay / 10**9 for delay in delays])


@driver("delays.a_send_delay_above_the_limit_is_refused", can=SOUND["unfenced"])
class ClampedDelay(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        most = self.capabilities.max_send_delay
        return await super().send(queue, messages, [min(delay, most) for delay in delays])


@driver("sending.a_message_too_large_is_refused_alone", can=SOUND["unfenced"])
class TooLargeSpoilsAll(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        for result in (results := await super().send(queue, messages, delays)):
            if isinstance(result, MessageTooLargeError):
                raise result
        return results


@driver("sending.the_largest_message_arrives_whole", can=SOUND["unfenced"])
class HalfTheSize(SoundDriver):
    def _refusal(self, message: Message, delay: float) -> DriverError | None:
        if len(message.body) > self.capabilities.max_message_bytes / 2:
            return MessageTooLargeError("too large")
        return super()._refusal(message, delay)


@driver("sending.what_send_confirmed_is_there", "sending.a_full_batch_is_sent")
class DroppedSend(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        return [None] * len(messages)


@driver("sending.what_send_confirmed_outlives_its_connection")
class SendLater(SoundDriver):
    """Answers when the message is written, not when it is kept; closing forgets it."""

    later: asyncio.Task[object] | None = None

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        async def send() -> None:
            await self.broker.clock.sleep(0.001)
            await self.inner.send(queue, messages, delays)

        self.later = asyncio.ensure_future(send())
        await self.broker.clock.sleep(0)
        return [None] * len(messages)

    async def aclose(self) -> None:
        if self.later is not None:
            self.later.cancel()
        await super().aclose()


@driver("sending.sends_may_run_at_the_same_time", "sending.one_id_may_be_stored_twice")
class SendTwice(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        await super().send(queue, messages, delays)
        await super().send(queue, messages, delays)
        raise UnsupportedError("answer lost")


@driver("sending.one_id_may_be_stored_twice")
class Deduplicating(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        seen = self.broker.seen
        new = [nth for nth, item in enumerate(messages) if (queue, item.id) not in seen]
        seen.update((queue, item.id) for item in messages)
        await super().send(queue, [messages[nth] for nth in new], [delays[nth] for nth in new])
        return [None] * len(messages)


@driver("sending.a_missing_queue_is_refused_and_not_made")
class QueueOnTheWay(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        try:
            return await super().send(queue, messages, delays)
        except QueueNotFoundError:
            await self.declare(QueueSpec(name=queue))
            return await super().send(queue, messages, delays)


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


@driver("leases.a_consumer_tells_its_lease")
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


@driver("failures.a_lost_connection_is_made_again")
class CutForGood(SoundDriver):
    async def cut(self) -> None:
        await self.inner.aclose()

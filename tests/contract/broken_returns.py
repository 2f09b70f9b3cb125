"""Consumers whose release, put_back or dead_letter is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from brokerwq.driver import Delivery, Mark, Results
from brokerwq.message import DeadLetterNote
from tests.contract.broken import consumer
from tests.contract.sound import SoundConsumer
from tests.contract.sound_capabilities import SOUND


@consumer("returning.a_release_counts", "returning.a_released_message_is_unchanged")
class UncountedRelease(SoundConsumer):
    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        return await self.put_back(deliveries, delays, [Mark()] * len(deliveries))


@consumer("delays.each_released_message_has_its_own_delay")
class OneDelayForAllReleases(SoundConsumer):
    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        return await super().release(deliveries, [max(delays, default=0)] * len(delays))


@consumer("delays.each_message_put_back_has_its_own_delay", "delays.a_delay_keeps_the_mark")
class DelayWithoutMark(SoundConsumer):
    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        if any(delays):
            return await self.release(deliveries, [max(delays)] * len(delays))
        return await super().put_back(deliveries, delays, marks)


@consumer("returning.a_put_back_does_not_count", "dead_letters.a_dead_letter_may_be_looked_at")
class CountedPutBack(SoundConsumer):
    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        return await self.release(deliveries, delays)


@consumer(
    "returning.a_put_back_writes_its_mark_and_nothing_else",
    "returning.each_put_back_has_its_own_mark",
)
class LostMarks(SoundConsumer):
    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        return await super().put_back(deliveries, delays, [Mark()] * len(marks))


@consumer("returning.a_put_back_writes_its_mark_and_nothing_else")
class StickyMarks(SoundConsumer):
    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        sticky = [
            replace(mark, suspect=mark.suspect or delivery.message.suspect)
            for mark, delivery in zip(marks, deliveries, strict=True)
        ]
        return await super().put_back(deliveries, delays, sticky)


@consumer("returning.each_put_back_has_its_own_mark")
class OneMarkForAll(SoundConsumer):
    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        return await super().put_back(deliveries, delays, list(marks[:1]) * len(marks))


@consumer("returning.a_cancelled_put_back_loses_nothing")
class AckThenCopy(SoundConsumer):
    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        results = await self.ack(deliveries)
        copies = [
            mark.on(delivery.message) for delivery, mark in zip(deliveries, marks, strict=True)
        ]
        await self.driver.inner.send(self.queue, copies, delays)
        return results


@consumer(
    "returning.a_cancelled_put_back_copies_nothing", "settling.a_repeated_put_back_is_harmless"
)
class UnshieldedCopy(SoundConsumer):
    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        copies = [
            mark.on(delivery.message) for delivery, mark in zip(deliveries, marks, strict=True)
        ]
        await self.driver.inner.send(self.queue, copies, delays)
        return await self.ack(deliveries)


@consumer(
    "dead_letters.a_dead_letter_leaves_its_queue",
    "dead_letters.each_dead_letter_has_its_own_note",
    "admin.declare_takes_another_dead_letter_queue",
)
class DroppedDeadLetter(SoundConsumer):
    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        return await self.ack(deliveries)


@consumer("dead_letters.a_dead_letter_is_the_message_with_its_note")
class DeadLetterWithAttempts(SoundConsumer):
    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        for delivery, note in zip(deliveries, notes, strict=True):
            copy = replace(delivery.message, dead=note)
            await self.driver.inner.send(self.broker.dead[self.queue], [copy], [0.0])
        return await self.ack(deliveries)


@consumer("dead_letters.each_dead_letter_has_its_own_note")
class OneNoteForAll(SoundConsumer):
    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        return await super().dead_letter(deliveries, list(notes[:1]) * len(notes))


@consumer(
    "dead_letters.a_cancelled_dead_letter_copies_nothing",
    "settling.a_repeated_dead_letter_is_harmless",
)
class DeadLetterInTwoSteps(SoundConsumer):
    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        copies = [
            replace(delivery.message, dead=note, attempts=0)
            for delivery, note in zip(deliveries, notes, strict=True)
        ]
        await self.driver.inner.send(self.broker.dead[self.queue], copies, [0.0] * len(copies))
        return await self.ack(deliveries)


@consumer("dead_letters.a_cancelled_dead_letter_loses_nothing")
class DeadLetterBackwards(SoundConsumer):
    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        results = await self.ack(deliveries)
        copies = [
            replace(delivery.message, dead=note, attempts=0)
            for delivery, note in zip(deliveries, notes, strict=True)
        ]
        await self.driver.inner.send(self.broker.dead[self.queue], copies, [0.0] * len(copies))
        return results


@consumer("returning.a_put_back_that_must_count_still_returns", can=SOUND["one at a time, counted"])
class UnderstatedReturn(SoundConsumer):
    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        return await self.inner.put_back(deliveries, delays, marks)


@consumer("delays.a_release_delay_above_the_limit_is_refused", can=SOUND["unfenced"])
class ClampedReleaseDelay(SoundConsumer):
    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        return await super().release(deliveries, [min(delay, 900.0) for delay in delays])


@consumer("delays.a_release_delay_of_ten_years_is_kept")
class ReleasedTooSoon(SoundConsumer):
    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        return await super().release(deliveries, [delay / 10**9 for delay in delays])


@consumer("dead_letters.a_short_note_is_enough")
class EmbellishedNotes(SoundConsumer):
    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        told = [replace(note, error=note.error or "unknown") for note in notes]
        return await super().dead_letter(deliveries, told)

"""Drivers whose send is broken: what is stored, when, or what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from brokerwq.driver import QueueSpec, Results
from brokerwq.errors import DriverError, MessageTooLargeError, QueueNotFoundError, UnsupportedError
from brokerwq.message import Message
from tests.contract.broken import driver
from tests.contract.sound import SoundDriver
from tests.contract.sound_capabilities import SOUND


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


@driver(
    "sending.the_largest_message_arrives_whole",
    "sending.a_batch_of_the_largest_size_is_sent",
    can=SOUND["unfenced"],
)
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


@driver("sending.an_empty_batch_is_no_call")
class EmptySendFails(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        if not messages:
            raise UnsupportedError("an empty batch")
        return await super().send(queue, messages, delays)


@driver("sending.a_large_message_arrives_whole", "sending.a_large_batch_is_sent")
class CutBodies(Garbling):
    def garbled(self, message: Message) -> Message:
        return replace(message, body=message.body[:1_000_000])


@driver("sending.a_cancelled_send_leaves_whole_messages")
class SendsAgainWhenCancelled(SoundDriver):
    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        try:
            results = await super().send(queue, messages, delays)
            await self.broker.clock.sleep(0)
        except asyncio.CancelledError:
            await self.inner.send(queue, messages, delays)
            raise
        return results

"""One channel with one AMQP consumer on it, and what it holds."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from pamqp import commands
from pamqp.common import FieldTable

from brokerwq.clock import Clock
from brokerwq_rabbitmq import wire
from brokerwq_rabbitmq.errors import consumer_timeout_of, is_stray_cancellation
from brokerwq_rabbitmq.frames import Arrival
from brokerwq_rabbitmq.transport import Settle, Transport

_CLOSE_SECONDS = 5.0
_MAX_PREFETCH = 65535
_FILL_SECONDS = 1.0
_FILL_PAUSE = 0.005
_FILL_RPC_SECONDS = 5.0
_QUIET_SECONDS = 0.2
"""How long nothing must have come before a consumer with room is cancelled: what comes together
from a delay queue comes within less."""
_QUIET_AT_MOST = 1.0


@dataclass(slots=True, eq=False)
class Held:
    """A delivery that has not been settled, or was; the handle of ``Delivery``.

    Attributes:
        lane: Where it came from.
        arrival: What came.
        arrived_at: Clock reading when it came.
        read: What it turned out to be.
        is_settled: Nothing more can be done with it.
    """

    lane: Lane
    arrival: Arrival
    arrived_at: float
    read: wire.Read
    is_settled: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether the broker still keeps it for us."""
        return not self.is_settled and self.lane.is_alive


class Lane:
    """See the module.

    Args:
        channel: Its own, without confirms.
        transport: The stream below it.
        clock: For arrival times.
        on_arrival: Called with each delivery.
        on_end: Called once when nothing more can arrive, with the reason.
        on_loss: Called with what was held when the broker has taken it back.
    """

    def __init__(
        self,
        channel: Channel,
        transport: Transport,
        clock: Clock,
        *,
        on_arrival: Callable[[Held], None],
        on_end: Callable[[Lane, BaseException | None], None],
        on_loss: Callable[[Collection[Held]], None],
    ) -> None:
        self._channel = channel
        self._transport = transport
        self._clock = clock
        self._on_arrival = on_arrival
        self._on_end = on_end
        self._on_loss = on_loss
        self._tags: list[str] = []
        self._queue = ""
        self.credit = 0
        self._timeout: float | None = None
        self._last_arrival_at = -math.inf
        self.held: dict[int, Held] = {}
        self.is_alive = True
        self.is_consuming = False
        self.learned_timeout: float | None = None
        closing: asyncio.Future[object] = channel.closing  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        closing.add_done_callback(self._on_closed)
        channel.on_consumer_cancel_callbacks.add(self._on_cancelled)

    async def consume(
        self, queue: str, prefetch: int, *, consumer_timeout: float | None, rpc_timeout: float
    ) -> None:
        """Start the flow of messages.

        Args:
            queue: Where from.
            prefetch: How many may be held at once.
            consumer_timeout: To be set for this consumer; None leaves it to the server.
            rpc_timeout: For each of the two questions.
        """
        self._queue = queue
        self._timeout = consumer_timeout
        self.is_consuming = True
        await self.grow(prefetch, rpc_timeout)

    async def grow(self, more: int, within: float) -> None:
        """Let ``more`` messages be held at once than until now.

        The prefetch of an AMQP consumer is fixed when it starts, so this is one more consumer
        beside the others.
        """
        more = max(1, min(more, _MAX_PREFETCH))
        self.credit += more
        tag = f"bwq-{uuid.uuid4()}"
        self._tags.append(tag)
        await self._channel.basic_qos(prefetch_count=more, timeout=within)
        await self._consume(tag, within)

    async def _consume(self, tag: str, within: float) -> None:
        arguments: FieldTable = (
            {} if self._timeout is None else {"x-consumer-timeout": int(self._timeout * 1000)}
        )
        if self._transport.reader is not None:
            self._transport.reader.consumers[tag] = self._on_delivery
        await self._channel.basic_consume(
            self._queue,
            _unheard,
            consumer_tag=tag,
            arguments=arguments,
            timeout=within,
        )

    async def ping(self, within: float) -> None:
        """Ask something that changes nothing: an answer proves that the channel is alive."""
        await self._channel.basic_qos(prefetch_count=1, timeout=within)

    async def cancel(self, within: float) -> None:
        """Stop the flow; on return nothing more arrives. What is held stays held."""
        if self.is_alive and self.is_consuming:
            # A quorum queue that assigns a message to a consumer just as that one is cancelled
            # never sends it: it is held by nobody until the channel ends, which counts. A full
            # consumer is assigned nothing, and one with room is left when nothing has come for
            # a while. What is published in this very moment can still be caught.
            await self._until_quiet(within)
            self.is_consuming = False
            for tag in self._tags:
                await self._channel.basic_cancel(tag, timeout=within)
            await self.ping(within)

    async def _until_quiet(self, within: float) -> None:
        give_up_at = self._clock.now() + min(within, _QUIET_AT_MOST)
        while True:
            await self.take_what_is_due(within)
            now = self._clock.now()
            rest = min(self._last_arrival_at + _QUIET_SECONDS, give_up_at) - now
            if len(self.held) >= self.credit or rest <= 0:
                return
            await self._clock.sleep(rest)

    async def take_what_is_due(self, within: float) -> None:
        """Wait until as much is held as may be, or the queue has no more."""
        now = self._clock.now()
        give_up_at, idle_at = now + within, now + _FILL_SECONDS
        count = len(self.held)
        while count < self.credit and now < min(give_up_at, idle_at):
            answer = await self._channel.queue_declare(
                self._queue, passive=True, timeout=_FILL_RPC_SECONDS
            )
            if not answer.message_count:
                return
            await self._clock.sleep(_FILL_PAUSE)
            now = self._clock.now()
            if len(self.held) != count:  # it comes, however slowly
                count, idle_at = len(self.held), now + _FILL_SECONDS

    def ack(self, settled: Sequence[Held]) -> None:
        """Ack; the run of what is held longest is one frame.

        Raises:
            ConnectionError: the connection is closed.
        """
        tags = {held.arrival.tag for held in settled if held.arrival.tag in self.held}
        run = 0
        for tag in self.held:
            if tag not in tags:
                break
            run = tag
        number = self._channel.number
        if run:
            self._transport.settle(number, Settle.ACK_UP_TO, (run,))
        single = sorted(tag for tag in tags if tag > run)
        if single:
            self._transport.settle(number, Settle.ACK, single)
        for tag in tags:
            self.held.pop(tag).is_settled = True

    def give_back(self, settled: Sequence[Held], how: Settle) -> None:
        """Return to the broker: ``REJECT`` counts, ``NACK`` does not from 4.3 on.

        Raises:
            ConnectionError: the connection is closed.
        """
        tags = [held.arrival.tag for held in settled if held.arrival.tag in self.held]
        self._transport.settle(self._channel.number, how, tags)
        for tag in tags:
            self.held.pop(tag).is_settled = True

    async def aclose(self) -> None:
        """Close the channel; what is still held comes back. Acks that were written go first."""
        self.is_alive = False
        self._forget()
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                try:
                    await self._channel.close()
                except asyncio.CancelledError as exc:
                    if not is_stray_cancellation(exc):
                        raise

    def _forget(self) -> None:
        if self._transport.reader is not None:
            for tag in self._tags:
                self._transport.reader.consumers.pop(tag, None)

    def _on_delivery(self, arrival: Arrival) -> None:
        if self.is_alive:
            self._last_arrival_at = now = self._clock.now()
            held = Held(self, arrival, now, wire.read(arrival))
            self.held[arrival.tag] = held
            self._on_arrival(held)

    def _on_closed(self, closing: asyncio.Future[object]) -> None:
        exc = None if closing.cancelled() else closing.exception()
        was_alive, self.is_alive = self.is_alive, False
        self._forget()
        self.is_consuming = False
        self.learned_timeout = consumer_timeout_of(exc)
        if was_alive:
            self._on_loss(set(self.held.values()))
            self._on_end(self, exc)

    def _on_cancelled(self, frame: commands.Basic.Cancel) -> None:
        if frame.consumer_tag not in self._tags or not self.is_consuming:
            return
        self.is_consuming = False
        if self._timeout is not None:
            # 4.3 takes back what was held too long, and says so in no other way. The rest
            # stays ours.
            longest = self._timeout - min(1.0, self._timeout / 10)
            since = self._clock.now() - longest
            taken = {held for held in self.held.values() if held.arrived_at <= since}
            for held in taken:
                held.is_settled = True
                del self.held[held.arrival.tag]
            self._on_loss(taken)
        self._on_end(self, None)


async def _unheard(_: DeliveredMessage) -> None:
    """For the client library, which is never told of a delivery."""

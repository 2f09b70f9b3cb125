"""One channel with one AMQP consumer on it, and what it holds."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from pamqp import commands
from pamqp.common import FieldTable

from brokerwq.clock import Clock
from brokerwq_rabbitmq import wire
from brokerwq_rabbitmq.errors import consumer_timeout_of, is_stray_cancellation

_CLOSE_SECONDS = 5.0
# The client's write queue is never emptied again once its writer has died.
_WRITE_SECONDS = 10.0
_MAX_PREFETCH = 65535


@dataclass(slots=True, eq=False)
class Held:
    """A delivery that has not been settled, or was; the handle of ``Delivery``.

    Attributes:
        lane: Where it came from.
        tag: Its delivery tag there.
        arrived_at: Clock reading when it came.
        received: What came.
        is_settled: Nothing more can be done with it.
    """

    lane: Lane
    tag: int
    arrived_at: float
    received: wire.Received
    is_settled: bool = False
    read: wire.Read = field(init=False)

    def __post_init__(self) -> None:
        self.read = wire.read(self.received)

    @property
    def is_ours(self) -> bool:
        """Whether the broker still keeps it for us."""
        return not self.is_settled and self.lane.is_alive


class Lane:
    """See the module.

    Args:
        channel: Its own, without confirms.
        clock: For arrival times.
        on_arrival: Called with each delivery.
        on_end: Called once when nothing more can arrive, with the reason.
    """

    def __init__(
        self,
        channel: Channel,
        clock: Clock,
        on_arrival: Callable[[Held], None],
        on_end: Callable[[Lane, BaseException | None], None],
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._on_arrival = on_arrival
        self._on_end = on_end
        self._tags: list[str] = []
        self._queue = ""
        self.credit = 0
        self._timeout: float | None = None
        # An ack of all tags up to one must not overtake a return of one among them.
        self._writing = asyncio.Lock()
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
        await self._channel.basic_consume(
            self._queue,
            self._on_message,
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
            self.is_consuming = False
            for tag in self._tags:
                await self._channel.basic_cancel(tag, timeout=within)

    async def ack(self, settled: Sequence[Held]) -> None:
        """Ack; the run of what is held longest is one frame."""
        async with self._writing, asyncio.timeout(_WRITE_SECONDS):
            tags = {held.tag for held in settled if held.tag in self.held}
            run = 0
            for tag in list(self.held):
                if tag not in tags:
                    break
                run = tag
            single = sorted(tag for tag in tags if tag > run)
            # The last one waits until it is written, and so the others are.
            if run:
                await self._channel.basic_ack(run, multiple=True, wait=not single)
            for tag in single:
                await self._channel.basic_ack(tag, wait=tag == single[-1])
            for tag in tags:
                self.held.pop(tag).is_settled = True

    async def reject(self, held: Held) -> None:
        """Return one, counted by the broker."""
        async with self._writing, asyncio.timeout(_WRITE_SECONDS):
            if self._take_out(held):
                await self._channel.basic_reject(held.tag, requeue=True, wait=False)

    async def nack(self, held: Held) -> None:
        """Return one; not counted from RabbitMQ 4.3 on."""
        async with self._writing, asyncio.timeout(_WRITE_SECONDS):
            if self._take_out(held):
                await self._channel.basic_nack(held.tag, requeue=True, wait=False)

    def _take_out(self, held: Held) -> bool:
        held.is_settled = True
        return self.held.pop(held.tag, None) is not None

    async def aclose(self) -> None:
        """Close the channel; what is still held comes back. Acks that were written go first."""
        self.is_alive = False
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                try:
                    await self._channel.close()
                except asyncio.CancelledError as exc:
                    if not is_stray_cancellation(exc):
                        raise

    async def _on_message(self, message: DeliveredMessage) -> None:
        delivery = message.delivery
        if not isinstance(delivery, commands.Basic.Deliver) or not self.is_alive:
            return
        headers = message.header.properties.headers or {}
        raw = headers.get("", b"")
        held = Held(
            lane=self,
            tag=delivery.delivery_tag or 0,
            arrived_at=self._clock.now(),
            received=wire.Received(
                raw=bytes(raw) if isinstance(raw, bytearray) else b"\0\0",
                body=message.body,
                redelivered=bool(delivery.redelivered),
                exchange=delivery.exchange or "",
                routing_key=delivery.routing_key or "",
            ),
        )
        self.held[held.tag] = held
        self._on_arrival(held)

    def _on_closed(self, closing: asyncio.Future[object]) -> None:
        exc = None if closing.cancelled() else closing.exception()
        was_alive, self.is_alive = self.is_alive, False
        self.is_consuming = False
        self.learned_timeout = consumer_timeout_of(exc)
        if was_alive:
            self._on_end(self, exc)

    def _on_cancelled(self, frame: commands.Basic.Cancel) -> None:
        if frame.consumer_tag not in self._tags or not self.is_consuming:
            return
        self.is_consuming = False
        if self._timeout is not None:
            # 4.3 takes back what was held too long, and says so in no other way. The rest
            # stays ours.
            now = self._clock.now()
            for held in list(self.held.values()):
                if now - held.arrived_at >= self._timeout - 1.0:
                    held.is_settled = True
                    del self.held[held.tag]
        self._on_end(self, None)

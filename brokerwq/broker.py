"""The broker as users hold it: a connection, and the claim/ack/extend interface on it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

from brokerwq._runtime.loop_end import closed_at_loop_end
from brokerwq._runtime.pauses import Pauses
from brokerwq._runtime.sending import QueueSender
from brokerwq._runtime.shared_call import SharedCall
from brokerwq.claimer import Claimer
from brokerwq.clock import SYSTEM_CLOCK, Clock, move_on_after
from brokerwq.driver.capabilities import Capabilities
from brokerwq.driver.doctor import check_dead_letter_way
from brokerwq.driver.protocol import (
    Difference,
    Driver,
    QueueSpec,
    QueueStats,
    capabilities_of,
)
from brokerwq.driver.spec import check_queue_name, check_spec
from brokerwq.driver.support import in_short, listed
from brokerwq.durations import Seconds, positive_seconds, seconds_of
from brokerwq.envelope import check_user_headers
from brokerwq.errors import (
    ClosedError,
    ConfigError,
    ConnectionLostError,
    DriverError,
    PayloadError,
    QueueMismatchError,
    TransientError,
)
from brokerwq.events import Instrumentation
from brokerwq.limits import MAX_DELAY, MAX_LEASE, MAX_SLOTS, MIN_LEASE
from brokerwq.message import Message, Outgoing, new_message_id
from brokerwq.workers.names import check_id
from brokerwq.workers.options import check_count

CONNECT_TIMEOUT = 10.0
"""Seconds for which connecting and sending are tried again before they raise."""
MAX_LABEL_BYTES = 255
"""Of a type or content type: what AMQP 0-9-1 calls a short string."""
_CLOSE_SECONDS = 5.0
_QUEUE_SECONDS = 60.0
"""For one call about a queue: deleting a million messages takes its time."""

T = TypeVar("T")


class Broker:
    """One broker, for use on one event loop. Made by ``connect`` or by an ``App``."""

    def __init__(
        self,
        driver: Driver,
        *,
        clock: Clock = SYSTEM_CLOCK,
        connect_timeout: float = CONNECT_TIMEOUT,
        instrumentation: Instrumentation | None = None,
        specs: Mapping[str, QueueSpec] | None = None,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._connect_timeout = connect_timeout
        self._instrumentation = instrumentation
        # Not `or`: workers may be added later to what is empty now.
        self._specs: Mapping[str, QueueSpec] = {} if specs is None else specs
        self._declared: set[str] = set()
        self._senders: dict[str, QueueSender] = {}
        self._opening = SharedCall(self._open)
        self._declaring: dict[str, SharedCall] = {}
        self._is_open = False
        self._is_closed = False
        self._at_loop_end: AsyncGenerator[None] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, by ``aclose`` or since its loop ended."""
        return self._is_closed

    @property
    def capabilities(self) -> Capabilities:
        """What this broker can do."""
        return self._driver.capabilities

    async def open(self) -> None:
        """Connect, trying again for ``connect_timeout`` seconds.

        Raises:
            DriverError: it could not be reached in that time, or it refused.
            ClosedError: this object has been closed.
        """
        if self._is_closed:
            msg = "this broker is closed; connect again"
            raise ClosedError(msg)
        if not self._is_open:
            await self._opening.wait()

    async def aclose(self) -> None:
        """Disconnect. The end of the loop does it as well."""
        self._is_closed = True
        for sender in self._senders.values():
            await sender.aclose()
        if self._is_open:
            self._is_open = False
            with move_on_after(self._clock, _CLOSE_SECONDS):
                await self._driver.aclose()
        guard, self._at_loop_end = self._at_loop_end, None
        if guard is not None:
            with suppress(RuntimeError):  # it is what calls this, since the loop ends
                await guard.aclose()

    # -- sending --------------------------------------------------------------------------

    async def send(
        self,
        queue: str,
        body: bytes,
        *,
        type: str = "",  # noqa: A002 -- the word for it everywhere else
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/octet-stream",
        delay: Seconds = 0.0,
        id: str | None = None,  # noqa: A002 -- as above
    ) -> str:
        """Send one message; its id.

        On return the broker has accepted it for keeping.

        Args:
            queue: Where to.
            body: Its bytes, opaque to the broker.
            type: The worker that is meant to run it.
            headers: The sender's own, text to text.
            content_type: Media type of ``body``.
            delay: Seconds or ``timedelta``; it is run no sooner. Negative means now.
            id: Its id; a new one if None.

        Raises:
            ConfigError: a name, a header or the delay is wrong; nothing was sent.
            PayloadError: the body is not bytes; nothing was sent.
            DriverError: it was not accepted, as far as is known.
        """
        check_queue_name(queue)
        message = Message(
            id=new_message_id() if id is None else check_id(id, "id"),
            body=_bytes(body),
            type=_label(type, "type"),
            content_type=_label(content_type, "content_type"),
            headers={} if headers is None else check_user_headers(headers),
            created_at=self._clock.utcnow(),
        )
        await self.send_one(queue, message, seconds_of(delay, "delay", floor=0.0, limit=MAX_DELAY))
        return message.id

    async def send_one(self, queue: str, message: Message, delay: float = 0.0, /) -> None:
        """Send a message that is made already; see ``send``."""
        await self._to(queue).send_one(message, delay)

    async def send_batch(
        self, queue: str, outgoing: Sequence[Outgoing], /
    ) -> Sequence[DriverError | None]:
        """Send many, each with its delay in seconds; one answer each, None for accepted."""
        return await self._to(queue).send_batch(outgoing)

    # -- queues ---------------------------------------------------------------------------

    async def declare(self, spec: QueueSpec, /, *, check_only: bool = False) -> list[Difference]:
        """Create a queue and its dead-letter queue, or compare them; the differences.

        With any, nothing was created.

        Raises:
            QueueNotFoundError: ``check_only`` and there is no such queue.
        """
        check_spec(spec)
        driver = await self._connected()
        check_dead_letter_way(spec, driver)
        declaring = driver.declare(spec, check_only=check_only)
        differences = list(await self._in_time(declaring, "declare"))
        if not differences:
            self._declared.add(spec.name)
        return differences

    async def inspect(self, queue: str, /) -> QueueStats:
        """Count a queue's messages.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        check_queue_name(queue)
        driver = await self._connected()
        return await self._in_time(driver.inspect(queue), "inspect")

    async def purge(self, queue: str, /) -> None:
        """Delete a queue's ready and delayed messages.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        check_queue_name(queue)
        driver = await self._connected()
        await self._in_time(driver.purge(queue), "purge")

    async def queues(self) -> list[str]:
        """The names of the queues that exist.

        Raises:
            UnsupportedError: this broker does not tell.
        """
        driver = await self._connected()
        return list(await self._in_time(driver.queues(), "queues"))

    @asynccontextmanager
    async def claimer(
        self, queue: str, /, *, lease: Seconds | None = None, prefetch: int = 1
    ) -> AsyncGenerator[Claimer]:
        """Claim messages one by one or a few at a time, and settle them yourself.

        Leaving the block puts back nothing by itself: what was not settled comes back when
        its lease ends.

        Args:
            queue: Its name.
            lease: Seconds a claim lasts unless extended; None takes the queue's own.
            prefetch: How many messages a broker that pushes may send ahead.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        check_queue_name(queue)
        check_count(prefetch, "prefetch", MAX_SLOTS)
        seconds = None
        if lease is not None:
            seconds = positive_seconds(lease, "lease", limit=MAX_LEASE, least=MIN_LEASE)
        driver = await self._connected()
        consuming = driver.consume(queue, lease=seconds, prefetch=prefetch)
        consumer = await self._in_time(consuming, "consume")
        claimer = Claimer(consumer, capabilities_of(consumer, driver), self._clock)
        try:
            yield claimer
        finally:
            await claimer.aclose()

    async def driver(self) -> Driver:
        """The driver, connected: the contract that ``brokerwq.driver`` describes."""
        return await self._connected()

    # -- connecting -----------------------------------------------------------------------

    def _to(self, queue: str) -> QueueSender:
        sender = self._senders.get(queue)
        if sender is None:

            async def driver() -> Driver:
                return await self._ready_for(queue)

            sender = self._senders[queue] = QueueSender(
                queue,
                driver,
                clock=self._clock,
                patience=self._connect_timeout,
                instrumentation=self._instrumentation,
            )
        return sender

    async def _connected(self) -> Driver:
        if not self._is_open:
            await self.open()
        return self._driver

    async def _in_time(self, call: Awaitable[T], what: str) -> T:
        with move_on_after(self._clock, _QUEUE_SECONDS):
            return await call
        msg = f"{what}: the broker did not answer within {_QUEUE_SECONDS:g} seconds"
        raise TransientError(msg)

    async def _ready_for(self, queue: str) -> Driver:
        driver = await self._connected()
        if queue not in self._declared:
            declaring = self._declaring.get(queue)
            if declaring is None:
                declaring = SharedCall(partial(self._declare_known, driver, queue))
                self._declaring[queue] = declaring
            await declaring.wait()
        return driver

    async def _declare_known(self, driver: Driver, queue: str) -> None:
        spec = self._specs.get(queue)
        if spec is not None and spec.declare == "never":
            # Who only sends to somebody else's queue has nothing to do with its dead letters.
            spec = replace(spec, on_dead="hold")
        if spec is not None:
            await self._in_time(_declare(driver, spec), "declare")
        self._declared.add(queue)

    async def _open(self) -> None:
        await self._open_patiently()
        if self._is_closed:
            await self._driver.aclose()
            msg = "this broker was closed before it was open"
            raise ClosedError(msg)
        self._is_open = True
        self._at_loop_end = closed_at_loop_end(self.aclose)
        await anext(self._at_loop_end)

    async def _open_patiently(self) -> None:
        until = self._clock.now() + self._connect_timeout
        pauses = Pauses(self._connect_timeout / 4)
        error: DriverError | None = None
        while True:
            error = await self._try_to_open(until - self._clock.now(), error)
            if error is None:
                return
            pause = pauses.next()
            if not error.retryable or self._clock.now() + pause > until:
                raise in_short(error)
            await self._clock.sleep(pause)

    async def _try_to_open(self, seconds: float, before: DriverError | None) -> DriverError | None:
        with move_on_after(self._clock, seconds):
            try:
                await self._driver.open()
            except DriverError as error:
                return error
            return None
        msg = f"the broker did not answer within {self._connect_timeout:g} seconds"
        return before or ConnectionLostError(msg)


def _bytes(body: object) -> bytes:
    if not isinstance(body, bytes | bytearray | memoryview):
        msg = f"a body is bytes, not {type(body).__name__}; encode it, or use a worker's enqueue"
        raise PayloadError(msg)
    return bytes(cast("bytes | bytearray", body))  # of a memoryview's items nothing is asked


def _label(text: object, what: str) -> str:
    if not isinstance(text, str) or not text.isprintable() or len(text.encode()) > MAX_LABEL_BYTES:
        msg = f"{what} must be at most {MAX_LABEL_BYTES} bytes of printable text, not {text!r:.200}"
        raise ConfigError(msg)
    return text


async def _declare(driver: Driver, spec: QueueSpec) -> None:
    check_dead_letter_way(spec, driver)
    if differences := await driver.declare(spec.asked, check_only=spec.declare != "create"):
        raise QueueMismatchError(listed(differences))

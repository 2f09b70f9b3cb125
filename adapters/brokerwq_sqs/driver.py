"""A connection to Amazon SQS, or to a server that speaks its language."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, cast

from brokerwq.clock import Clock
from brokerwq.driver import (
    UNKNOWN_COUNT,
    Capabilities,
    Certainty,
    Consumer,
    Count,
    Difference,
    QueueSpec,
    QueueStats,
    Results,
)
from brokerwq.driver.doctor import Finding
from brokerwq.driver.rules import sqs as rules
from brokerwq.driver.rules.sqs import MAX_LEASE, SHORTEST_LEASE
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.errors import (
    ClosedError,
    ConfigError,
    DriverError,
    PermissionDeniedError,
    QueueNotFoundError,
)
from brokerwq.message import Message
from brokerwq_sqs import wire
from brokerwq_sqs.abilities import abilities
from brokerwq_sqs.batch import Entry, call_batch, probe
from brokerwq_sqs.client import Api, open_apis
from brokerwq_sqs.consumer import SqsConsumer
from brokerwq_sqs.copies import entry_of
from brokerwq_sqs.examination import examine
from brokerwq_sqs.names import emulator_of, joined_prefix, queue_name, short_name
from brokerwq_sqs.polls import Polls
from brokerwq_sqs.queues import Queue, Queues
from brokerwq_sqs.settings import SqsSettings
from brokerwq_sqs.topology import Topology, check_spec

_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class SqsDriver:
    """See ``brokerwq.driver.Driver``."""

    def __init__(self, settings: SqsSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._open: _Open | None = None
        self._capabilities = abilities(settings, is_fifo=settings.fifo)

    @property
    def capabilities(self) -> Capabilities:
        """See ``Driver.capabilities``. Of FIFO queues, if the settings say ``fifo``."""
        return self._capabilities

    async def open(self) -> None:
        """See ``Driver.open``. One request proves the endpoint and the credentials."""
        if self._open is not None:
            return
        async with AsyncExitStack() as stack:
            receive, control = await open_apis(self._settings, self._clock, stack)
            with suppress(PermissionDeniedError):  # it answered, and knows who we are
                await control("list_queues", "", MaxResults=1)
            self._open = _Open(self._settings, receive, control, stack.pop_all())

    async def aclose(self) -> None:
        """See ``Driver.aclose``."""
        connection, self._open = self._open, None
        if connection is not None:
            await connection.aclose()

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """See ``Driver.send``."""
        waits = [math.ceil(seconds_of(delay, "delay", floor=0.0)) for delay in delays]
        connection = self._entered()
        target = await connection.queues.find(queue)
        encoded = [_encoded(message) for message in messages]
        largest = max((one.size for one in encoded), default=0)
        limit = await connection.queues.limit(target, largest)
        results: list[DriverError | None] = [None] * len(messages)
        entries: list[Entry] = []
        places: list[int] = []
        for nth, (message, one, wait) in enumerate(zip(messages, encoded, waits, strict=True)):
            results[nth] = rules.refusal(
                target.label, one.size, wait, limit=limit, is_fifo=target.is_fifo
            )
            if results[nth] is None:
                entries.append(_entry(target, message, one, wait))
                places.append(nth)
        if not entries:
            return results
        try:
            answers: Results = await call_batch(
                connection.control, "send_message_batch", target, entries
            )
        except DriverError as exc:
            if isinstance(exc, QueueNotFoundError):
                connection.queues.forget(queue)
            if len(entries) == len(results):
                raise
            answers = [exc] * len(entries)
        for nth, answer in zip(places, answers, strict=True):
            results[nth] = answer
        return results

    async def foresee(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """See ``brokerwq.driver.moving.Foresight``."""
        waits = [math.ceil(seconds_of(delay, "delay", floor=0.0)) for delay in delays]
        connection = self._entered()
        sizes = [_encoded(message).size for message in messages]
        is_fifo, limit = connection.queues.named(queue).is_fifo, wire.MAX_BYTES
        with suppress(QueueNotFoundError):  # one that is made then has the service's own limit
            target = await connection.queues.find(queue)
            limit = await connection.queues.limit(target, max(sizes, default=0))
        return [
            rules.refusal(queue, size, wait, limit=limit, is_fifo=is_fifo)
            for size, wait in zip(sizes, waits, strict=True)
        ]

    def abilities(self, queue: str, /) -> Capabilities:
        """See ``brokerwq.driver.moving.Varied``."""
        name = queue_name(queue, self._settings)
        return abilities(self._settings, is_fifo=name.is_fifo)

    async def identity(self, queue: str, /) -> str:
        """See ``brokerwq.driver.moving.Identified``."""
        connection = self._entered()
        try:
            found = await connection.queues.find(queue)
            attributes = await connection.queues.attributes(found, "QueueArn")
        except QueueNotFoundError:
            return ""
        # Every emulator says the same account; what tells two of them apart is their address.
        return f"{attributes.get('QueueArn', '')} {self._emulator(found.url)}"

    async def place(self, queue: str, /) -> str:
        """See ``brokerwq.driver.moving.Located``. The account is known by the queue's URL."""
        connection = self._entered()
        try:
            url = (await connection.queues.find(queue)).url
        except QueueNotFoundError:
            return ""
        service = self._emulator(url) or "aws"
        account = url.rsplit("/", 2)[-2]
        region = connection.control.region or self._settings.region or ""
        kind = "*.fifo" if self._settings.fifo else "*"
        return f"sqs://{service}/{account}/{region}/{joined_prefix(self._settings)}{kind}"

    def _emulator(self, url: str) -> str:
        """The address of an emulator, which may tell another one in its queues' URLs."""
        return emulator_of(self._entered().control.endpoint or url)

    async def forbidden(self, queue: str, /, *, takes: bool) -> PermissionDeniedError | None:
        """See ``brokerwq.driver.moving.Rights``."""
        connection = self._entered()
        try:
            found = await connection.queues.find(queue)
            await probe(connection.control, found, takes=takes)
        except PermissionDeniedError as exc:
            return exc
        except DriverError:
            return None
        return None

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        """See ``Driver.consume``. SQS does not push: there is nothing to prefetch.

        Leases are whole seconds and at least ``SHORTEST_LEASE``.
        """
        if lease is not None:
            seconds = positive_seconds(lease, "lease")
            if seconds > MAX_LEASE:
                raise rules.lease_refusal(seconds)
        connection = self._entered()
        connection.queues.forget(queue)  # it may have been deleted since it was met
        source = await connection.queues.find(queue)
        if lease is None:
            found = await connection.queues.attributes(source, "VisibilityTimeout")
            lease = float(found["VisibilityTimeout"])
            if not 0 < lease <= MAX_LEASE:
                msg = (
                    f"queue {queue} hides a received message for {lease:g} seconds; "
                    f"give the worker a lease of 1 to {MAX_LEASE:g} seconds"
                )
                raise ConfigError(msg)
        whole = max(math.ceil(lease), SHORTEST_LEASE)
        polls = Polls(connection.receive, source, whole, self._clock, self._settings)
        consumer = SqsConsumer(
            connection.control,
            connection.queues,
            source,
            polls,
            lease=whole,
            capabilities=abilities(self._settings, is_fifo=source.is_fifo),
            clock=self._clock,
        )
        connection.consumers = {one for one in connection.consumers if not one.is_closed}
        connection.consumers.add(consumer)
        return consumer

    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """See ``Driver.declare``."""
        connection = self._entered()
        async with connection.declaring:  # who comes second finds what the first has made
            topology = Topology(connection.control, connection.queues)
            differences = await topology.declare(spec, check_only=check_only)
            connection.queues.remember(spec)
            return differences

    async def declare_dead_letter(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """See ``brokerwq.driver.doctor.DeadLetterMaker``."""
        connection = self._entered()
        async with connection.declaring:
            topology = Topology(connection.control, connection.queues)
            return await topology.declare_dead_letter(spec, check_only=check_only)

    async def examine(self, spec: QueueSpec, /) -> Sequence[Finding]:
        """See ``brokerwq.driver.doctor.Doctor``."""
        connection = self._entered()
        check_spec(spec, connection.queues)
        return await examine(spec, connection.queues)

    async def inspect(self, queue: str, /) -> QueueStats:
        """See ``Driver.inspect``. All counts are estimates that lag by a minute."""
        connection = self._entered()
        found = await connection.queues.find(queue)
        ready, leased, delayed = await self._count(connection, found)
        dead = UNKNOWN_COUNT
        with suppress(QueueNotFoundError, PermissionDeniedError):
            target = await connection.queues.dead_letter(found)
            counts = await self._count(connection, target)
            dead = Count(sum(counts), Certainty.ESTIMATE)
        return QueueStats(
            ready=Count(ready, Certainty.ESTIMATE),
            leased=Count(leased, Certainty.ESTIMATE),
            delayed=Count(delayed, Certainty.ESTIMATE),
            dead=dead,
        )

    async def purge(self, queue: str, /) -> None:
        """See ``Driver.purge``. Takes up to a minute, takes leased ones too, once a minute."""
        connection = self._entered()
        found = await connection.queues.find(queue)
        await connection.control("purge_queue", queue, QueueUrl=found.url)

    async def queues(self) -> Sequence[str]:
        """See ``Driver.queues``: those that the prefix reaches."""
        connection = self._entered()
        prefix = joined_prefix(self._settings)
        names: list[str] = []
        token: str | None = None
        while True:
            more: dict[str, Any] = {} if token is None else {"NextToken": token}
            answer = await connection.control(
                "list_queues", "", QueueNamePrefix=prefix, MaxResults=1000, **more
            )
            for url in answer.get("QueueUrls") or ():
                name = short_name(str(url).rpartition("/")[2], self._settings)
                if name is not None:
                    names.append(name)
            token = answer.get("NextToken")
            if not token:
                return sorted(names)

    async def _count(self, connection: _Open, queue: Queue) -> list[int]:
        try:
            found = await connection.queues.attributes(queue, *_COUNTS)
        except QueueNotFoundError:
            connection.queues.forget(queue.label)
            raise
        return [int(found.get(name, 0)) for name in _COUNTS]

    def _entered(self) -> _Open:
        if self._open is None:
            msg = "the driver is not open"
            raise ClosedError(msg)
        return self._open


class _Open:
    """What a driver has while it is open."""

    def __init__(
        self, settings: SqsSettings, receive: Api, control: Api, clients: AsyncExitStack
    ) -> None:
        self.receive = receive
        self.control = control
        self.queues = Queues(control, settings)
        self.consumers: set[SqsConsumer] = set()
        self.declaring = asyncio.Lock()
        self._clients = clients

    async def aclose(self) -> None:
        try:
            await asyncio.gather(*(consumer.aclose() for consumer in self.consumers))
            await self.receive.aclose()
            await self.control.aclose()
        finally:
            await self._clients.aclose()


def _encoded(message: Message) -> wire.Encoded:
    body, attributes = message.raw.get("Body"), message.raw.get("MessageAttributes")
    if isinstance(body, str) and isinstance(attributes, dict):
        # Somebody else's message that was received from SQS, on its way back there.
        native = cast("wire.NativeAttributes", attributes)
        copy = wire.encode_copy(body, native, message, make_room=True)
        if copy is not None:
            return copy
    return wire.encode(message)


def _entry(queue: Queue, message: Message, encoded: wire.Encoded, wait: int) -> Entry:
    if queue.is_fifo:
        # Without a group of its own a message waits for no other.
        arguments = entry_of(encoded)
        arguments["MessageGroupId"] = wire.group_id(message.group or message.id)
        arguments["MessageDeduplicationId"] = wire.send_id(message)
    else:
        # Said even where it is 0, since the queue may have a delay of its own.
        arguments = entry_of(encoded, wait)
        if message.group:
            arguments["MessageGroupId"] = wire.group_id(message.group)
    return Entry(arguments, encoded.size)


if TYPE_CHECKING:
    from brokerwq.driver import Driver
    from brokerwq.driver.doctor import Doctor

    _driver: type[Driver] = SqsDriver
    _doctor: type[Doctor] = SqsDriver
    _consumer: type[Consumer] = SqsConsumer

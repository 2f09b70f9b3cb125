"""A driver with faults on purpose: scripted or at random, and the same for the same seed.

Wrap a driver, then say which calls shall go wrong and how::

    faults = Faults(seed=7)
    faults.add("ack", Fail(ConnectionLostError("cut")), times=2)
    faults.add("send", Delay(3.0), chance=0.1, times=None)
    driver = FaultyDriver(inner, faults)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from brokerwq.driver.capabilities import Capabilities
from brokerwq.driver.protocol import (
    UNKNOWN_COUNT,
    Consumer,
    Delivery,
    Difference,
    Driver,
    Mark,
    QueueSpec,
    QueueStats,
    Results,
)
from brokerwq.message import DeadLetterNote, Message
from brokerwq.testing.fault_plan import (
    Call,
    Delay,
    Drop,
    Duplicate,
    Fail,
    Fault,
    Faults,
    Hang,
    LoseAnswer,
    Operation,
    Partly,
)

__all__ = [
    "Call",
    "Delay",
    "Drop",
    "Duplicate",
    "Fail",
    "Fault",
    "Faults",
    "FaultyConsumer",
    "FaultyDriver",
    "Hang",
    "LoseAnswer",
    "Operation",
    "Partly",
]

R = TypeVar("R")

_Batch: TypeAlias = Callable[[Sequence[int]], Awaitable[Results]]


async def _strike(
    faults: Faults, fault: Fault | None, call: Callable[[], Awaitable[R]], dropped: R
) -> R:
    match fault:
        case Fail(error):
            raise error
        case LoseAnswer(error):
            await call()
            raise error
        case Hang():
            await asyncio.get_running_loop().create_future()
            return dropped
        case Drop():
            return dropped
        case Duplicate():
            answer = await call()
            await call()
            return answer
        case Delay(seconds):
            await faults.clock.sleep(seconds)
            return await call()
        case _:
            return await call()


async def _strike_batch(faults: Faults, operation: Operation, items: int, call: _Batch) -> Results:
    """``call`` gets the places of the items that the broker shall be asked for."""
    fault = faults.next(operation, items)
    everything = range(items)
    if not isinstance(fault, Partly):
        return await _strike(faults, fault, lambda: call(everything), [None] * items)
    failing = faults.failing(fault, items)
    asked = [nth for nth in everything if nth not in failing]
    answers = iter(await call(asked))
    return [fault.error if nth in failing else next(answers) for nth in everything]


def _pick(items: Sequence[R], places: Sequence[int]) -> list[R]:
    return [items[place] for place in places]


class FaultyConsumer:
    """A consumer whose calls go wrong as ``faults`` says; see ``FaultyDriver``."""

    def __init__(self, inner: Consumer, faults: Faults) -> None:
        self.inner: Consumer = inner
        self.faults: Faults = faults

    @property
    def lease(self) -> float:
        """See ``Consumer.lease``."""
        return self.inner.lease

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        """See ``Consumer.claim``."""
        fault = self.faults.next("claim", max_items)
        if isinstance(fault, Duplicate):
            return [item for item in await self.inner.claim(max_items, wait) for _ in range(2)]
        nothing: Sequence[Delivery] = []
        return await _strike(self.faults, fault, lambda: self.inner.claim(max_items, wait), nothing)

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        """See ``Consumer.ack``."""
        return await _strike_batch(
            self.faults,
            "ack",
            len(deliveries),
            lambda places: self.inner.ack(_pick(deliveries, places)),
        )

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        """See ``Consumer.extend``."""
        return await _strike_batch(
            self.faults,
            "extend",
            len(deliveries),
            lambda places: self.inner.extend(_pick(deliveries, places), seconds),
        )

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        """See ``Consumer.release``."""
        return await _strike_batch(
            self.faults,
            "release",
            len(deliveries),
            lambda places: self.inner.release(_pick(deliveries, places), _pick(delays, places)),
        )

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        """See ``Consumer.put_back``."""
        return await _strike_batch(
            self.faults,
            "put_back",
            len(deliveries),
            lambda places: self.inner.put_back(
                _pick(deliveries, places), _pick(delays, places), _pick(marks, places)
            ),
        )

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        """See ``Consumer.dead_letter``."""
        return await _strike_batch(
            self.faults,
            "dead_letter",
            len(deliveries),
            lambda places: self.inner.dead_letter(_pick(deliveries, places), _pick(notes, places)),
        )

    async def quiesce(self) -> None:
        """See ``Consumer.quiesce``."""
        fault = self.faults.next("quiesce", 0)
        await _strike(self.faults, fault, self.inner.quiesce, None)

    async def aclose(self) -> None:
        """See ``Consumer.aclose``; nothing goes wrong with it."""
        await self.inner.aclose()


class FaultyDriver:
    """A driver whose calls, and those of its consumers, go wrong as ``faults`` says.

    Without faults it does what the driver inside does, so it may be subclassed where one
    method shall be different.
    """

    def __init__(self, inner: Driver, faults: Faults | None = None) -> None:
        self.inner: Driver = inner
        self.faults: Faults = Faults() if faults is None else faults

    @property
    def capabilities(self) -> Capabilities:
        """See ``Driver.capabilities``."""
        return self.inner.capabilities

    async def open(self) -> None:
        """See ``Driver.open``."""
        await _strike(self.faults, self.faults.next("open", 0), self.inner.open, None)

    async def aclose(self) -> None:
        """See ``Driver.aclose``; nothing goes wrong with it."""
        await self.inner.aclose()

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """See ``Driver.send``."""
        return await _strike_batch(
            self.faults,
            "send",
            len(messages),
            lambda places: self.inner.send(queue, _pick(messages, places), _pick(delays, places)),
        )

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        """See ``Driver.consume``. What cannot be dropped or doubled goes well."""
        fault = self.faults.next("consume", 0)
        if isinstance(fault, Drop | Duplicate):
            fault = None
        made: list[Consumer] = []

        async def consume() -> None:
            made.append(await self.inner.consume(queue, lease=lease, prefetch=prefetch))

        await _strike(self.faults, fault, consume, None)
        return self.wrap(made[0])

    def wrap(self, consumer: Consumer) -> Consumer:
        """The consumer that ``consume`` answers for the one inside; for subclasses."""
        return FaultyConsumer(consumer, self.faults)

    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """See ``Driver.declare``."""
        nothing: Sequence[Difference] = []
        return await _strike(
            self.faults,
            self.faults.next("declare", 0),
            lambda: self.inner.declare(spec, check_only=check_only),
            nothing,
        )

    async def inspect(self, queue: str, /) -> QueueStats:
        """See ``Driver.inspect``."""
        return await _strike(
            self.faults,
            self.faults.next("inspect", 0),
            lambda: self.inner.inspect(queue),
            QueueStats(ready=UNKNOWN_COUNT),
        )

    async def purge(self, queue: str, /) -> None:
        """See ``Driver.purge``."""
        await _strike(
            self.faults, self.faults.next("purge", 0), lambda: self.inner.purge(queue), None
        )

    async def queues(self) -> Sequence[str]:
        """See ``Driver.queues``."""
        nothing: Sequence[str] = []
        return await _strike(self.faults, self.faults.next("queues", 0), self.inner.queues, nothing)

"""What a check works with: a driver under test, and the words in which checks are written."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from brokerwq.clock import Clock
from brokerwq.driver.capabilities import Capabilities
from brokerwq.driver.protocol import Consumer, Delivery, Driver, QueueSpec, Results
from brokerwq.errors import DriverError, LeaseLostError, QueueNotFoundError
from brokerwq.message import Message, new_message_id
from brokerwq.testing.harness import Harness

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

MOST_ITEMS = 500
"""A batch limit is tried up to here: what takes 500 at once takes more."""

_CALM_LEASE = 60.0


class CheckFailedError(AssertionError):
    """The driver under test broke a rule; the text says which and how."""


class TooSlowError(Exception):
    """The machine stood still for longer than a lease, so that nothing was proved.

    The runner tries again with longer leases.
    """


def expect(fact: object, words: str) -> None:
    """Fail the check unless ``fact`` is true. ``words`` say what must be so."""
    if not fact:
        raise CheckFailedError(words)


def expect_equal(found: object, wanted: object, what: str) -> None:
    """Fail the check unless ``found`` equals ``wanted``. ``what`` names it."""
    if found != wanted:
        msg = f"{what} must be {wanted!r:.400}, but is {found!r:.400}"
        raise CheckFailedError(msg)


def expect_done(results: Results, count: int, call: str) -> None:
    """Fail the check unless ``results`` are ``count`` times done."""
    expect_equal(len(results), count, f"the number of answers of {call}")
    for nth, result in enumerate(results):
        if result is not None:
            msg = f"{call} must be done for item {nth}, but answered {result!r:.400}"
            raise CheckFailedError(msg) from result


def expect_lost(results: Results, call: str) -> LeaseLostError:
    """Fail the check unless ``results`` are one ``LeaseLostError``, which is returned."""
    expect_equal(len(results), 1, f"the number of answers of {call}")
    if not isinstance(results[0], LeaseLostError):
        msg = f"{call} on a lost lease must answer LeaseLostError, not {results[0]!r:.400}"
        raise CheckFailedError(msg)
    return results[0]


async def expect_error(kind: type[E], call: Awaitable[object], what: str) -> E:
    """Fail the check unless awaiting ``call`` raises ``kind``, which is returned."""
    try:
        answer = await call
    except kind as exc:
        return exc
    msg = f"{what} must raise {kind.__name__}, but answered {answer!r:.400}"
    raise CheckFailedError(msg)


def a_message(body: bytes = b"conform", **fields: Any) -> Message:
    """A message with an id of its own."""
    fields.setdefault("type", "conform")
    return Message(id=new_message_id(), body=body, **fields)


def some_messages(count: int) -> list[Message]:
    """``count`` messages, each with its number as body."""
    return [a_message(str(nth).encode()) for nth in range(count)]


class Bench:
    """A driver under test with everything that checks do again and again.

    Attributes:
        harness: What is known of the broker.
        driver: An open driver; ``another_driver`` gives more.
        lease: Seconds; the shortest lease that the broker keeps well.
        delay: Seconds; the shortest delay that the broker keeps well.
        patience: Seconds within which what must happen some time has happened.
        calm_lease: Seconds; a lease that does not end in a check, and is longer than patience.
    """

    def __init__(self, harness: Harness, driver: Driver, stack: AsyncExitStack) -> None:
        self.harness: Harness = harness
        self.driver: Driver = driver
        self.clock: Clock = harness.clock
        self.lease: float = harness.shortest_lease
        self.delay: float = harness.delay
        self.patience: float = harness.patience
        self.calm_lease: float = min(max(_CALM_LEASE, 6 * self.patience), self.can.max_lease)
        self._stack = stack
        self._token = secrets.token_hex(5)
        self._numbers = itertools.count(1)
        self._specs: dict[str, QueueSpec] = {}
        self._claimed: list[tuple[Consumer, list[Delivery]]] = []
        self._claimed_at: dict[Delivery, float] = {}

    @property
    def can(self) -> Capabilities:
        """The capabilities of the driver under test."""
        return self.driver.capabilities

    def fresh_spec(self, **changes: Any) -> QueueSpec:
        """A queue that does not exist yet, with ``changes`` to its spec."""
        harness = self.harness
        name = harness.name(f"{harness.prefix}{self._token}-{next(self._numbers)}")
        spec = replace(harness.spec(name), **changes)
        self._specs[spec.name] = spec
        return spec

    async def queue(self, **changes: Any) -> str:
        """The name of a new declared queue, with ``changes`` to its spec."""
        spec = self.fresh_spec(**changes)
        differences = await self.driver.declare(spec)
        expect(not differences, f"a new queue must not differ from its spec: {differences}")
        return spec.name

    def dead(self, queue: str) -> str:
        """The dead-letter queue of a queue made by ``queue``."""
        return self._specs[queue].dead_letter_queue

    async def another_driver(self) -> Driver:
        """One more open driver, closed at the end of the check."""
        return await self._stack.enter_async_context(self.harness.connect())

    async def consumer(
        self,
        queue: str,
        *,
        driver: Driver | None = None,
        lease: float | None = None,
        prefetch: int = 10,
    ) -> Consumer:
        """A consumer, closed at the end of the check; ``lease`` None takes ``calm_lease``."""
        consumer = await (driver or self.driver).consume(
            queue, lease=self.calm_lease if lease is None else lease, prefetch=prefetch
        )

        async def close() -> None:
            with contextlib.suppress(DriverError):
                await consumer.aclose()

        self._stack.push_async_callback(close)
        return consumer

    async def send(
        self,
        queue: str,
        *messages: Message,
        delays: Sequence[float] | None = None,
        driver: Driver | None = None,
    ) -> None:
        """Send, in as many calls as the limits ask for, and expect it to be done."""
        waits = [0.0] * len(messages) if delays is None else delays
        for start in range(0, len(messages), self.can.max_send):
            batch = messages[start : start + self.can.max_send]
            end = start + len(batch)
            results = await (driver or self.driver).send(queue, batch, waits[start:end])
            expect_done(results, len(batch), "send")

    async def claim(
        self, consumer: Consumer, count: int = 1, *, within: float | None = None
    ) -> list[Delivery]:
        """Claim until there are ``count`` deliveries; fail after ``within`` seconds."""
        deadline = self.clock.now() + (self.patience if within is None else within)
        found: list[Delivery] = []
        self._claimed.append((consumer, found))
        while len(found) < count:
            left = deadline - self.clock.now()
            asked = min(count - len(found), self.can.max_claim)
            got = await consumer.claim(asked, min(max(left, 0.0), self.can.max_wait))
            expect(len(got) <= asked, f"claim({asked}) must not bring {len(got)} messages")
            found.extend(got)
            self._claimed_at.update(dict.fromkeys(got, self.clock.now()))
            if not got:
                expect(left > 0, f"{count} messages must be claimable, but only {len(found)} came")
                await self.breathe()
        return found

    async def claim_one(self, consumer: Consumer, *, within: float | None = None) -> Delivery:
        """``claim`` of a single message."""
        return (await self.claim(consumer, within=within))[0]

    async def ack(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        """Ack, in as many calls as the limits ask for, and expect it to be done."""
        for start in range(0, len(deliveries), self.can.max_settle):
            batch = deliveries[start : start + self.can.max_settle]
            expect_done(await consumer.ack(batch), len(batch), "ack")

    async def expect_nothing(
        self, consumer: Consumer, seconds: float, why: str, *, held_until: float | None = None
    ) -> None:
        """Fail the check if anything can be claimed for ``seconds``.

        Args:
            consumer: Who claims.
            seconds: For how long; 0 looks once.
            why: Why nothing must come.
            held_until: Clock reading from which a message may rightly come.

        Raises:
            TooSlowError: something came, but the clock has passed ``held_until`` meanwhile.
        """
        deadline = self.clock.now() + seconds
        while True:
            left = max(deadline - self.clock.now(), 0.0)
            got = await consumer.claim(1, min(left, self.can.max_wait))
            if got:
                self._claimed.append((consumer, list(got)))
                self.expect_in_time(held_until)
                raise CheckFailedError(f"{why}, but {got[0].message!r:.200} was claimed")
            if self.clock.now() >= deadline:
                return
            await self.breathe()

    def expect_in_time(self, held_until: float | None) -> None:
        """Give the check up as unproved if the clock has reached ``held_until``.

        Raises:
            TooSlowError: it has.
        """
        if held_until is not None and self.clock.now() >= held_until:
            msg = f"the machine was too slow for a lease of {self.lease:g} s"
            raise TooSlowError(msg)

    async def lose(self, consumer: Consumer, delivery: Delivery) -> None:
        """Let the lease of ``delivery``, which was claimed through this bench, end."""
        if self.harness.expire is not None:
            await self.harness.expire(delivery)
            return
        ends_at = self._claimed_at.get(delivery, self.clock.now()) + 1.02 * consumer.lease
        await self.clock.sleep(max(0.0, ends_at - self.clock.now()))

    async def breathe(self) -> None:
        """Let others run; short against every lease."""
        await self.clock.sleep(min(0.02, self.lease / 10))

    @asynccontextmanager
    async def background(self, work: Coroutine[Any, Any, T]) -> AsyncGenerator[asyncio.Task[T]]:
        """Run ``work`` beside the block; it is cancelled at the end if it has not ended."""
        task = asyncio.ensure_future(work)
        try:
            await self.breathe()
            yield task
        finally:
            if not task.done():
                task.cancel()
            await asyncio.wait({task})

    async def finish(self, task: asyncio.Future[T], what: str) -> T:
        """The result of ``task``, which must come within patience. ``what`` names it."""
        deadline = self.clock.now() + self.patience
        while not task.done():
            expect(self.clock.now() < deadline, f"{what} must end, but did not")
            await self.breathe()
        return task.result()

    async def tidy(self) -> None:
        """Leave the broker without messages: ack what was claimed, purge what was declared."""
        for consumer, deliveries in self._claimed:
            for start in range(0, len(deliveries), self.can.max_settle):
                with contextlib.suppress(DriverError):
                    await consumer.ack(deliveries[start : start + self.can.max_settle])
        names = [
            name for spec in self._specs.values() for name in (spec.name, spec.dead_letter_queue)
        ]
        if left := await _purge(self.driver, names):
            async with self.harness.connect() as driver:
                await _purge(driver, left)


async def _purge(driver: Driver, names: Sequence[str]) -> list[str]:
    """The names of the queues that could not be purged."""
    left: list[str] = []
    for name in names:
        try:
            await driver.purge(name)
        except QueueNotFoundError:
            continue
        except DriverError:
            left.append(name)
    return left

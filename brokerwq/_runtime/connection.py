"""The runner's own driver of one broker: opened patiently, asked on the I/O side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from brokerwq._runtime.bridge import Bridge
from brokerwq._runtime.lifecycle import Lifecycle
from brokerwq._runtime.pauses import Pauses
from brokerwq._runtime.plan import Site
from brokerwq.clock import Clock, move_on_after
from brokerwq.driver.doctor import Adopter, check_dead_letter_way
from brokerwq.driver.protocol import Consumer, Difference, Driver, QueueSpec, QueueStats
from brokerwq.driver.support import listed
from brokerwq.errors import DriverError, QueueMismatchError, TransientError
from brokerwq.events import NOT_YET_CONNECTED, BrokerReached, BrokerUnreachable, Event, QueueAdopted

T = TypeVar("T")

_CALL_SECONDS = 30.0
_KEY = "connection"


class Connection:
    """Holds the driver of one runner for one broker.

    Args:
        driver: Not yet open.
        site: Which broker that is.
        bridge: To the loop it shall live on.
        clock: For pauses and bounds.
        lifecycle: Told of trouble; asked whether to stop waiting.
        reconnect_cap: Longest pause between tries in seconds.
        emit: Told of outages.
    """

    def __init__(
        self,
        driver: Driver,
        site: Site,
        bridge: Bridge,
        *,
        clock: Clock,
        lifecycle: Lifecycle,
        reconnect_cap: float,
        emit: Callable[[Event], object] | None,
    ) -> None:
        self.driver = driver
        self.site = site
        self._bridge = bridge
        self._clock = clock
        self._lifecycle = lifecycle
        self._pauses = Pauses(reconnect_cap)
        self._emit = emit
        self._key = f"{_KEY} {site.label}".rstrip()

    def of(self, text: str) -> str:
        """``text``, and behind it the broker it is about, where there are several."""
        return f"{text} at {self.site.label}" if self.site.label else text

    async def start(self, specs: Sequence[QueueSpec]) -> bool:
        """Connect, and declare or check the queues; False if told to stop meanwhile.

        Raises:
            QueueMismatchError: queues exist with other properties; all of them are named.
            DriverError: the broker refused for good.
        """
        if await self._patiently(self._open) is None:
            return False

        async def declare_all() -> list[Difference]:
            for spec in specs:
                check_dead_letter_way(spec, self.driver)
            return [
                difference
                for spec in specs
                for difference in await self.driver.declare(
                    spec.asked, check_only=spec.declare != "create"
                )
            ]

        async def caveats_of_all() -> list[QueueAdopted]:
            driver = self.driver
            return [
                QueueAdopted(queue=spec.name, caveats=tuple(await driver.caveats(spec)))
                for spec in specs
                if spec.declare == "never" and isinstance(driver, Adopter)
            ]

        differences = await self._patiently(declare_all)
        if differences:
            hint = "QueueSpec(…, declare='never') takes a queue of others as it is"
            msg = f"{listed(differences)}; {hint}"
            raise QueueMismatchError(msg)
        adopted = None if differences is None else await self._patiently(caveats_of_all)
        for event in adopted or ():
            if event.caveats and self._emit is not None:
                self._emit(event)
        return adopted is not None

    def note_absence(self) -> None:
        """Others of the runner's brokers are there, and this one is not yet."""
        self._lifecycle.trouble(self._key, f"{self.site.label}: {NOT_YET_CONNECTED}")

    async def _open(self) -> bool:
        await self.driver.open()
        return True

    async def consume(self, spec: QueueSpec, prefetch: int) -> Consumer | None:
        """A consumer of ``spec``; None if told to stop before it could be had.

        Raises:
            DriverError: the broker refused for good.
        """

        async def consume() -> Consumer:
            return await self.driver.consume(spec.name, lease=spec.lease, prefetch=prefetch)

        return await self._patiently(consume)

    async def inspect(self, queue: str) -> QueueStats:
        """Count the messages of ``queue``.

        Raises:
            DriverError: it cannot be done now.
        """

        async def inspect() -> QueueStats:
            return await self.driver.inspect(queue)

        return await self._bounded(inspect)

    async def aclose(self, patience: float) -> None:
        """Close the driver; a broker that does not answer is left after ``patience`` seconds."""
        with move_on_after(self._clock, patience):
            await self._bridge.call(self.driver.aclose)

    async def _bounded(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        answer: list[T] = []
        with move_on_after(self._clock, _CALL_SECONDS):
            answer.append(await self._bridge.call(call))
        if not answer:
            msg = f"no answer within {_CALL_SECONDS:g} seconds"
            raise TransientError(msg)
        return answer[0]

    async def _patiently(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """What ``call`` answers, however often it must be asked; None if told to stop."""
        stop = asyncio.ensure_future(self._lifecycle.stop_asked.wait())
        try:
            while not stop.done():
                attempt = asyncio.ensure_future(self._bounded(call))
                await asyncio.wait({attempt, stop}, return_when=asyncio.FIRST_COMPLETED)
                if not attempt.done():
                    attempt.cancel()
                    await asyncio.gather(attempt, return_exceptions=True)
                    return None
                error = attempt.exception()
                if error is None:
                    self._recovered()
                    return attempt.result()
                if not (isinstance(error, DriverError) and error.retryable):
                    raise error
                await self._pause(error, stop)
            return None
        finally:
            stop.cancel()

    async def _pause(self, error: DriverError, stop: asyncio.Future[Any]) -> None:
        pause = self._pauses.next()
        text = f"{type(error).__name__}: {error}"[:200]
        where = f"{self.site.label}: " if self.site.label else ""
        self._lifecycle.trouble(self._key, where + text)
        if self._emit is not None:
            event = BrokerUnreachable(queue="", operation="connect", error=text, retry_in=pause)
            self._emit(event)
        with move_on_after(self._clock, pause):
            await asyncio.wait({stop})

    def _recovered(self) -> None:
        self._pauses.reset()
        if self._lifecycle.clear(self._key) and self._emit is not None:
            self._emit(BrokerReached(queue=""))

"""Sending: batched to the broker's limits, retried for a while, answered item by item."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from brokerwq._runtime.batcher import Batcher
from brokerwq._runtime.pauses import Pauses
from brokerwq.clock import Clock, move_on_after
from brokerwq.driver.protocol import Driver
from brokerwq.driver.support import split_to_limits
from brokerwq.errors import ClosedError, DriverError, TransientError, UnsupportedError
from brokerwq.events import Instrumentation, MessagesSent
from brokerwq.message import Message, Outgoing

_CALLS = 4
_LONGEST_PAUSE = 2.0


@dataclass(slots=True, eq=False)
class _Waiting:
    """One message on its way, and where its sender waits."""

    message: Message
    delay: float
    answer: asyncio.Future[None]


class QueueSender:
    """Sends to one queue.

    Args:
        queue: Its name.
        driver: Gives the driver, connected.
        clock: For pauses and bounds.
        patience: Seconds for which what failed in passing is tried again. A message that
            was accepted although the answer was lost is then stored twice, under one id.
        instrumentation: Put around each call.
    """

    def __init__(
        self,
        queue: str,
        driver: Callable[[], Awaitable[Driver]],
        *,
        clock: Clock,
        patience: float,
        instrumentation: Instrumentation | None,
    ) -> None:
        self._queue = queue
        self._driver = driver
        self._clock = clock
        self._patience = patience
        self._instrumentation = instrumentation
        self._batcher: Batcher[_Waiting] | None = None
        self._answers: set[asyncio.Future[None]] = set()

    async def send_one(self, message: Message, delay: float) -> None:
        """Send; return once the broker has accepted the message for keeping.

        Raises:
            DriverError: it was not, as far as is known.
        """
        driver = await self._driver()
        if self._batcher is None:
            self._batcher = Batcher(
                self._send_waiting, max_items=driver.capabilities.max_send, max_calls=_CALLS
            )
        with self._sending(message.type, 1, message.id) as headers:
            if headers:
                message = replace(message, headers={**headers, **message.headers})
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._answers.add(answer)
            self._batcher.put(_Waiting(message, delay, answer))
            try:
                await answer
            finally:
                self._answers.discard(answer)

    async def send_batch(self, outgoing: Sequence[Outgoing]) -> Sequence[DriverError | None]:
        """Send one chunk of any size; one answer for each message, in order."""
        if not outgoing:
            return ()
        with self._sending(outgoing[0][0].type, len(outgoing)) as headers:
            if headers:
                outgoing = [
                    (replace(message, headers={**headers, **message.headers}), delay)
                    for message, delay in outgoing
                ]
            try:
                return await self._send(outgoing)
            except DriverError as error:
                return [error] * len(outgoing)

    async def aclose(self) -> None:
        """Cancel what is under way; who waits for it hears ``ClosedError``."""
        if self._batcher is not None:
            await self._batcher.aclose()
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(ClosedError("closed before the broker answered"))

    def _sending(
        self, type_: str, count: int, message_id: str = ""
    ) -> contextlib.AbstractContextManager[Mapping[str, str]]:
        if self._instrumentation is None:
            return contextlib.nullcontext({})
        return self._instrumentation.sending(self._queue, type_, count, message_id)

    async def _send_waiting(self, batch: list[_Waiting]) -> None:
        results: Sequence[DriverError | None]
        try:
            results = await self._send([(item.message, item.delay) for item in batch])
        except DriverError as error:
            results = [error] * len(batch)
        except Exception as error:  # noqa: BLE001 -- an adapter's bug is the senders' to hear of
            results = [_bug(error)] * len(batch)
        for item, result in zip(batch, results, strict=True):
            if item.answer.done():
                continue
            if result is None:
                item.answer.set_result(None)
            else:
                item.answer.set_exception(result)

    async def _send(self, outgoing: Sequence[Outgoing]) -> Sequence[DriverError | None]:
        started = self._clock.now()
        driver = await self._driver()
        limit = driver.capabilities.max_send_delay
        if max(delay for _, delay in outgoing) > limit:
            outgoing = [self._within_limit(message, delay, limit) for message, delay in outgoing]
        results: list[DriverError | None] = [None] * len(outgoing)
        sizes = [len(message.body) for message, _ in outgoing]
        waiting = list(range(len(outgoing)))
        pauses = Pauses(_LONGEST_PAUSE)
        while True:
            for part in split_to_limits(sizes, waiting, driver.capabilities):
                errors = await self._call(driver, [outgoing[n] for n in part])
                for n, error in zip(part, errors, strict=True):
                    results[n] = error
            waiting = [n for n in waiting if (e := results[n]) is not None and e.retryable]
            pause = pauses.next()
            if not waiting or self._clock.now() - started + pause > self._patience:
                break
            await self._clock.sleep(pause)
        self._report(outgoing, results, self._clock.now() - started)
        return results

    def _within_limit(self, message: Message, delay: float, limit: float) -> Outgoing:
        if delay <= limit:
            return message, delay
        if limit <= 0:
            msg = f"{self._queue}: this broker cannot delay a message; it was not sent"
            raise UnsupportedError(msg)
        not_before = self._clock.utcnow() + timedelta(seconds=delay)
        return replace(message, not_before=not_before), limit

    async def _call(
        self, driver: Driver, outgoing: Sequence[Outgoing]
    ) -> Sequence[DriverError | None]:
        messages = [message for message, _ in outgoing]
        delays = [delay for _, delay in outgoing]
        results: Sequence[DriverError | None] | None = None
        with move_on_after(self._clock, self._patience):
            try:
                results = await driver.send(self._queue, messages, delays)
            except DriverError as error:
                results = [error] * len(messages)
            except Exception as error:  # noqa: BLE001 -- an adapter's bug is the senders' to hear of
                results = [_bug(error)] * len(messages)
        if results is None:
            late = TransientError(f"send: no answer within {self._patience:g} seconds")
            results = [late] * len(messages)
        return results

    def _report(
        self,
        outgoing: Sequence[Outgoing],
        results: Sequence[DriverError | None],
        seconds: float,
    ) -> None:
        if self._instrumentation is not None:
            failed = sum(result is not None for result in results)
            self._instrumentation.emit(
                MessagesSent(
                    queue=self._queue,
                    type=outgoing[0][0].type,
                    count=len(results) - failed,
                    failed=failed,
                    seconds=seconds,
                )
            )


def _bug(error: Exception) -> DriverError:
    failure = DriverError(f"sending failed: {error!r:.200}")
    failure.__cause__ = error
    return failure

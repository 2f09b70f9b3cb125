"""Settling: batched, retried while the lease lasts, and never silently given up.

One settler serves one consumer. Requests come from the handlers' loop, the calls are made
on the I/O side, and each request hears how it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from brokerwq._runtime.batcher import Batcher
from brokerwq._runtime.bridge import Bridge
from brokerwq._runtime.leases import Held, LeaseKeeper
from brokerwq._runtime.verdict import Operation, Verdict
from brokerwq.clock import Clock, move_on_after
from brokerwq.driver.protocol import Mark
from brokerwq.errors import ClosedError, DriverError, LeaseLostError, TransientError
from brokerwq.events import Event, Instrumentation, SettleFailed
from brokerwq.message import DeadLetterNote

Concluded: TypeAlias = Callable[["Settle", DriverError | None], object]

_CALLS = 4
_LEAST_TIMEOUT = 30.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_FALLBACK_DELAY = 5.0
_TRIES_BEFORE_FALLBACK = 3
_NO_NOTE = DeadLetterNote(reason="")


@dataclass(slots=True, eq=False)
class Settle:
    """One message on its way to being settled."""

    held: Held
    verdict: Verdict
    concluded: Concluded
    tries: int = 0
    failure: DriverError | None = None


class Settler:
    """Settles what one consumer has claimed.

    Args:
        keeper: Whose leases these are.
        bridge: To the I/O side.
        clock: For pauses and bounds.
        instrumentation: Told of failures, and put around each call.
        troubled: Called when a dead letter could not be moved.
        recovered: Called when one was moved.
    """

    def __init__(
        self,
        keeper: LeaseKeeper,
        bridge: Bridge,
        *,
        clock: Clock,
        instrumentation: Instrumentation | None,
        troubled: Callable[[str], object],
        recovered: Callable[[], object] = lambda: None,
    ) -> None:
        self._keeper = keeper
        self._bridge = bridge
        self._clock = clock
        self._instrumentation = instrumentation
        self._troubled = troubled
        self._recovered = recovered
        self._pending: set[Settle] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._batchers: dict[Operation, Batcher[Settle]] = {}

    @property
    def pending(self) -> int:
        """Requests that have not been concluded."""
        return len(self._pending)

    def settle(self, held: Held, verdict: Verdict, concluded: Concluded) -> None:
        """Settle ``held`` by ``verdict``; ``concluded`` hears None, or why it could not be."""
        request = Settle(held, verdict, concluded)
        self._pending.add(request)
        self._idle.clear()
        self._put(request)

    async def flush(self) -> None:
        """Wait until every request has been concluded."""
        await self._idle.wait()

    async def aclose(self) -> None:
        """Give up on what is under way; its messages come back when their leases end."""
        for batcher in self._batchers.values():
            await batcher.aclose()
        for request in list(self._pending):
            self._give_up(request, ClosedError("closed before the broker answered"))

    def _put(self, request: Settle) -> None:
        if request not in self._pending:
            return  # given up on while it waited for another try
        operation = request.verdict.operation
        batcher = self._batchers.get(operation)
        if batcher is None:

            async def call(batch: list[Settle]) -> None:
                await self._settle_batch(operation, batch)

            batcher = self._batchers[operation] = Batcher(
                call, max_items=self._keeper.capabilities.max_settle, max_calls=_CALLS
            )
        batcher.put(request)

    async def _settle_batch(self, operation: Operation, batch: list[Settle]) -> None:
        results: Sequence[DriverError | None]
        try:
            results = await self._bridge.call(self._perform, operation, batch)
        except Exception as error:  # noqa: BLE001 -- a bug of ours must not kill the runner
            results = [DriverError(f"{operation} failed: {error!r:.200}")] * len(batch)
        for request, result in zip(batch, results, strict=True):
            if result is None and operation == "dead_letter":
                self._recovered()
            if result is None or isinstance(result, LeaseLostError):
                self._conclude(request, result)
            else:
                self._try_again(request, result)

    # -- on the I/O side ------------------------------------------------------------------

    async def _perform(
        self, operation: Operation, batch: list[Settle]
    ) -> Sequence[DriverError | None]:
        keeper = self._keeper
        ours = [r for r in batch if keeper.still_ours(r.held, is_ack=operation == "ack")]
        if len(ours) < len(batch):
            await keeper.hand_back([r.held for r in batch if r not in ours])
        answers: dict[Settle, DriverError | None] = {}
        if ours:
            if operation != "ack":
                await keeper.stop_beating([request.held for request in ours])
            answers = dict(zip(ours, await self._call_within_bounds(operation, ours), strict=True))
        return [self._noted(operation, request, answers) for request in batch]

    def _noted(
        self, operation: Operation, request: Settle, answers: dict[Settle, DriverError | None]
    ) -> DriverError | None:
        held = request.held
        if request not in answers:
            self._keeper.lose(held, "it was not extended in time")
            return LeaseLostError(f"the lease ended before the {operation} was sent")
        error = answers[request]
        if isinstance(error, LeaseLostError):
            self._keeper.lose(held, str(error))
        elif error is not None and error.retryable:
            self._keeper.keep_again(held)
        else:
            # Settled; or never to be, and a lease that goes on would keep it from coming back.
            self._keeper.let_go(held)
        return error

    async def _call_within_bounds(
        self, operation: Operation, requests: list[Settle]
    ) -> Sequence[DriverError | None]:
        bound = max(self._keeper.lease, _LEAST_TIMEOUT)
        results: Sequence[DriverError | None] | None = None
        with move_on_after(self._clock, bound):
            try:
                results = await self._call(operation, requests)
            except DriverError as error:
                results = [error] * len(requests)
            except Exception as error:  # noqa: BLE001 -- an adapter's bug: those messages pay
                results = [DriverError(f"{operation} failed: {error!r:.200}")] * len(requests)
        if results is None:
            late = TransientError(f"{operation}: no answer within {bound:g} seconds")
            results = [late] * len(requests)
        return results

    async def _call(
        self, operation: Operation, requests: list[Settle]
    ) -> Sequence[DriverError | None]:
        if self._instrumentation is None:
            return await self._call_driver(operation, requests)
        deliveries = [request.held.delivery for request in requests]
        with self._instrumentation.settling(deliveries[0].queue, operation, deliveries):
            return await self._call_driver(operation, requests)

    async def _call_driver(
        self, operation: Operation, requests: list[Settle]
    ) -> Sequence[DriverError | None]:
        consumer = self._keeper.consumer
        deliveries = [request.held.delivery for request in requests]
        if operation == "ack":
            return await consumer.ack(deliveries)
        verdicts = [request.verdict for request in requests]
        if operation == "dead_letter":
            notes = [verdict.note or _NO_NOTE for verdict in verdicts]
            return await consumer.dead_letter(deliveries, notes)
        delays = [verdict.delay for verdict in verdicts]
        if operation == "release":
            return await consumer.release(deliveries, delays)
        marks = [verdict.mark or Mark() for verdict in verdicts]
        return await consumer.put_back(deliveries, delays, marks)

    # -- what did not go through ----------------------------------------------------------

    def _try_again(self, request: Settle, error: DriverError) -> None:
        request.tries += 1
        request.failure = error
        if request.held.lost:
            self._give_up(request, error)
            return
        fallback = self._fallback(request, error)
        if fallback is not None:
            self._report(request, error)
            request.verdict = fallback
            request.tries = 0
            self._put(request)
        elif error.retryable:
            pause = min(_FIRST_PAUSE * 2.0 ** (request.tries - 1), _LONGEST_PAUSE)
            # Not past the point at which the lease leaves time for another way out.
            left = request.held.remaining - self._keeper.margin
            pause = min(pause, max(left, _FIRST_PAUSE))
            self._clock.call_at(self._clock.now() + pause, lambda: self._put(request))
        else:
            self._give_up(request, error)

    def _fallback(self, request: Settle, error: DriverError) -> Verdict | None:
        """Another way to give the message back, once its own way has been tried enough."""
        verdict = request.verdict
        patient = error.retryable and (
            request.tries < _TRIES_BEFORE_FALLBACK or verdict.operation == "put_back"
        )
        if patient and request.held.remaining > self._keeper.margin:
            return None
        if verdict.operation == "dead_letter":
            self._troubled(f"{request.held.delivery.queue}: dead letters cannot be moved: {error}")
            return self._kept_from_dying(request)
        if verdict.operation == "put_back":
            limit = self._keeper.capabilities.max_release_delay
            return replace(verdict, operation="release", delay=min(verdict.delay, limit))
        return None

    def _kept_from_dying(self, request: Settle) -> Verdict:
        # A handler that has had its last attempt must not run once more: all attempts stay
        # spent, and the next claim comes straight back here.
        delivery = request.held.delivery
        spent = delivery.attempt
        mark = replace(
            Mark.of(delivery.message),
            attempts=spent if request.verdict.counted else spent - 1,
            suspect=request.verdict.reason == "lost",
            not_before=None,
        )
        delay = min(_FALLBACK_DELAY, self._keeper.capabilities.max_release_delay)
        return Verdict("put_back", "put-back", delay=delay, mark=mark, reason="no dead letter")

    def _give_up(self, request: Settle, error: DriverError) -> None:
        self._report(request, error)
        self._conclude(request, error)

    def _report(self, request: Settle, error: DriverError) -> None:
        delivery = request.held.view
        self._emit(
            SettleFailed(
                queue=delivery.queue,
                id=delivery.message.id,
                operation=request.verdict.operation,
                error=f"{type(error).__name__}: {error}"[:200],
            )
        )

    def _emit(self, event: Event) -> None:
        if self._instrumentation is not None:
            self._instrumentation.emit(event)

    def _conclude(self, request: Settle, error: DriverError | None) -> None:
        self._pending.remove(request)
        if not self._pending:
            self._idle.set()
        request.concluded(request, error)

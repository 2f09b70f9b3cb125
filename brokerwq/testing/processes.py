"""Processes that are only played: engines on one broker in memory that can die and freeze."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from brokerwq._runtime.engine import Engine
from brokerwq._runtime.plan import Plan, Site
from brokerwq._runtime.route import Route
from brokerwq.app import App
from brokerwq.driver.protocol import Consumer, Delivery, Driver, Mark, QueueSpec, Results
from brokerwq.errors import BrokerwqError, ConnectionLostError, LeaseLostError, ThrottledError
from brokerwq.job import Child
from brokerwq.message import DeadLetterNote
from brokerwq.testing.faults import Faults, FaultyConsumer, FaultyDriver
from brokerwq.testing.gates import Gate, GatedAdmission, GatedGuard
from brokerwq.testing.mishap import Mishap
from brokerwq.testing.stepping import Run

GRACE = 0.0
_SLOTS = 1


class Process:
    """One process that runs one worker.

    Args:
        app: Whose worker.
        route: The worker.
        spec: Its queue.
        next_run: What is to befall the next run of the worker.
        settled: Told of every message that this process has done with.

    Attributes:
        gate: Between it and the world.
        run: The latest run of the worker.
        settles: How many messages it has done with.
        dead_letters: Why messages were given up on.
        failure: What ended it before its time.
    """

    def __init__(
        self,
        app: App,
        route: Route,
        spec: QueueSpec,
        *,
        next_run: Callable[[Process], Run],
        settled: Callable[[], object],
    ) -> None:
        self.gate: Gate = Gate()
        self.run: Run | None = None
        self.settles = 0
        self.dead_letters: list[DeadLetterNote] = []
        self.failure: BaseException | None = None
        self._app = app
        self._next_run = next_run
        self._settled = settled
        self._is_async = route.is_async
        self._call = route.call
        self._admission: GatedAdmission | None = None
        self._lingering: set[asyncio.Task[object]] = set()
        guard = None if route.guard is None else GatedGuard(route.guard, self.gate, self.admitted)
        played = replace(route, call=self._played, is_async=True, guard=guard)
        self._engine = Engine(
            Plan(
                sites=[Site(build=lambda: _ProcessDriver(app.build_driver(), self))],
                queues=[(spec, [played])],
                slots=_SLOTS,
                grace=GRACE,
                heartbeat=True,
                unknown_after=3600.0,
                reconnect_cap=5.0,
                clock=app.clock,
                instrumentation=None,
                detailed=False,
                send_children=self._send_children,
            )
        )
        self._task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        try:
            async with self._app.enter_lifespan() as state:
                await self._engine.run(state=state)
        except BrokerwqError as error:
            self.failure = error

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself, which it should not."""
        return self._task.done()

    @property
    def is_gone(self) -> bool:
        """Whether it has crashed."""
        return self.run is not None and self.run.is_crashed

    # -- the handler -----------------------------------------------------------------------

    async def _played(self, job: Any, payload: Any) -> object:
        run = self.run = self._next_run(self)
        # A task of its own: what is held at a point outlives the call that was given up.
        if self._is_async:
            inner = asyncio.create_task(run.coroutine(self._call(job, payload)))
        else:
            inner = asyncio.create_task(run.thread(lambda: self._call(job, payload)))
        while not inner.done():
            try:
                await asyncio.wait({inner})
            except asyncio.CancelledError:
                if run.is_held:
                    self._linger(inner)
                    raise
                inner.cancel()
        if run.is_crashed:
            with suppress(BaseException):
                inner.result()
            await self.crash()
        return inner.result()

    def _linger(self, inner: asyncio.Task[object]) -> None:
        self._lingering.add(inner)
        inner.add_done_callback(self._lingering.discard)
        inner.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def crash(self) -> None:
        """Die here: nothing goes out any more, and this never returns.

        The store's server notices that the connection is gone: what was open is rolled back.
        """
        if self.run is not None:
            self.run.is_crashed = True
        self.gate.set("frozen")
        if self._admission is not None:
            await self._admission.give_up()
        self._settled()
        await asyncio.get_running_loop().create_future()

    async def _send_children(self, children: Sequence[Child]) -> None:
        await self.gate.passed()
        mishap = self._due("send")
        if mishap is not None and mishap.kind == "throttle":
            msg = "a fault on purpose"
            raise ThrottledError(msg, retry_after=1.0)
        if mishap is None or mishap.kind == "crash_at" or mishap.done:
            await self._app.send_children(children)
        if mishap is not None and mishap.kind == "crash_at":
            await self.crash()
        if mishap is not None:
            msg = "a fault on purpose"
            raise ConnectionLostError(msg)

    def due(self, call: str) -> Mishap | None:
        """What befalls this ``call`` of the run that was made last, once."""
        return self._due(call)

    def _due(self, call: str) -> Mishap | None:
        run = self.run
        if run is None or run.struck or run.mishap is None:
            return None
        mishap = run.mishap
        is_it = mishap.call == call or (mishap.kind == "partial_failure" and call == "ack")
        run.struck = is_it
        return mishap if is_it else None

    def admitted(self, admission: GatedAdmission) -> None:
        """The guard has let a run in."""
        self._admission = admission

    def settled(self, count: int, notes: Sequence[DeadLetterNote] = ()) -> None:
        """Messages were acked, returned or buried."""
        self.settles += count
        self.dead_letters += notes
        self._settled()

    # -- the end ---------------------------------------------------------------------------

    async def end(self) -> None:
        """End it: in order if it lives, at once if it does not."""
        if self.gate.state != "open":
            self.gate.set("dead")
            self._engine.lifecycle.ask_stop()
        self._engine.lifecycle.ask_stop()
        await asyncio.wait({self._task})
        for task in self._lingering:
            task.cancel()
        if self._lingering:
            await asyncio.wait(self._lingering)
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error


class _ProcessDriver(FaultyDriver):
    """The connection of a process."""

    def __init__(self, inner: Driver, process: Process) -> None:
        super().__init__(inner)
        self._process = process

    def wrap(self, consumer: Consumer) -> Consumer:
        return _ProcessConsumer(consumer, self.faults, self._process)


class _ProcessConsumer(FaultyConsumer):
    def __init__(self, inner: Consumer, faults: Faults, process: Process) -> None:
        super().__init__(inner, faults)
        self._process = process
        self._gate = process.gate

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        await self._gate.passed()
        claiming = asyncio.ensure_future(self.inner.claim(max_items, wait))
        closing = asyncio.ensure_future(self._gate.closed())
        try:
            await asyncio.wait({claiming, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            if not claiming.done():
                claiming.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({claiming})
        await self._gate.passed()
        return [] if claiming.cancelled() else claiming.result()

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        await self._gate.passed()
        mishap = self._process.due("ack")
        if mishap is not None:
            return await self._struck(mishap, deliveries)
        results = await self.inner.ack(deliveries)
        self._process.settled(len(deliveries))
        return results

    async def _struck(self, mishap: Mishap, deliveries: Sequence[Delivery]) -> Results:
        if mishap.kind == "crash_at":
            await self._process.crash()
        if mishap.kind == "throttle":
            msg = "a fault on purpose"
            raise ThrottledError(msg, retry_after=1.0)
        if mishap.kind == "partial_failure":
            return await self._partly(mishap, deliveries)
        if mishap.done:
            await self.inner.ack(deliveries)
        # A broken connection: what it held is there again at once, and a late settle is refused.
        await self.inner.release(deliveries, [0.0] * len(deliveries))
        self._process.settled(len(deliveries))
        msg = "a fault on purpose"
        raise ConnectionLostError(msg)

    async def _partly(self, mishap: Mishap, deliveries: Sequence[Delivery]) -> Results:
        lost = [one for nth, one in enumerate(deliveries) if nth in mishap.places]
        done = [one for one in deliveries if one not in lost]
        await self.inner.release(lost, [0.0] * len(lost))
        results = dict(zip(done, await self.inner.ack(done), strict=True))
        self._process.settled(len(deliveries))
        return [
            LeaseLostError("a fault on purpose") if one in lost else results[one]
            for one in deliveries
        ]

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        await self._gate.passed()
        return await self.inner.extend(deliveries, seconds)

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        await self._gate.passed()
        results = await self.inner.release(deliveries, delays)
        self._process.settled(len(deliveries))
        return results

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        await self._gate.passed()
        results = await self.inner.put_back(deliveries, delays, marks)
        self._process.settled(len(deliveries))
        return results

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        await self._gate.passed()
        results = await self.inner.dead_letter(deliveries, notes)
        self._process.settled(len(deliveries), notes)
        return results

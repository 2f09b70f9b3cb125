"""Processes that are only played: engines on one broker in memory that can die and freeze."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal, cast

from brokerwq._runtime.engine import Engine
from brokerwq._runtime.guard import Admission, Guard, Skip
from brokerwq._runtime.plan import Plan
from brokerwq._runtime.route import Route
from brokerwq.app import App
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver.protocol import Consumer, Delivery, Driver, Mark, QueueSpec, Results
from brokerwq.errors import BrokerwqError, ConnectionLostError, LeaseLostError, ThrottledError
from brokerwq.job import Child, Job
from brokerwq.message import DeadLetterNote
from brokerwq.outcomes import Outcome, Retry
from brokerwq.testing.faults import Faults, FaultyConsumer, FaultyDriver
from brokerwq.testing.mishap import Mishap
from brokerwq.testing.stepping import Run

GRACE = 0.0
_SLOTS = 1


class Gate:
    """Between a process and the world: open, frozen, or shut for good."""

    def __init__(self) -> None:
        self.state: Literal["open", "frozen", "dead"] = "open"
        self._changed = asyncio.Event()

    def set(self, state: Literal["open", "frozen", "dead"]) -> None:
        """Change the state."""
        self.state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def passed(self) -> None:
        """Wait while it is frozen.

        Raises:
            ConnectionLostError: it is shut.
        """
        while self.state == "frozen":
            await self._changed.wait()
        if self.state == "dead":
            msg = "this process is dead"
            raise ConnectionLostError(msg)

    async def closed(self) -> None:
        """Wait until it is not open."""
        while self.state == "open":
            await self._changed.wait()


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
        asking: How many calls to the store are under way.
        asking_since: Since when, by the machine's clock.
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
        self.asking = 0
        self.asking_since = 0.0
        self.dead_letters: list[DeadLetterNote] = []
        self.failure: BaseException | None = None
        self._app = app
        self._next_run = next_run
        self._settled = settled
        self._is_async = route.is_async
        self._call = route.call
        self._admission: _GatedAdmission | None = None
        self._lingering: set[asyncio.Task[object]] = set()
        guard = None if route.guard is None else _GatedGuard(route.guard, self)
        played = replace(route, call=self._played, is_async=True, guard=guard)
        self._engine = Engine(
            Plan(
                build=lambda: _ProcessDriver(app.build_driver(), self),
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

    @contextmanager
    def asking_the_store(self) -> Generator[None]:
        """The store is asked within the block, which takes the machine's time."""
        if not self.asking:
            self.asking_since = SYSTEM_CLOCK.now()
        self.asking += 1
        try:
            yield
        finally:
            self.asking -= 1

    def admitted(self, admission: _GatedAdmission) -> None:
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


class _GatedGuard:
    """A guard whose store a frozen process cannot reach. Satisfies ``Guard``."""

    def __init__(self, inner: Guard, process: Process) -> None:
        self._inner = inner
        self._process = process

    @property
    def longest_wait(self) -> float:
        return self._inner.longest_wait

    async def check(self) -> None:
        with self._process.asking_the_store():
            await self._inner.check()

    async def aclose(self) -> None:
        """Nothing: the other processes are on this loop, too; the app frees the store."""

    async def admit(self, job: Job, payload: object, lease: float, /) -> Admission | Skip:
        await self._process.gate.passed()
        with self._process.asking_the_store():
            admitted = await self._inner.admit(job, payload, lease)
        if isinstance(admitted, Skip):
            return admitted
        gated = _GatedAdmission(admitted, self._process)
        self._process.admitted(gated)
        return cast("Admission", gated)  # by __getattr__ it has all that one has


class _GatedAdmission:
    """Satisfies ``Admission``."""

    def __init__(self, inner: Admission, process: Process) -> None:
        self._inner = inner
        self._process = process
        self._is_over = False

    @property
    def takes_children(self) -> bool:
        return self._inner.takes_children

    @property
    def needs_extending(self) -> bool:
        return self._inner.needs_extending

    async def extend(self, seconds: float, /) -> bool:
        await self._process.gate.passed()
        with self._process.asking_the_store():
            return await self._inner.extend(seconds)

    async def finish(self, answer: object, children: Sequence[Child], /) -> Skip | None:
        await self._process.gate.passed()
        self._is_over = True
        with self._process.asking_the_store():
            return await self._inner.finish(answer, children)

    async def abandon(self, outcome: Outcome, /, *, is_last: bool) -> Skip | None:
        # Not even a frozen process is waited for: its server ends the transaction for it.
        if self._is_over:
            return None
        self._is_over = True
        with self._process.asking_the_store():
            return await self._inner.abandon(outcome, is_last=is_last)

    def __getattr__(self, name: str) -> Any:
        """Whatever else an admission may be asked for."""
        return getattr(self._inner, name)

    async def give_up(self) -> None:
        """The process is gone."""
        with suppress(Exception):
            await self.abandon(Retry(), is_last=False)

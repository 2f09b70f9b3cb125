"""Plays one schedule of faults: a worker, its messages, and processes that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, TypeAlias, cast

from brokerwq._runtime.route import Route
from brokerwq.app import App
from brokerwq.broker import Broker
from brokerwq.clock import SYSTEM_CLOCK, move_on_after
from brokerwq.driver.adapter import Adapter
from brokerwq.driver.protocol import Driver, QueueSpec, Results
from brokerwq.driver.registry import find_adapter, settings_of
from brokerwq.message import Message
from brokerwq.place import Place, WrapDriver
from brokerwq.testing.clock import FakeClock
from brokerwq.testing.faults import FaultyDriver
from brokerwq.testing.mishap import Mishap
from brokerwq.testing.processes import Process
from brokerwq.testing.stepping import Point, Run
from brokerwq.workers.decorating import AnyWorker
from brokerwq.workers.worker import Call, KeywordWorker

Child: TypeAlias = tuple[str, str, bytes]
"""Queue, type and body of a message that the worker sent."""

PATIENCE: Final = 0.05
"""Seconds of the machine's time for which a worker that waits for something else than the fake
clock keeps it from moving on."""
_THREAD_PATIENCE: Final = 10.0
_KEPT_OUT: Final = 0.3
"""The same for a store whose lock is perhaps held by a run that stands still, or is dead."""
_KEPT_OUT_LIMIT: Final = 1.0
_BLOCKED_LIMIT: Final = 5.0
"""Seconds of the machine's time after which a second process counts as kept out: by the store's
lock, or by one of the worker's own."""
_STEP: Final = 5.0
_BLOCKED: Final = 900.0
"""Seconds after which a second process counts as kept out by the one that stands still."""
_URL: Final = "memory://"
_BURIAL: Final = 150.0
"""Seconds without progress after which the dead are made to let go of what they held: a dead
process holds no lock of its own, and a server gives up on its connections."""
_BURIAL_PATIENCE: Final = 1.0
_STANDSTILL: Final = 600.0
"""Seconds after which a run that has come no further counts as stuck."""
_REAL_LIMIT: Final = 20.0
_MANY: Final = 100_000


@dataclass(slots=True)
class Played:
    """What came of a schedule.

    Attributes:
        runs: The runs of the worker, in the order of their beginning.
        children: How many messages of each kind it has sent; one that was sent again under its
            old id counts once.
        dead: Reasons of the messages that were given up on.
        stuck: It did not come to an end.
    """

    runs: list[Run] = field(default_factory=list[Run])
    children: dict[Child, int] = field(default_factory=dict[Child, int])
    dead: list[str] = field(default_factory=list[str])
    stuck: bool = False

    @property
    def points(self) -> Sequence[Point]:
        """The points of the first run."""
        return self.runs[0].points if self.runs else ()

    @property
    def struck(self) -> bool:
        """Whether every mishap has come."""
        return all(run.struck for run in self.runs if run.mishap is not None)

    async def bury(self) -> bool:
        """End what crashes left behind; False if there was nothing."""
        dead = [run for run in self.runs if run.left_behind is not None]
        if dead:
            burials = [asyncio.ensure_future(run.bury()) for run in dead]
            await asyncio.wait(burials, timeout=_BURIAL_PATIENCE)
            for each in burials:
                each.cancel()
        return bool(dead)


async def play(app: App, worker: AnyWorker, payload: object, mishaps: Sequence[Mishap]) -> Played:
    """Play ``mishaps``, one for each run of ``worker``, until its messages are done with.

    Args:
        app: The worker's.
        worker: The worker.
        payload: As for ``assert_idempotent``.
        mishaps: What befalls its runs, in order.

    Raises:
        BrokerwqError: the messages cannot be sent.
    """
    stage = _Stage(app, worker, mishaps)
    clock = FakeClock()
    async with _on_stage(app, clock, stage.capture):
        await stage.forget_keys()
        await clock.drive(stage.play(payload), threshold=stage.patience)
    return stage.played


@asynccontextmanager
async def _on_stage(app: App, clock: FakeClock, wrap: WrapDriver) -> AsyncGenerator[None]:
    """``App.on`` a broker in memory, many times a second and without anybody being told."""
    adapter = _memory()
    before, restore_store = app.place, app.use_store(clock, None)
    there = Place(
        url=_URL,
        adapter=adapter,
        settings=settings_of(adapter, _URL),
        clock=clock,
        lifespan=before.lifespan,
        wrap=wrap,
    )
    app.place = there
    try:
        yield
    finally:
        await app.aclose()
        if there.is_connected:  # by enqueue_sync, on a loop of its own
            await asyncio.to_thread(app.run_sync, there.aclose)
        app.place = before
        restore_store()


@cache
def _memory() -> Adapter[Any]:
    return find_adapter(_URL)


class _Stage:
    def __init__(self, app: App, worker: AnyWorker, mishaps: Sequence[Mishap]) -> None:
        self.played = Played()
        self._app = app
        self._worker = worker
        self._route: Route = worker.route()
        spec = app.registry.spec(self._route.queue) or QueueSpec(name=self._route.queue)
        self._spec = replace(spec, declare="create", ordered=False, retention=None)
        self._ahead = list(mishaps)
        self._changed = asyncio.Event()
        self._processes: list[Process] = []
        self._brokers: list[Broker] = []
        self._ids: list[str] = []
        self._own: set[str] = set()
        self._children: dict[str, Child] = {}
        self._send_again: Callable[[], Any] | None = None

    # -- what the processes ask -------------------------------------------------------------

    def next_run(self, process: Process) -> Run:
        """The run that ``process`` begins, and what befalls it."""
        mishap = self._ahead.pop(0) if self._ahead else None
        run = Run(mishap)
        self.played.runs.append(run)
        return run

    def changed(self) -> None:
        """Something was settled, or a process is gone."""
        self._changed.set()

    def patience(self) -> float:
        """Seconds of the machine's time for which the clock stands still now."""
        asking = [process.gate.asking_since for process in self._processes if process.gate.asking]
        if asking:
            may_be_blocked = any(run.is_held or run.left_behind for run in self.played.runs)
            limit = _KEPT_OUT if may_be_blocked else _THREAD_PATIENCE
            return max(0.0, limit - (SYSTEM_CLOCK.now() - min(asking)))
        running = self._running()
        if not running:
            return 0.0
        if self._route.is_async:
            return PATIENCE
        if any(run.is_held for run in self.played.runs):  # with a lock of its own, perhaps
            youngest = max(run.began for run in running)
            return max(0.0, _KEPT_OUT_LIMIT - (SYSTEM_CLOCK.now() - youngest))
        return _THREAD_PATIENCE

    def _running(self) -> list[Run]:
        return [
            run for run in self.played.runs if not (run.is_over or run.is_held or run.is_crashed)
        ]

    def capture(self, driver: Driver) -> Driver:
        """``driver``, with what the worker sends kept aside."""
        return _CapturingDriver(driver, self)

    def take(self, queue: str, message: Message) -> bool:
        """Whether ``message`` is one that the worker sent, and not one to be run."""
        if message.id in self._own:
            return False
        self._children[message.id] = (queue, message.type, message.body)
        return True

    async def forget_keys(self) -> None:
        """Forget what other schedules have done."""
        store = self._app.store
        if store is not None and self._route.guard is not None:
            for record in await store.list(_MANY, state=None, worker=None):
                if record.worker.rpartition("/")[2] == self._route.name:
                    await store.forget(record.key)

    # -- the play ---------------------------------------------------------------------------

    async def play(self, payload: object) -> None:
        """Send, run, and go on until nothing is left."""
        real_end = SYSTEM_CLOCK.now() + _REAL_LIMIT
        clock = self._app.clock
        moved_at, before = clock.now(), -1
        await self._app.broker().declare(self._spec)
        self._send_again = lambda: self._send(payload)
        await self._send(payload)
        self._start()
        try:
            while not await self._is_done():
                await self._go_on()
                progress = sum(len(run.points) + run.is_over for run in self.played.runs)
                asking = any(process.gate.asking for process in self._processes)
                if progress != before or not (self._running() or asking):
                    moved_at, before = clock.now(), progress
                if clock.now() > moved_at + _BURIAL and await self.played.bury():
                    moved_at = clock.now()
                if clock.now() > moved_at + _STANDSTILL or SYSTEM_CLOCK.now() > real_end:
                    self.played.stuck = True
                    break
        finally:
            await self._end()
        await self._app.relay_outbox()
        for child in self._children.values():
            self.played.children[child] = self.played.children.get(child, 0) + 1
        for process in self._processes:
            self.played.dead += [note.reason for note in process.dead_letters]

    async def _send(self, payload: object) -> None:
        worker: Any = self._worker
        payloads = cast("Sequence[object]", payload) if self._route.batch else [payload]
        for nth, each in enumerate(payloads):
            id_ = f"message-{nth + 1}"
            self._own.add(id_)
            if isinstance(worker, KeywordWorker):
                fields = each.fields if isinstance(each, Call) else each
                await worker.options(id=id_).enqueue(**cast("Mapping[str, Any]", fields))
            else:
                await worker.enqueue(each, id=id_)

    def _start(self) -> Process:
        if self._processes:
            # What the worker sends by itself goes out on a connection of this process's own.
            self._brokers.append(self._app.broker())
            self._app.place.forget()
        process = Process(
            self._app,
            self._route,
            self._spec,
            next_run=self.next_run,
            settled=self.changed,
        )
        self._processes.append(process)
        return process

    async def _go_on(self) -> None:
        """One thing: replace who is gone, act on who stands still, or wait."""
        self._changed.clear()
        if self._processes[-1].is_gone:
            self._start()
            return
        for run in self.played.runs:
            if run.is_held:
                await self._pass_by(run)
                return
        if self._repeats_are_due():
            await self._resend()
            return
        await self._wait(_STEP)

    async def _wait(self, seconds: float) -> bool:
        """Wait for something to happen, so long at most; False if nothing has."""
        held = [run.held.wait() for run in self.played.runs if not run.held.is_set()]
        waiting = [asyncio.ensure_future(each) for each in (self._changed.wait(), *held)]
        try:
            with move_on_after(self._app.clock, seconds) as scope:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        return not scope.cancelled_caught

    def _repeats_are_due(self) -> bool:
        return any(
            run.mishap is not None
            and run.mishap.kind == "duplicate"
            and run.is_over
            and not run.struck
            for run in self.played.runs
        )

    async def _resend(self) -> None:
        for run in self.played.runs:
            if run.mishap is not None and run.mishap.kind == "duplicate":
                run.struck = run.struck or run.is_over
        if self._send_again is not None:
            await self._send_again()

    async def _pass_by(self, run: Run) -> None:
        """Let another process do the work while ``run`` stands still."""
        mishap = run.mishap
        owner = next(process for process in self._processes if process.run is run)
        is_frozen = mishap is not None and mishap.kind == "lose_lease"
        if is_frozen:
            owner.gate.set("frozen")
        elif self._send_again is not None:
            await self._send_again()
        other = self._start()
        give_up_at = self._app.clock.now() + _BLOCKED
        began = SYSTEM_CLOCK.now()
        while not other.settles and not other.is_gone:
            self._changed.clear()
            patience = _KEPT_OUT_LIMIT if other.gate.asking else _BLOCKED_LIMIT
            if self._app.clock.now() > give_up_at or SYSTEM_CLOCK.now() > began + patience:
                break
            await self._wait(_STEP)
        if is_frozen:
            owner.gate.set("open")
        run.release(cancel=is_frozen)
        await self._wait(1.0)

    async def _is_done(self) -> bool:
        if not self.played.runs or self._repeats_are_due():
            return False
        if any(run.is_held for run in self.played.runs):
            return False
        stats = await self._app.broker().inspect(self._route.queue)
        left = stats.ready.value + stats.leased.value + stats.delayed.value
        return left == 0 and all(run.is_over or run.is_crashed for run in self.played.runs)

    async def _end(self) -> None:
        for run in self.played.runs:
            if run.is_held:
                run.release(cancel=True)
        for process in self._processes:
            await process.end()
        for broker in self._brokers:
            await broker.aclose()


class _CapturingDriver(FaultyDriver):
    def __init__(self, inner: Driver, stage: _Stage) -> None:
        super().__init__(inner)
        self._stage = stage

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        kept = [nth for nth, message in enumerate(messages) if not self._stage.take(queue, message)]
        answers = await self.inner.send(
            queue, [messages[nth] for nth in kept], [delays[nth] for nth in kept]
        )
        results = dict(zip(kept, answers, strict=True))
        return [results.get(nth) for nth in range(len(messages))]

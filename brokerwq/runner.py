"""The runner: a process's share of the work, from the first claim to a clean stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypedDict
from weakref import WeakKeyDictionary

from brokerwq._runtime.drain import Drained, DrainGoal
from brokerwq._runtime.engine import Engine
from brokerwq._runtime.plan import Plan, Site
from brokerwq._runtime.route import Route
from brokerwq.driver.protocol import QueueSpec
from brokerwq.driver.registry import redacted
from brokerwq.driver.spec import check_queue_name
from brokerwq.driver.support import in_short
from brokerwq.durations import Seconds, seconds_of
from brokerwq.errors import BrokerwqError, ConfigError
from brokerwq.events import Instrumentation
from brokerwq.limits import MAX_SETTLE, MAX_SLOTS
from brokerwq.reports import RunReport
from brokerwq.telemetry import EventLog, fan_out
from brokerwq.telemetry.logs import LOGGER
from brokerwq.workers.options import check_count, check_flag

if TYPE_CHECKING:
    from brokerwq.app import App

_SIGNAL_BASE = 128
_RUNNING: ContextVar[tuple[App, ...]] = ContextVar("brokerwq_running", default=())
"""The apps whose workers run in this context."""
_RELAY_SECONDS = 1.0
_CLOSE_SECONDS = 30.0


class RunnerOptions(TypedDict, total=False):
    """What ``Runner`` takes by name, and ``App.run`` and ``App.drain`` pass on to it."""

    slots: int | None
    grace: Seconds | None
    heartbeat: bool | None
    log: bool


class Runner:
    """Claims messages and runs workers, once.

    Args:
        app: Whose workers.
        *queues: Only these queues; all of the app's if none is named.
        slots: Jobs at once; None takes the setting.
        grace: Seconds that running jobs get at a stop; None takes the setting.
        heartbeat: Whether leases are extended by themselves; None takes the setting.
        log: Whether events are logged to the logger ``brokerwq``.

    Raises:
        ConfigError: a queue is unknown to the app, or there is none, or a value is wrong.
    """

    def __init__(
        self,
        app: App,
        *queues: str,
        slots: int | None = None,
        grace: Seconds | None = None,
        heartbeat: bool | None = None,
        log: bool = True,
    ) -> None:
        check_count(slots, "slots", MAX_SLOTS)
        for name, flag in (("heartbeat", heartbeat), ("log", log)):
            if flag is not None:
                check_flag(flag, name)
        settings = type(app.settings).load(
            slots=slots, grace=None if grace is None else seconds_of(grace, "grace")
        )
        app.registry.check_dead_letter_queues()
        self._app = app
        self._grace = settings.grace
        self._slots = settings.slots
        self._heartbeat = settings.heartbeat if heartbeat is None else heartbeat
        self._unknown_after = settings.unknown_after
        self._reconnect_cap = settings.reconnect_cap
        self._log = EventLog() if log else None
        self._instrumentation = _instrumentation(app.telemetry, self._log)
        # A log that leaves them out need not be told of every job that just works.
        self._detailed = app.telemetry is not None or (
            log and logging.getLogger(LOGGER).isEnabledFor(logging.DEBUG)
        )
        self._queues = self._chosen(queues)
        self._engine: Engine | None = None
        self._stop_code: int | None = None

    @property
    def state(self) -> str:
        """``starting``, ``ready``, ``degraded``, ``draining`` or ``stopped``."""
        return "starting" if self._engine is None else self._engine.lifecycle.state

    @property
    def reasons(self) -> tuple[str, ...]:
        """What keeps it from being ready."""
        return () if self._engine is None else self._engine.lifecycle.reasons

    def stop(self, exit_code: int = 0) -> None:
        """Stop when the running jobs have ended; called twice: at once.

        Call it on the runner's loop; from elsewhere by ``loop.call_soon_threadsafe``.
        """
        if self._engine is not None:
            self._engine.lifecycle.ask_stop(exit_code)
        elif self._stop_code is None:
            self._stop_code = exit_code

    async def run(self, *, handle_signals: bool = True) -> RunReport:
        """Run until ``stop``, SIGTERM or SIGINT; a second one does not wait for jobs.

        Args:
            handle_signals: Whether SIGTERM and SIGINT are taken, which only works on the
                main thread.

        Raises:
            DriverError: the broker refused for good.
            QueueMismatchError: a queue exists with other properties.
        """
        return await self._run(None, handle_signals=handle_signals)

    async def drain(
        self,
        *,
        include_delayed: bool = False,
        settle: Seconds = 5.0,
        progress: Callable[[int], object] | None = None,
        handle_signals: bool = True,
    ) -> RunReport:
        """Run until nothing is ready, leased or delayed any more.

        Args:
            include_delayed: Wait even for messages that are delayed beyond the longest
                backoff; otherwise they are reported in ``left_delayed``.
            settle: Seconds for which counts that are only estimates must stay at zero.
            progress: Told how many messages are left, as far as the broker can tell.
            handle_signals: See ``run``.

        Raises:
            DriverError: the broker refused for good.
        """
        check_flag(include_delayed, "include_delayed")
        _check_callable(progress)
        goal = DrainGoal(
            include_delayed=include_delayed,
            settle=seconds_of(settle, "settle", floor=0.0, limit=MAX_SETTLE),
            progress=progress,
        )
        return await self._run(goal, handle_signals=handle_signals)

    async def _run(self, goal: DrainGoal | None, *, handle_signals: bool) -> RunReport:
        if self._engine is not None:
            msg = "a Runner runs once; make another one"
            raise ConfigError(msg)
        if self._app in _RUNNING.get():
            msg = (
                "a worker cannot run or drain its own app: it would wait for itself; "
                "enqueue messages, or use another App"
            )
            raise ConfigError(msg)
        engine = self._engine = Engine(self._plan())
        if self._stop_code is not None:
            engine.lifecycle.ask_stop(self._stop_code)
        clock = self._app.clock
        started = clock.now()
        place = self._app.place
        place.join()
        with _signals(engine, handle=handle_signals) as received:
            try:
                async with self._app.enter_lifespan() as state, _relaying(self._app):
                    # The slots take over what is set here, and nobody else.
                    token = _RUNNING.set((*_RUNNING.get(), self._app))
                    try:
                        drained = await engine.run(state=state, goal=goal)
                    except BrokerwqError as error:
                        raise in_short(error) from error.__cause__
                    finally:
                        _RUNNING.reset(token)
            finally:
                engine.lifecycle.enter("stopped")
                if place.leave():
                    await engine.patience.wait(self._app.aclose(), _CLOSE_SECONDS)
        return self._report(engine, drained, clock.now() - started, received)

    def _plan(self) -> Plan:
        app = self._app
        return Plan(
            sites=self._sites(),
            queues=self._queues,
            slots=self._slots,
            grace=self._grace,
            heartbeat=self._heartbeat,
            unknown_after=self._unknown_after,
            reconnect_cap=self._reconnect_cap,
            clock=app.clock,
            instrumentation=self._instrumentation,
            detailed=self._detailed,
            send_children=app.send_children,
        )

    def _sites(self) -> list[Site]:
        app = self._app
        places = app.sources
        if len(places) == 1:
            return [Site(build=app.build_driver)]
        return [
            Site(
                build=place.build_driver,
                label=redacted(place.url),
                instrumentation=_instrumentation(place.instrumentation, self._log),
            )
            for place in places
        ]

    def _chosen(self, queues: Sequence[str]) -> list[tuple[QueueSpec, list[Route]]]:
        registry = self._app.registry
        known = {spec.name: spec for spec in registry.specs() if registry.routes(spec.name)}
        for queue in queues:
            check_queue_name(queue)
        names = list(dict.fromkeys(queues)) or list(known)
        for name in names:
            if name not in known:
                found = ", ".join(known) or "none"
                msg = f"no worker is bound to queue {name!r:.200}; known: {found}"
                raise ConfigError(msg)
        if not names:
            msg = "the app has no workers: import the modules that define them first"
            raise ConfigError(msg)
        return [(known[name], registry.routes(name)) for name in names]

    def _report(
        self, engine: Engine, drained: Drained | None, seconds: float, received: list[int]
    ) -> RunReport:
        tally = engine.tally
        forced = engine.lifecycle.force_asked.is_set()
        code = engine.lifecycle.exit_code
        if forced and received:
            code = _SIGNAL_BASE + received[-1]
        return RunReport(
            done=tally.done,
            failed=tally.failed,
            timeouts=tally.timeouts,
            snoozed=tally.snoozed,
            discarded=tally.discarded,
            duplicates=tally.duplicates,
            dead=dict(tally.dead),
            put_back=tally.put_back,
            lost=tally.lost,
            unsettled=tally.unsettled,
            seconds=seconds,
            stuck=engine.stuck,
            exit_code=code,
            drained=drained is not None,
            left_delayed=drained.left_delayed if drained else 0,
            estimated=drained.estimated if drained else False,
        )


def _check_callable(progress: object) -> None:
    if progress is not None and not callable(progress):
        msg = f"progress must be a function of a number, not {progress!r:.200}"
        raise ConfigError(msg)


def _instrumentation(
    given: Instrumentation | None, events: EventLog | None
) -> Instrumentation | None:
    if events is None:
        return given
    return fan_out(events) if given is None else fan_out(given, events)


@asynccontextmanager
async def _relaying(app: App) -> AsyncGenerator[None]:
    if app.store is None:
        yield
        return
    # What waits already is on its queue before a drain looks whether that is empty.
    with suppress(BrokerwqError):
        await app.relay_outbox()
    relaying = asyncio.create_task(_keep_relaying(app))
    try:
        yield
    finally:
        relaying.cancel()
        await asyncio.gather(relaying, return_exceptions=True)


async def _keep_relaying(app: App) -> None:
    while True:
        await app.clock.sleep(_RELAY_SECONDS)
        with suppress(BrokerwqError):  # the jobs meet the same trouble, and report it
            await app.relay_outbox()


_STOPS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[int], object]]]] = (
    WeakKeyDictionary()
)
"""What a signal stops, by loop: all runners there, since a loop has one handler for each."""


@contextmanager
def _signals(engine: Engine, *, handle: bool) -> Generator[list[int]]:
    received: list[int] = []
    if not handle or threading.current_thread() is not threading.main_thread():
        yield received
        return
    loop = asyncio.get_running_loop()
    stops = _STOPS.setdefault(loop, [])

    def stop(number: int) -> None:
        received.append(number)
        engine.lifecycle.ask_stop()

    def stop_all(number: int) -> None:
        for each in list(stops):
            each(number)

    if not stops:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop_all, number)
    stops.append(stop)
    try:
        yield received
    finally:
        stops.remove(stop)
        if not stops:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

"""Running a handler: decoding, time limit, cancellation, and its children."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import anyio
import anyio.from_thread

from brokerwq._runtime import guarding
from brokerwq._runtime.answers import error_behind, outcome_of_error, outcomes_of_batch
from brokerwq._runtime.bridge import Bridge
from brokerwq._runtime.calling import call_handler
from brokerwq._runtime.cancellation import uncancel
from brokerwq._runtime.children import send_children
from brokerwq._runtime.forks import end_if_forked
from brokerwq._runtime.guard import Admission, Skip
from brokerwq._runtime.leases import Held
from brokerwq._runtime.route import Route
from brokerwq.clock import Clock
from brokerwq.errors import EnvelopeError, PayloadError
from brokerwq.events import Instrumentation, TimeLimitOverrun
from brokerwq.job import Child, Job, JobLease
from brokerwq.outcomes import Done, Outcome, Retry

Cause: TypeAlias = Literal["", "timeout", "lost", "stop"]


@dataclass(slots=True, eq=False)
class Work:
    """What one slot runs at a time: one message, or the messages of one batch call.

    ``pause`` is how long its messages stay away should they be put back unrun.
    """

    route: Route
    helds: list[Held]
    put_at: float = 0.0
    pause: float = 0.0
    scope: anyio.CancelScope | None = None
    context: Context | None = None
    cause: Cause = ""
    _lost: set[Held] = field(default_factory=set[Held])

    @property
    def instrumentation(self) -> Instrumentation | None:
        """Told of it: what its broker's messages are told to; None for nobody."""
        return self.helds[0].keeper.instrumentation if self.helds else None

    def cancel(self, cause: Cause) -> None:
        """End the handler, for the first cause given."""
        if not self.cause:
            self.cause = cause
        if self.scope is not None:
            self.scope.cancel()

    def lose(self, held: Held) -> None:
        """The lease on ``held`` is lost: the handler is ended once none is left."""
        self._lost.add(held)
        if len(self._lost) == len(self.helds):
            self.cancel("lost")


@dataclass(slots=True)
class Ended:
    """How one message of a ``Work`` came out of its handler.

    Attributes:
        held: The message.
        outcome: What it asks for.
        label: ``failed`` or ``timeout`` for an outcome that is a failure.
        error: The exception, if there was one.
        undecodable: Why the body could not be read; the handler was then not called.
        seconds: Time in the handler.
        cancelled: The runner's stop ended the handler.
        skip: What its guard wants instead.
        again: Its guard wants the handler to be called once more.
    """

    held: Held
    outcome: Outcome
    label: str = "failed"
    error: BaseException | None = None
    undecodable: str = ""
    seconds: float = 0.0
    cancelled: bool = False
    skip: Skip | None = None
    again: bool = False


@dataclass(slots=True)
class Shared:
    """What all jobs of a runner share.

    Attributes:
        clock: For time limits.
        bridge: To the I/O side, for ``extend``.
        threads: How many plain functions may run at once.
        send_children: Sends what a job enqueued, before it is acked.
        request_exit: A handler asked for the process to end, with this code.
        store_failed: Told that a guard's store failed; answers when to try again, in seconds.
        detailed: Whether even the start and the success of each job are told.
        stopping: The runner stops.
        aborting: The slots themselves are being cancelled.
        state: What the application's lifespan gave.
    """

    clock: Clock
    bridge: Bridge
    threads: anyio.CapacityLimiter
    send_children: Callable[[Sequence[Child]], Awaitable[None]]
    request_exit: Callable[[int], object]
    store_failed: Callable[[BaseException], float]
    detailed: bool = False
    stopping: bool = False
    aborting: bool = False
    state: Any = None


class _Port:
    """A job's way to its lease and its runner. Satisfies ``brokerwq.job.JobPort``."""

    __slots__ = ("_held", "_shared")

    def __init__(self, shared: Shared, held: Held) -> None:
        self._shared = shared
        self._held = held

    @property
    def lease(self) -> JobLease:
        return self._held

    @property
    def stopping(self) -> bool:
        return self._shared.stopping

    @property
    def state(self) -> Any:
        return self._shared.state

    async def extend(self, seconds: float, /) -> float:
        return await self._shared.bridge.call(self._held.keeper.extend, self._held, seconds)

    def run_from_thread(self, call: Callable[[], Coroutine[Any, Any, float]], /) -> float:
        return anyio.from_thread.run(call)


async def execute(shared: Shared, work: Work, started: Callable[[Work], object]) -> list[Ended]:
    """Run the handler on ``work`` and say how each of its messages came out.

    ``started`` is called just before the handler is, if it is.
    """
    route, clock = work.route, shared.clock
    deadline = None if route.timeout is None else clock.now() + route.timeout
    endeds: list[Ended] = []
    jobs: list[Job] = []
    payloads: list[object] = []
    running: list[Held] = []
    for held in work.helds:
        payload, key, problem = _decode(route, held)
        if problem:
            endeds.append(Ended(held, Done(), undecodable=problem))
            continue
        jobs.append(_job(shared, route, held, deadline, key))
        payloads.append(payload)
        running.append(held)
    if not running:
        return endeds
    work.helds = running
    admission: Admission | None = None
    if route.guard is not None:
        admitted = await guarding.admit(
            route.guard, running[0], jobs[0], payloads[0], shared.store_failed
        )
        if isinstance(admitted, Exception):
            return [Ended(running[0], Retry(), error=admitted)]
        if isinstance(admitted, Skip):
            return [Ended(running[0], Done(), skip=admitted)]
        admission = admitted
    started(work)
    ran = await _run(shared, work, jobs, payloads, deadline, admission=admission)
    while ran[0].again:
        payloads = [_decode(route, held)[0] for held in running]  # it may have changed them
        ran = await _run(shared, work, jobs, payloads, deadline, admission=admission)
    return endeds + ran


def _job(shared: Shared, route: Route, held: Held, deadline: float | None, key: str | None) -> Job:
    delivery = held.view
    message = delivery.message
    return Job(
        message=message if key is None else replace(message, key=key),
        queue=delivery.queue,
        attempt=delivery.attempt,
        max_attempts=route.retry.max_attempts,
        port=_Port(shared, held),
        raw=delivery.raw,
        deadline=deadline,
    )


def _decode(route: Route, held: Held) -> tuple[object, str | None, str]:
    """The payload, the key that only the payload says, and why there is neither."""
    foreign, reading = route.foreign, held.reading
    try:
        if foreign is None or reading is None:
            return route.decode(held.view.message), None, ""
        payload = foreign.decode(reading)
        if foreign.key is None or held.view.message.key is not None:
            return payload, None, ""
        return payload, foreign.key(payload), ""
    except (EnvelopeError, PayloadError) as error:
        return None, None, str(error) or "the body cannot be read"
    except BaseException as error:  # noqa: BLE001 -- a validator is user code: a bad body, no bug
        return None, None, f"{type(error).__qualname__} while reading the body"


async def _run(
    shared: Shared,
    work: Work,
    jobs: list[Job],
    payloads: list[object],
    deadline: float | None,
    *,
    admission: Admission | None,
) -> list[Ended]:
    started = shared.clock.now()
    try:
        answer, error, finished = await _run_in_scope(shared, work, jobs, payloads, deadline)
    except BaseException:
        if admission is not None:
            await guarding.give_up(admission)
        raise
    seconds = shared.clock.now() - started
    if finished:
        if work.cause == "timeout":
            _report_overrun(work, seconds)
        work.cause = ""  # done is done, though it was told to stop just then
    outcomes = _outcomes(shared, work, answer, error, finished=finished)
    keeps_children = admission is not None and admission.takes_children
    if not keeps_children and any(isinstance(outcome, Done) for outcome in outcomes):
        children = [job.take_children() for job in jobs]
        if any(children):
            outcomes, error = await send_children(
                shared.send_children,
                work.context,
                children,
                outcomes,
                error,
                is_aborting=lambda: shared.aborting,
            )
    skip: Skip | None = None
    again = False
    if admission is not None:
        is_counted = work.cause not in ("lost", "stop")
        attempt = guarding.Attempt(jobs[0], work.route.retry, is_counted, error, work.context)
        concluded = await guarding.conclude(
            admission, attempt, outcomes[0], answer, shared.store_failed
        )
        outcomes, skip, again = [concluded.outcome], concluded.skip, concluded.again
        error = concluded.error or error
    label = "timeout" if work.cause == "timeout" else "failed"
    cancelled = work.cause == "stop" and not isinstance(error, Outcome)
    return [
        Ended(
            held,
            outcome,
            label,
            error_behind(outcome, error),
            seconds=seconds,
            cancelled=cancelled,
            skip=skip,
            again=again,
        )
        for held, outcome in zip(work.helds, outcomes, strict=True)
    ]


def _report_overrun(work: Work, seconds: float) -> None:
    limit = work.route.timeout
    instrumentation = work.instrumentation
    if instrumentation is None or limit is None:
        return
    for held in work.helds:
        message = held.delivery.message
        instrumentation.emit(
            TimeLimitOverrun(
                queue=held.delivery.queue,
                type=message.type,
                id=message.id,
                seconds=seconds,
                limit=limit,
            )
        )


async def _run_in_scope(
    shared: Shared,
    work: Work,
    jobs: list[Job],
    payloads: list[object],
    deadline: float | None,
) -> tuple[object, BaseException | None, bool]:
    """The handler's answer, what it raised, and whether it came to its end."""
    timer = None
    if deadline is not None:
        timer = shared.clock.call_at(deadline, lambda: work.cancel("timeout"))
    scope = work.scope = anyio.CancelScope()
    for held in work.helds:
        held.on_lost = work.lose
        if held.is_reported_lost:
            work.lose(held)
    if work.cause:
        scope.cancel()
    answer: object = None
    error: BaseException | None = None
    finished = False
    pid = os.getpid()
    try:
        with scope:
            answer = await _call(shared, work, jobs, payloads)
            finished = True
        end_if_forked(pid)
    except BaseException as raised:
        end_if_forked(pid)
        if shared.aborting:
            raise
        uncancel()
        error = raised
    finally:
        if timer is not None:
            timer.cancel()
        for held in work.helds:
            held.on_lost = None
        work.scope = None
    return answer, error, finished


async def _call(shared: Shared, work: Work, jobs: list[Job], payloads: list[object]) -> object:
    route = work.route
    instrumentation = work.instrumentation
    if instrumentation is None:
        return await call_handler(route, jobs, payloads, shared.threads)
    deliveries = [held.view for held in work.helds]
    with instrumentation.processing(deliveries, route.name, jobs[0].attempt, lambda: work.cause):
        work.context = copy_context()
        return await call_handler(route, jobs, payloads, shared.threads)


def _outcomes(
    shared: Shared, work: Work, answer: object, error: BaseException | None, *, finished: bool
) -> list[Outcome]:
    count = len(work.helds)
    if error is not None:
        return [outcome_of_error(work.route.retry, error, shared.request_exit)] * count
    if not finished:
        return [Retry()] * count
    if not work.route.batch or answer is None:
        return [Done()] * count
    return outcomes_of_batch(answer, count)

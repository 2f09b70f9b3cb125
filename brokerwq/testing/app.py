"""A user's app in a test: on a broker in memory, where time passes when the test says so."""

from __future__ import annotations

import inspect
import math
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, cast

from brokerwq.app import App
from brokerwq.durations import Seconds, seconds_of
from brokerwq.errors import ConfigError, EnvelopeError
from brokerwq.limits import MAX_GRACE
from brokerwq.message import DeadLetterNote, Message
from brokerwq.place import Changes, Lifespan, WrapDriver
from brokerwq.reports import RunReport
from brokerwq.runner import Runner
from brokerwq.testing.clock import FakeClock
from brokerwq.testing.endless import HANG_PATIENCE, Silence
from brokerwq.testing.passing import Passage
from brokerwq.testing.recorder import Buried, Recorder, Sent
from brokerwq.testing.watch import PATIENCE, Watch
from brokerwq.workers.decorating import AnyWorker
from brokerwq.workers.worker import KeywordWorker

if TYPE_CHECKING:
    from brokerwq.idempotency.store import Store

T = TypeVar("T")

_MISSING: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """A message that was enqueued.

    Attributes:
        id: The message's.
        queue: Its queue.
        type: The worker it is meant for.
        payload: What the worker is given; the fields of a worker that takes them by name.
        delay: Seconds that it was told to wait.
        message: All of it.
    """

    id: str
    queue: str
    type: str
    payload: Any
    delay: float
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """A message that was given up on.

    Attributes:
        id: The message's.
        queue: The queue it was taken from.
        type: The worker it was meant for.
        payload: What the worker was given; None where the body cannot be read.
        reason: One word, such as ``failed`` or ``timeout``.
        error: Class and text of the last exception; empty where there was none.
        attempts: Attempts spent.
        note: All that was written down.
        message: All of the message.
    """

    id: str
    queue: str
    type: str
    payload: Any
    reason: str
    error: str
    attempts: int
    note: DeadLetterNote
    message: Message


class TestApp:
    """An app on a memory broker and a fake clock, for as long as the block lasts.

        async with TestApp(app) as shop:
            await place_order.enqueue(order)
            report = await shop.drain()

    Works with any test framework; with pytest see the fixture ``bwq_app``. ``with`` will do as
    well as ``async with``.

    Args:
        app: The app, with its workers; afterwards it is where it was.
        url: The broker; one in memory, whose messages are gone at the end.
        clock: What time it is; None takes a new one.
        store: For ``once``, in place of the app's own; None keeps that.
        lifespan: In place of ``@app.lifespan``; None keeps that.
        driver: Put around each driver, for example to make it fail.

    Attributes:
        app: The app.
        clock: What time it is.
        patience: Seconds of the machine's time for which a running coroutine worker keeps the
            fake clock from moving on; above what the worker really waits for in a test, such
            as a database. A plain function always keeps it until it returns.
        hang_patience: Seconds of the machine's time for which nothing must happen before a
            coroutine worker without a time limit is said to hang; infinite for never.
    """

    __test__: ClassVar[bool] = False  # pytest collects classes by their names

    def __init__(
        self,
        app: App,
        url: str = "memory://",
        *,
        clock: FakeClock | None = None,
        store: Store | str | None = None,
        lifespan: Lifespan | None = None,
        driver: WrapDriver | None = None,
    ) -> None:
        self.app: App = app
        self.clock: FakeClock = FakeClock() if clock is None else clock
        self.patience: float = PATIENCE
        self.hang_patience: float = HANG_PATIENCE
        self._recorder = Recorder(self.clock)
        self._watch = Watch(app)
        changes = Changes(
            clock=self.clock, telemetry=self._watch, driver=_wrapped(self._recorder, driver)
        )
        if store is not None:
            changes["store"] = store
        if lifespan is not None:
            changes["lifespan"] = lifespan
        self._there = app.on(url, **changes)

    def __enter__(self) -> Self:
        """See ``App.on``."""
        self._there.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See ``App.on``."""
        self._there.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        """See ``App.on``."""
        await self._there.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See ``App.on``."""
        await self._there.__aexit__(kind, error, trace)

    # -- running --------------------------------------------------------------------------

    async def drain(self, *queues: str, include_delayed: bool = False) -> RunReport:
        """Run the workers until nothing is left to do, retries included.

        Time moves on by itself to whatever is due next.

        Args:
            *queues: Only these; all of the app's if none is named.
            include_delayed: Also what is delayed beyond the longest backoff; otherwise that is
                counted in ``left_delayed``.

        Raises:
            HangError: a worker waits for something that never comes.
        """
        return await self._pass(queues, math.inf, include_delayed=include_delayed)

    async def advance(self, seconds: Seconds = 0.0, /, *queues: str) -> RunReport:
        """Let time pass while the workers run: what becomes due in it is run when it is due.

        With 0 what is ready now is run, and its follow-ups; what waits for a retry is not.
        Afterwards exactly so much time has passed.

        Args:
            seconds: How long.
            *queues: Only these; all of the app's if none is named.

        Raises:
            HangError: as ``drain``.
        """
        until = self.clock.now() + seconds_of(seconds, "seconds", floor=0.0)
        return await self._pass(queues, until, include_delayed=True)

    async def drive(self, work: Coroutine[Any, Any, T], /) -> T:
        """Run ``work``, for example a runner of the test's own; time moves on by itself."""
        return await self.clock.drive(work, threshold=lambda: self._watch.patience(self.patience))

    # -- looking --------------------------------------------------------------------------

    def enqueued(self, worker: AnyWorker, /, *payload: object, **fields: object) -> list[Enqueued]:
        """What was enqueued for ``worker`` since the block began, run or not, oldest first.

        Args:
            worker: For whom.
            *payload: Only messages with this very payload.
            **fields: Only messages whose payload has these values; a field that a message
                leaves out has its default.

        Raises:
            ConfigError: the worker has no such field.
        """
        route = worker.route()
        found: list[Enqueued] = []
        for sent in self._recorder.sent:
            if sent.queue == route.queue and sent.message.type == route.name:
                each = _enqueued(sent, route.decode(sent.message))
                is_meant = all(each.payload == wanted for wanted in payload)
                if is_meant and _matches(worker, each.payload, fields):
                    found.append(each)
        _check_fields(worker, fields)
        return found

    @property
    def dead(self) -> list[Dead]:
        """The dead letters of all queues that are still dead, the oldest first."""
        return [_dead(self.app, buried) for buried in self._recorder.buried]

    @property
    def errors(self) -> list[BaseException]:
        """Every exception that made an attempt of a worker fail, oldest first."""
        return list(self._watch.errors)

    # -- inside ---------------------------------------------------------------------------

    async def _pass(
        self, queues: Sequence[str], until: float, *, include_delayed: bool
    ) -> RunReport:
        runner = Runner(self.app, *queues, grace=MAX_GRACE)
        known = [
            spec.name for spec in self.app.queue_specs() if self.app.registry.routes(spec.name)
        ]
        passage = Passage(
            app=self.app,
            queues=queues or list(known),
            runner=runner,
            clock=self.clock,
            watch=self._watch,
            recorder=self._recorder,
            patience=self.patience,
            silence=Silence(self.clock, self._watch, max(self.hang_patience, self.patience)),
            until=until,
            include_delayed=include_delayed,
        )
        return await passage.run()


def _wrapped(recorder: Recorder, outer: WrapDriver | None) -> WrapDriver:
    if outer is None:
        return recorder.driver
    return lambda driver: outer(recorder.driver(driver))


def _enqueued(sent: Sent, payload: object) -> Enqueued:
    message = sent.message
    return Enqueued(
        id=message.id,
        queue=sent.queue,
        type=message.type,
        payload=payload,
        delay=sent.delay,
        message=message,
    )


def _dead(app: App, buried: Buried) -> Dead:
    message, note = buried.message, buried.note
    payload: object = None
    for route in app.registry.routes(buried.queue):
        if message.type in (route.name, *route.aliases):
            with suppress(EnvelopeError):
                payload = route.decode(message)
    return Dead(
        id=message.id,
        queue=buried.queue,
        type=message.type,
        payload=payload,
        reason=note.reason,
        error=": ".join(filter(None, (note.error_type, note.error))),
        attempts=note.attempts,
        note=note,
        message=message,
    )


def _matches(worker: AnyWorker, payload: object, wanted: Mapping[str, object]) -> bool:
    return all(_field(worker, payload, name) == value for name, value in wanted.items())


def _field(worker: AnyWorker, payload: object, name: str) -> object:
    if isinstance(payload, Mapping):
        fields = cast("Mapping[str, object]", payload)
        return fields[name] if name in fields else _default(worker, name)
    found: object = getattr(payload, name, _MISSING)
    if found is _MISSING:
        raise _no_field(worker, name)
    return found


def _default(worker: AnyWorker, name: str) -> object:
    if not isinstance(worker, KeywordWorker):
        return _MISSING  # one mapping may have the key, and another not
    parameter = inspect.signature(worker.fn).parameters.get(name)
    if parameter is None or parameter.kind is not parameter.KEYWORD_ONLY:
        raise _no_field(worker, name)
    return parameter.default


def _check_fields(worker: AnyWorker, fields: Mapping[str, object]) -> None:
    """A slip in a field's name must not look like a message that was never sent."""
    if isinstance(worker, KeywordWorker):
        for name in fields:
            _default(worker, name)


def _no_field(worker: AnyWorker, name: str) -> ConfigError:
    return ConfigError(f"the payload of worker {worker.name} has no field {name!r:.100}")

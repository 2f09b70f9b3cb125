"""The app: workers, queues and the broker they run on."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, Unpack, overload

from brokerwq._runtime.background import Background
from brokerwq._runtime.children import send_by_kind
from brokerwq.backoff import RetryPolicy, check_policy
from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.codecs import AnyCodec
from brokerwq.driver.protocol import Driver, QueueSpec
from brokerwq.driver.registry import redacted
from brokerwq.durations import Seconds
from brokerwq.errors import ConfigError
from brokerwq.job import Child
from brokerwq.message import Message, Outgoing
from brokerwq.middleware import Middleware, check_layers
from brokerwq.once import Once, Strategy, once_of
from brokerwq.place import Changes, Elsewhere, Lifespan, Place, joined, places_of
from brokerwq.reports import RunReport, SendReport
from brokerwq.workers.decorating import AnyWorker, BatchDecorator, WorkerDecorator, decorator
from brokerwq.workers.names import check_name
from brokerwq.workers.options import Key, OnDead, OnUnknown, WorkerKeywords, WorkerOptions
from brokerwq.workers.registry import Registry

if TYPE_CHECKING:
    from brokerwq.broker import Broker
    from brokerwq.events import Instrumentation, Listener
    from brokerwq.idempotency import Guards
    from brokerwq.idempotency.store import Store
    from brokerwq.runner import RunnerOptions
    from brokerwq.settings import Settings

T = TypeVar("T")

_BY_SETTING: Final = "by setting"


class App:
    """Workers bound to queues of one broker; of several while messages move between them.

    An app may be used on several event loops, one after the other or at once, and after a
    fork: each loop of each process gets a connection of its own when it first sends.

    Args:
        url: The broker; None takes ``BROKERWQ_URL``, and without that
            ``sqlite:///brokerwq.db``. With several, each queue is claimed from all of them.
        send_to: Which of several is sent to, by its URL or its scheme; None takes
            ``BROKERWQ_SEND_TO``, and without that the first.
        store: For ``once``: a store of ``brokerwq.idempotency``, or its URL.
        name: Of this application, kept for ever: ``once`` keeps its keys apart by it.
        queues: Properties of queues, where the ones that the workers imply are not meant.
        retry: For workers that have no policy of their own; None takes the settings'.
        lease: Seconds a claim lasts, for workers that do not say; None takes the setting's.
        middleware: Around every job, outside the worker's own; the first is the outermost.
        telemetry: Told of everything; None takes ``BROKERWQ_TELEMETRY``.
        clock: Time; for tests.

    Raises:
        ConfigError: the URL or a setting is wrong, or no adapter serves it.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        send_to: str | None = None,
        store: Store | str | None = None,
        name: str | None = None,
        queues: Sequence[QueueSpec] = (),
        retry: RetryPolicy | None = None,
        lease: Seconds | None = None,
        middleware: Sequence[Middleware] = (),
        telemetry: Instrumentation | Listener | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        from brokerwq.settings import Settings  # noqa: PLC0415  -- 100 ms an import need not cost

        self.settings: Settings = Settings.load(url=joined(url), send_to=send_to)
        self._retry = RetryPolicy(
            max_attempts=self.settings.max_attempts,
            base=self.settings.backoff_base,
            cap=self.settings.backoff_cap,
            jitter=self.settings.backoff_jitter,
        )
        if retry is not None:
            self._retry = check_policy(retry)
        self._lease: Seconds = self.settings.lease if lease is None else lease
        self._middleware = check_layers(middleware)
        self.place, self._sources = places_of(self.settings, clock, telemetry)
        self._lifespan: Lifespan | None = None
        self._background = Background()
        self._pid = os.getpid()
        self.name: str | None = None if name is None else check_name(name, "app name")
        self._guards: Guards | None = None
        if store is not None:
            from brokerwq.idempotency import Guards  # noqa: PLC0415  -- as above

            self._guards = Guards(store, self.name, clock, self.telemetry, self.send_one)
        self.registry: Registry = Registry(queues)

    def __repr__(self) -> str:
        """For people, without the password."""
        return f"<App on {redacted(self.url)} with {len(self.registry.workers)} workers>"

    @property
    def url(self) -> str:
        """URL of the broker that is sent to; may hold a password, see ``registry.redacted``."""
        return self.place.url

    @property
    def sources(self) -> tuple[Place, ...]:
        """The places that messages are claimed from: the one they are sent to, and others."""
        return self._sources if self.place in self._sources else (self.place,)

    @property
    def clock(self) -> Clock:
        """Time."""
        return self.place.clock

    @property
    def store(self) -> Store | None:
        """The store for ``once``; None without one."""
        return None if self._guards is None else self._guards.store

    @property
    def workers(self) -> tuple[AnyWorker, ...]:
        """The workers, in the order of their decoration."""
        return tuple(self.registry.workers)

    def queue_specs(self) -> list[QueueSpec]:
        """The queues of the workers, as they are declared."""
        return self.registry.specs()

    @property
    def telemetry(self) -> Instrumentation | None:
        """What is told of everything; None for nobody."""
        return self.place.instrumentation

    # -- workers --------------------------------------------------------------------------

    @overload
    def worker(
        self,
        queue: str,
        /,
        *,
        batch: int,
        batch_wait: Seconds = 0.0,
        **keywords: Unpack[WorkerKeywords],
    ) -> BatchDecorator: ...
    @overload
    def worker(
        self,
        queue: str,
        /,
        *,
        middleware: Sequence[Middleware] = (),
        **keywords: Unpack[WorkerKeywords],
    ) -> WorkerDecorator: ...
    def worker(
        self,
        queue: str,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        lease: Seconds | Literal["by setting"] | None = _BY_SETTING,
        timeout: Seconds | None = None,
        retry: RetryPolicy | None = None,
        slots: int | None = None,
        key: Key | None = None,
        once: Once | Strategy | None = None,
        key_version: int = 1,
        codec: AnyCodec | None = None,
        foreign: bool = False,
        on_unknown: OnUnknown = "dead-letter",
        on_dead: OnDead = "dead-letter",
        batch: int | None = None,
        batch_wait: Seconds = 0.0,
        middleware: Sequence[Middleware] = (),
    ) -> Any:
        """Bind a function to a queue; it stays a function, and can be enqueued.

        The function takes the job first if it wants it, then either one payload or
        keyword-only fields; with ``batch`` it takes lists. ``async def`` runs on the
        runner's loop, plain ``def`` in a thread.

        Args:
            queue: Its queue.
            name: The message type; None takes the function's name.
            aliases: Older types that it runs as well, so that it can be renamed.
            lease: Seconds a claim lasts; heartbeats extend it. None leaves it to the queue.
            timeout: Seconds one call may take; None takes the setting, which is no limit.
            retry: How often, when, and what each exception means.
            slots: Most jobs of this worker at once in one runner.
            key: What makes two messages the same work: a function of the payload, or names
                of its fields.
            once: Keep the work from being done twice: ``marker``, ``transactional`` or
                ``lease_tx``, or an ``Once`` with its policies. Needs a store.
            key_version: Raise it when the same key is to mean other work.
            codec: A codec or its name; None goes by the payload's type.
            foreign: Take the messages without a type, on a queue that somebody else fills
                and that is never declared.
            on_unknown: ``leave`` foreign messages of a type without a worker to others.
            on_dead: ``hold`` in the queue what would be a dead letter.
            batch: Messages in one call; the worker then has its queue to itself.
            batch_wait: Seconds to wait for a full batch.
            middleware: Around this worker's jobs.

        Raises:
            ConfigError: at decoration, if anything of this does not fit.
        """
        layers = check_layers(middleware)
        around = layers if batch else (*self._middleware, *layers)
        options = WorkerOptions(
            queue=queue,
            name=name,
            aliases=aliases,
            lease=self._lease if lease == _BY_SETTING else lease,
            timeout=self.settings.timeout if timeout is None else timeout,
            retry=self._retry if retry is None else retry,
            slots=slots,
            key=key,
            once=once_of(once),
            key_version=key_version,
            codec=codec,
            foreign=foreign,
            on_unknown=on_unknown,
            on_dead=on_dead,
            batch=batch,
            batch_wait=batch_wait,
            middleware=around,
        )
        return decorator(self, options, self.registry.add, self._guards)

    def lifespan(self, resources: Lifespan, /) -> Lifespan:
        """Decorate an async generator that makes what every job may use, and frees it.

        It is entered once in each runner process, before the first claim, and left after the
        last settle; what it yields is ``job.state``.

        Raises:
            ConfigError: it is none.
        """
        if not inspect.isasyncgenfunction(resources):
            msg = f"a lifespan is an async def that yields once, not {resources!r:.200}"
            raise ConfigError(msg)
        self._lifespan = resources
        return resources

    def enter_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """The lifespan as a context manager; for the runner."""
        from brokerwq._runtime.lifespan import EnteredLifespan  # noqa: PLC0415  -- as below

        return EnteredLifespan(self.place.lifespan or self._lifespan)

    # -- running --------------------------------------------------------------------------

    async def run(
        self, *queues: str, handle_signals: bool = True, **options: Unpack[RunnerOptions]
    ) -> RunReport:
        """Run the workers until told to stop; see ``Runner`` and ``Runner.run``."""
        from brokerwq.runner import Runner  # noqa: PLC0415  -- producers need none of it

        return await Runner(self, *queues, **options).run(handle_signals=handle_signals)

    async def drain(
        self,
        *queues: str,
        include_delayed: bool = False,
        settle: Seconds = 5.0,
        progress: Callable[[int], object] | None = None,
        handle_signals: bool = True,
        **options: Unpack[RunnerOptions],
    ) -> RunReport:
        """Run the workers until their queues are empty; see ``Runner`` and ``Runner.drain``."""
        from brokerwq.runner import Runner  # noqa: PLC0415  -- producers need none of it

        return await Runner(self, *queues, **options).drain(
            include_delayed=include_delayed,
            settle=settle,
            progress=progress,
            handle_signals=handle_signals,
        )

    def build_driver(self) -> Driver:
        """A driver of the app's broker that is not yet open.

        Raises:
            AdapterMissingError: its client library is not installed.
        """
        return self.place.build_driver()

    def on(self, url: str, /, **changes: Unpack[Changes]) -> Elsewhere:
        """Put this app, with all its workers, on another broker for the length of a block.

        For tests: ``async with app.on("memory://", clock=FakeClock()): …``, or ``with`` where no
        loop runs. Afterwards the app is where it was; ``async with`` also disconnects.
        Enter it while no runner of the app is at work.

        Args:
            url: The other broker.
            **changes: What else is different there, see ``Changes``.

        Raises:
            ConfigError: the URL is wrong, no adapter serves it, or the store does not fit.
        """
        return Elsewhere(self, url, changes)

    def use_store(self, clock: Clock, store: Store | str | None, /) -> Callable[[], object]:
        """Keep the keys of ``once`` by ``clock`` and in ``store``; undone by what is returned."""
        if self._guards is not None:
            return self._guards.use(clock, store)
        if store is not None:
            msg = "this app has no store that another could stand in for: App(store=…)"
            raise ConfigError(msg)
        return bool

    # -- sending --------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect now rather than at the first enqueue.

        Raises:
            DriverError: the broker could not be reached in time, or refused.
        """
        await self.broker().open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect what this loop has opened."""
        await self.aclose()

    async def aclose(self) -> None:
        """Disconnect what this loop has opened; it connects again when it is used again."""
        await self.place.aclose()
        if self.store is not None:
            await self.store.aclose()

    def broker(self) -> Broker:
        """This loop's connection; opened when it is first used."""
        self._notice_fork()
        timeout = self.settings.connect_timeout
        return self.place.broker(self.build_driver, timeout, self.registry.by_name())

    async def send_one(self, queue: str, message: Message, delay: float, /) -> None:
        """Send one message of a worker; see ``brokerwq.workers.spec.Sender``."""
        await self.broker().send_one(queue, message, delay)

    async def send_in(self, tx: Any, queue: str, message: Message, delay: float, /) -> None:
        """Write one message of a worker into an outbox; see ``workers.spec.Sender``."""
        from brokerwq.idempotency.borrowed import put_out  # noqa: PLC0415  -- as in __init__

        clock = None if self.store is None else self.clock
        await put_out(tx, queue, message, delay, clock, instrumentation=self.telemetry)

    async def send_many(
        self, queue: str, outgoing: AsyncIterator[Outgoing] | Iterator[Outgoing], /
    ) -> SendReport:
        """Send many messages of a worker; see ``brokerwq.workers.spec.Sender``."""
        from brokerwq._runtime import bulk_sending  # noqa: PLC0415  -- as in broker()

        return await bulk_sending.send_in_chunks(self.broker(), queue, outgoing)

    async def relay_outbox(self) -> int:
        """Send what is in the store's outbox, as runners do every second; how many were sent."""
        return 0 if self._guards is None else await self._guards.relay()

    async def send_children(self, children: Sequence[Child], /) -> None:
        """Send what a job enqueued, many at a time.

        Raises:
            DriverError: one was not accepted; others were.
        """
        await send_by_kind(self.broker().send_batch, children)

    def run_sync(self, call: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Run ``call()`` on the app's background loop, and wait for it in this thread."""
        self._notice_fork()
        return self._background.run(call)

    def utcnow(self) -> datetime:
        """The wall clock, in UTC."""
        return self.clock.utcnow()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            # A child must not touch its parent's sockets and files, not even to close them.
            self.place.forget()
            self._background = Background()
            self._pid = os.getpid()

"""Which handlers run, so that a fake clock knows when to stand still."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final

from brokerwq._runtime.route import Route
from brokerwq.app import App
from brokerwq.driver.protocol import Delivery
from brokerwq.events import Event, JobEnded

PATIENCE: Final = 0.1
"""Seconds of the machine's time for which a coroutine that waits for something else than the
fake clock keeps that from moving on."""
LONG_PATIENCE: Final = 10.0
"""The same for a plain function, which cannot wait for the fake clock at all."""

IN_HANDLER: Final[ContextVar[bool]] = ContextVar("brokerwq_testing_in_handler", default=False)
"""Whether a handler is what waits for the clock."""


class Watch:
    """Which handlers run, and what they raised; an ``Instrumentation``.

    Args:
        app: Whose handlers.

    Attributes:
        threads: How many plain functions run.
        changes: How often a handler has begun or ended.
        errors: Every exception that made an attempt fail, oldest first.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._running: dict[object, tuple[str, Sequence[Delivery]]] = {}
        self._coroutines = 0
        self.threads: int = 0
        self.changes: int = 0
        self.errors: list[BaseException] = []

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._coroutines + self.threads

    @property
    def jobs(self) -> list[tuple[str, str]]:
        """Worker and message of each job that runs, the oldest first."""
        return [
            (type_, each.message.id)
            for type_, deliveries in self._running.values()
            for each in deliveries
        ]

    @property
    def is_endless(self) -> bool:
        """Whether handlers run, and neither a thread nor a time limit will end one of them."""
        routes = [self._route(each[0].queue, type_) for type_, each in self._running.values()]
        limited = (route is not None and route.timeout is not None for route in routes)
        return bool(routes) and not self.threads and not any(limited)

    def patience(self, patience: float) -> float:
        """Seconds of the machine's time for which the clock stands still now."""
        if self.threads:
            return max(LONG_PATIENCE, patience)
        return patience if self._coroutines else 0.0

    def emit(self, event: Event, /) -> None:
        """See ``Instrumentation.emit``."""
        if isinstance(event, JobEnded) and event.error is not None:
            self.errors.append(event.error)

    def sending(
        self, queue: str, type_: str, count: int, message_id: str = "", /
    ) -> AbstractContextManager[Mapping[str, str]]:
        """See ``Instrumentation.sending``."""
        return nullcontext({})

    @contextmanager
    def processing(
        self,
        deliveries: Sequence[Delivery],
        type_: str,
        attempt: int,
        cause: Callable[[], str] = str,
        /,
    ) -> Generator[None]:
        """See ``Instrumentation.processing``."""
        route = self._route(deliveries[0].queue, type_)
        is_async = route is None or route.is_async
        self._coroutines += is_async
        self.threads += not is_async
        self.changes += 1
        run = object()
        self._running[run] = type_, deliveries
        token = IN_HANDLER.set(True)
        try:
            yield
        finally:
            IN_HANDLER.reset(token)
            del self._running[run]
            self._coroutines -= is_async
            self.threads -= not is_async
            self.changes += 1

    def _route(self, queue: str, name: str) -> Route | None:
        # Asked each time: a test may declare a worker of its own at any moment.
        found = (route for route in self._app.registry.routes(queue) if route.name == name)
        return next(found, None)

    def settling(
        self, queue: str, operation: str, deliveries: Sequence[Delivery], /
    ) -> AbstractContextManager[None]:
        """See ``Instrumentation.settling``."""
        return nullcontext()

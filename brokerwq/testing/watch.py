"""Which handlers run, so that a fake clock knows when to stand still."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from brokerwq.app import App
from brokerwq.driver.protocol import Delivery
from brokerwq.events import Event, JobEnded

PATIENCE: Final = 0.1
"""Seconds of the machine's time for which a coroutine that waits for something else than the
fake clock keeps that from moving on."""
LONG_PATIENCE: Final = 10.0
"""The same for a plain function, which cannot wait for the fake clock at all."""


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
        self._is_async = {
            (route.queue, route.name): route.is_async
            for route in (worker.route() for worker in app.workers)
        }
        self._coroutines = 0
        self.threads: int = 0
        self.changes: int = 0
        self.errors: list[BaseException] = []

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._coroutines + self.threads

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
        is_async = self._is_async.get((deliveries[0].queue, type_), True)
        self._coroutines += is_async
        self.threads += not is_async
        self.changes += 1
        try:
            yield
        finally:
            self._coroutines -= is_async
            self.threads -= not is_async
            self.changes += 1

    def settling(
        self, queue: str, operation: str, deliveries: Sequence[Delivery], /
    ) -> AbstractContextManager[None]:
        """See ``Instrumentation.settling``."""
        return nullcontext()

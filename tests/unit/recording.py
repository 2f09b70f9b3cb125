"""A sender that keeps what it is given, and workers that send with it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from brokerwq.backoff import RetryPolicy
from brokerwq.errors import BrokerwqError, TransientError
from brokerwq.message import Message, Outgoing
from brokerwq.reports import FailedSend, SendReport
from brokerwq.workers.decorating import build_worker
from brokerwq.workers.options import WorkerOptions

T = TypeVar("T")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class RecordingSender:
    """Keeps messages; refuses those whose body is in ``refused``."""

    sent: list[tuple[str, Message, float]] = field(default_factory=list[tuple[str, Message, float]])
    refused: set[bytes] = field(default_factory=set[bytes])
    calls: int = 0

    async def send_one(self, queue: str, message: Message, delay: float, /) -> None:
        self.sent.append((queue, message, delay))

    async def send_in(self, tx: Any, queue: str, message: Message, delay: float, /) -> None:
        self.sent.append((f"{queue} in {tx}", message, delay))

    async def send_many(
        self, queue: str, outgoing: AsyncIterator[Outgoing] | Iterator[Outgoing], /
    ) -> SendReport:
        self.calls += 1
        failed: list[FailedSend] = []
        index = -1
        async for message, delay in _each(outgoing):
            index += 1
            if message.body in self.refused:
                error: BrokerwqError = TransientError("refused")
                failed.append(FailedSend(index=index, id=message.id, error=error))
            else:
                self.sent.append((queue, message, delay))
        return SendReport(
            sent=index + 1 - len(failed), failed_count=len(failed), failed=tuple(failed)
        )

    def run_sync(self, call: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        return asyncio.run(call())

    def utcnow(self) -> datetime:
        return NOW

    @property
    def message(self) -> Message:
        """The only message that was sent."""
        ((_, message, _),) = self.sent
        return message

    @property
    def delay(self) -> float:
        """The delay of the only message that was sent."""
        ((_, _, delay),) = self.sent
        return delay

    def worker(self, fn: Callable[..., Any], queue: str = "q", **options: Any) -> Any:
        """``fn`` as a worker; annotations may name the caller's locals."""
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        options = {"retry": RetryPolicy(), **options}
        return build_worker(self, fn, WorkerOptions(queue=queue, **options), frame.f_back.f_locals)


async def _each(
    outgoing: AsyncIterator[Outgoing] | Iterator[Outgoing],
) -> AsyncIterator[Outgoing]:
    if isinstance(outgoing, AsyncIterator):
        async for each in outgoing:
            yield each
    else:
        for each in outgoing:
            yield each

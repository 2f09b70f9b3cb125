"""How ``App.worker`` is declared."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack, overload

from brokerwq.backoff import RetryPolicy
from brokerwq.bulk import Outgoing
from brokerwq.codecs import Codec
from brokerwq.decorating import BatchDecorator, WorkerDecorator, decorator
from brokerwq.durations import Seconds
from brokerwq.message import Message
from brokerwq.middleware import Middleware
from brokerwq.options import Key, WorkerKeywords, WorkerOptions
from brokerwq.reports import SendReport
from brokerwq.worker import Sender

T = TypeVar("T")


class Nobody:
    """A sender for workers that never send."""

    async def send_one(self, queue: str, message: Message, delay: float, /) -> None:
        raise NotImplementedError

    async def send_many(
        self, queue: str, outgoing: AsyncIterator[Outgoing] | Iterator[Outgoing], /
    ) -> SendReport:
        raise NotImplementedError

    def run_sync(self, call: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        raise NotImplementedError

    def utcnow(self) -> datetime:
        raise NotImplementedError


class App:
    def __init__(self) -> None:
        self._sender: Sender = Nobody()
        self.workers: list[Any] = []

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
        lease: Seconds | None = None,
        timeout: Seconds | None = None,
        retry: RetryPolicy | None = None,
        slots: int | None = None,
        key: Key | None = None,
        codec: Codec | Literal["json", "bytes"] | None = None,
        foreign: bool = False,
        batch: int | None = None,
        batch_wait: Seconds = 0.0,
        middleware: Sequence[Middleware] = (),
    ) -> Any:
        options = WorkerOptions(
            queue=queue,
            name=name,
            aliases=aliases,
            lease=lease,
            timeout=timeout,
            retry=retry or RetryPolicy(),
            slots=slots,
            key=key,
            codec=codec,
            foreign=foreign,
            batch=batch,
            batch_wait=batch_wait,
            middleware=middleware,
        )
        return decorator(self._sender, options, self.workers.append)

"""One worker, resolved: what its messages are made of, and what a runner needs to know."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar, cast

from brokerwq._runtime.guard import Guard
from brokerwq._runtime.route import Foreign, Route
from brokerwq.codecs import BoundCodec
from brokerwq.codecs.choosing import reads_only
from brokerwq.durations import Seconds
from brokerwq.errors import ConfigError
from brokerwq.message import Message, Outgoing, new_message_id
from brokerwq.reports import SendReport
from brokerwq.workers.keys import KeyReader
from brokerwq.workers.options import CheckedOptions, WorkerOptions, check_send_options
from brokerwq.workers.signature import Signature

T = TypeVar("T")


class Sender(Protocol):
    """What a worker needs from its app."""

    async def send_one(self, queue: str, message: Message, delay: float, /) -> None:
        """Send; on return the broker has accepted it for keeping.

        Raises:
            DriverError: it has not, as far as is known.
        """
        ...

    async def send_in(self, tx: Any, queue: str, message: Message, delay: float, /) -> None:
        """Send if and only if the transaction that is open on ``tx`` is committed.

        Raises:
            ConfigError: ``tx`` is no connection or session of a database that has an outbox.
        """
        ...

    async def send_many(
        self, queue: str, outgoing: AsyncIterator[Outgoing] | Iterator[Outgoing], /
    ) -> SendReport:
        """Send all of ``outgoing``, lazily, in chunks that fit the broker's limits.

        An index in the report counts the messages, from 0.
        """
        ...

    def run_sync(self, call: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Run ``call()`` on the app's background loop, and wait for it in this thread."""
        ...

    def utcnow(self) -> datetime:
        """The wall clock, in UTC."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker, as read at decoration; shared by all its copies with options."""

    sender: Sender
    fn: Callable[..., Any]
    name: str
    options: WorkerOptions
    signature: Signature
    codec: BoundCodec
    content_type: str
    key: KeyReader | None
    guard: Guard | None = None
    foreign: Foreign | None = None

    def message(
        self,
        payload: Any,
        sending: CheckedOptions,
        *,
        id_: str | None = None,
        cause: str | None = None,
    ) -> Message:
        """The message that carries ``payload``.

        Raises:
            ConfigError: the worker's messages are another program's.
        """
        if reads_only(self.options.codec):
            msg = (
                f"worker {self.name} runs the messages of another program, which alone can send "
                f"them; for your own: app.worker(QUEUE)({self.fn.__name__}.fn)"
            )
            raise ConfigError(msg)
        body = self.codec.encode(payload)
        return Message(
            id=id_ or sending.id or new_message_id(),
            body=body,
            type=self.name,
            content_type=self.content_type,
            headers=sending.headers,
            created_at=self.sender.utcnow(),
            key=None if self.key is None else self.key(payload),
            group=sending.group,
            cause=cause,
        )

    def decode(self, message: Message) -> object:
        """The payload of ``message``."""
        return self.codec.decode(message.body, message.content_type)

    def sending(self, options: Mapping[str, object]) -> CheckedOptions:
        """``options``, checked."""
        return check_send_options(options, self.sender.utcnow)

    def child(
        self, payload: Any, options: Mapping[str, object], *, child_id: str, parent_id: str
    ) -> PendingChild:
        """The message that the job of the message ``parent_id`` sends when it succeeds."""
        if "id" in options:
            msg = "leave out id: a job's child has one that is derived from the job's"
            raise ConfigError(msg)
        if "tx" in options:
            msg = "leave out tx: a job's child belongs to the job; or use tx.enqueue"
            raise ConfigError(msg)
        sending = self.sending(options)
        message = self.message(payload, sending, id_=child_id, cause=parent_id)
        return PendingChild(queue=self.options.queue, message=message, delay=sending.delay)

    def route(self) -> Route:
        """What a runner needs to know."""
        options = self.options
        return Route(
            queue=options.queue,
            name=self.name,
            decode=self.decode,
            call=_call_of(self.fn, self.signature),
            is_async=self.signature.is_async,
            retry=options.retry,
            aliases=tuple(options.aliases),
            foreign=self.foreign,
            lease=_seconds(options.lease),
            timeout=_seconds(options.timeout),
            slots=options.slots,
            batch=options.batch or 0,
            batch_wait=_seconds(options.batch_wait) or 0.0,
            middleware=options.middleware,
            guard=self.guard,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingChild:
    """A message that a job sends when it succeeds; see ``brokerwq.job.Child``."""

    queue: str
    message: Message
    delay: float


def _seconds(value: Seconds | None) -> float | None:
    return cast("float | None", value)  # WorkerOptions has turned every duration into one


def _call_of(fn: Callable[..., Any], signature: Signature) -> Callable[[Any, Any], Any]:
    """``fn`` as the runtime calls it: ``call(job, payload)``."""
    if signature.takes_tx:
        if signature.fields is None:
            return lambda job, payload: fn(job, job.tx, payload)
        return lambda job, fields: fn(job, job.tx, **fields)
    if signature.fields is None:
        return fn if signature.takes_job else lambda _, payload: fn(payload)
    if signature.takes_job:
        return lambda job, fields: fn(job, **fields)
    return lambda _, fields: fn(**fields)

"""Workers as their callers see them: functions that can also be enqueued."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, Unpack

from brokerwq._runtime.bulk_sending import chunks
from brokerwq._runtime.route import Route
from brokerwq.driver.support import in_short
from brokerwq.durations import Seconds
from brokerwq.errors import BrokerwqError, ConfigError, EnqueueError, PayloadError
from brokerwq.message import Message, Outgoing
from brokerwq.reports import SendReport
from brokerwq.workers.bulk import Bulk
from brokerwq.workers.options import AT_ONCE, CheckedOptions, SendOptions, check_delay
from brokerwq.workers.spec import PendingChild, Sender, WorkerSpec

__all__ = ["Call", "KeywordWorker", "OnErrors", "PayloadWorker", "SendOptions", "Sender"]

P = ParamSpec("P")
K = ParamSpec("K")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

OnErrors: TypeAlias = Literal["raise", "return"]

_HANDED_OVER = 1000
"""Messages that ``enqueue_many_sync`` gives to the background loop at a time."""


class _Worker(Generic[P, R_co]):
    """What both forms have in common."""

    def __init__(self, spec: WorkerSpec) -> None:
        # __name__, __doc__, __wrapped__ and the like: the function stays what it was.
        functools.update_wrapper(self, spec.fn)
        self._spec = spec

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function, here and now; nothing is sent."""
        result: R_co = self._spec.fn(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        """For people: ``<worker thumbnail on queue images>``."""
        return f"<worker {self.name} on queue {self.queue}>"

    @property
    def fn(self) -> Callable[P, R_co]:
        """The function that was decorated."""
        return self._spec.fn

    @property
    def name(self) -> str:
        """The message type."""
        return self._spec.name

    @property
    def queue(self) -> str:
        """The queue it is bound to."""
        return self._spec.options.queue

    @property
    def sender(self) -> Sender:
        """What it sends by: its app."""
        return self._spec.sender

    def route(self) -> Route:
        """What a runner needs to know."""
        return self._spec.route()

    @property
    def holds_dead(self) -> bool:
        """Whether its queue has no dead-letter queue, and keeps what would go there."""
        return self._spec.options.on_dead == "hold"

    async def _send(self, message: Message, sending: CheckedOptions) -> str:
        if sending.tx is not None:
            await self._spec.sender.send_in(sending.tx, self.queue, message, sending.delay)
            return message.id
        try:
            await self._spec.sender.send_one(self.queue, message, sending.delay)
        except BrokerwqError as error:
            raise in_short(error) from error.__cause__
        return message.id

    def _send_sync(self, message: Message, sending: CheckedOptions) -> str:
        if sending.tx is not None:
            msg = "tx needs the connection's own thread: await enqueue(…, tx=…)"
            raise ConfigError(msg)
        sender = self._spec.sender
        try:
            sender.run_sync(lambda: sender.send_one(self.queue, message, sending.delay))
        except BrokerwqError as error:
            raise in_short(error) from error.__cause__
        return message.id

    async def _send_many(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        make: Callable[[Any], Outgoing],
        errors: OnErrors,
    ) -> SendReport:
        _check_many(items, errors, Iterable | AsyncIterable)
        bulk = Bulk(make)
        send = self._spec.sender.send_many
        if isinstance(items, AsyncIterable):
            async with aclosing(bulk.each_async(items)) as outgoing:
                sent = await send(self.queue, outgoing)
        else:
            sent = await send(self.queue, bulk.each(items))
        return _answer(bulk.report(sent), errors)

    def _send_many_sync(
        self, items: Iterable[Any], make: Callable[[Any], Outgoing], errors: OnErrors
    ) -> SendReport:
        _check_many(items, errors, Iterable)
        sender = self._spec.sender
        bulk = Bulk(make)
        sent, count = SendReport(), 0
        # Taken from the caller's iterable in the caller's thread: a database cursor, say,
        # must not be read in another one.
        for chunk in chunks(bulk.each(items), _HANDED_OVER):
            part = sender.run_sync(functools.partial(sender.send_many, self.queue, iter(chunk)))
            sent = sent.joined(part, offset=count)
            count += len(chunk)
        return _answer(bulk.report(sent), errors)


class PayloadWorker(_Worker[P, R_co], Generic[P, T_contra, R_co]):
    """A worker that takes one payload. Call it to run it here; enqueue it to have it run."""

    async def enqueue(self, payload: T_contra, /, **options: Unpack[SendOptions]) -> str:
        """Send a message; when this returns, the broker has it for keeping.

        Args:
            payload: What the worker will be given.
            **options: See ``SendOptions``.

        Returns:
            The message's id.

        Raises:
            PayloadError: it is not of the worker's type or cannot be written; nothing was sent.
            ConfigError: an option is unknown or out of its range; nothing was sent.
            DriverError: the broker did not confirm it.
        """
        sending = self._spec.sending(options)
        return await self._send(self._spec.message(payload, sending), sending)

    def enqueue_sync(self, payload: T_contra, /, **options: Unpack[SendOptions]) -> str:
        """``enqueue`` for programs without an event loop."""
        sending = self._spec.sending(options)
        return self._send_sync(self._spec.message(payload, sending), sending)

    async def enqueue_many(
        self,
        payloads: Iterable[T_contra] | AsyncIterable[T_contra],
        /,
        *,
        delay: Seconds = 0.0,
        errors: OnErrors = "raise",
    ) -> SendReport:
        """Send a message for each payload, lazily, in chunks that fit the broker's limits.

        Each id is fixed before its first send. An item that cannot be sent does not keep the
        others from being sent. An error of the iterable itself is raised as it is; what the
        iterable gave before may have been sent.

        Args:
            payloads: Any iterable, also an async one; only a chunk of it is held at a time.
            delay: For all of them, in seconds or as a ``timedelta``.
            errors: ``return`` to have failed items in the report alone.

        Raises:
            EnqueueError: some items were not confirmed; its ``report`` says which and why.
            ConfigError: an argument is wrong; nothing was sent.
        """
        return await self._send_many(payloads, self._maker(delay), errors)

    def enqueue_many_sync(
        self,
        payloads: Iterable[T_contra],
        /,
        *,
        delay: Seconds = 0.0,
        errors: OnErrors = "raise",
    ) -> SendReport:
        """``enqueue_many`` for programs without an event loop."""
        return self._send_many_sync(payloads, self._maker(delay), errors)

    def parse(self, body: bytes, /) -> Any:
        """The payload that ``body`` holds, fit for ``enqueue``.

        Raises:
            EnvelopeError: it holds none.
        """
        return self._spec.codec.decode(body, "")

    def child(
        self, child_id: str, parent_id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> PendingChild:
        """The message of ``job.enqueue(worker, *args, **kwargs)``."""
        if len(args) != 1:
            msg = f"worker {self.name} takes one payload, not {len(args)}"
            raise PayloadError(msg)
        return self._spec.child(args[0], kwargs, child_id=child_id, parent_id=parent_id)

    def _maker(self, delay: Seconds) -> Callable[[Any], Outgoing]:
        message, seconds = self._spec.message, check_delay(delay)
        return lambda payload: (message(payload, AT_ONCE), seconds)


class Call:
    """What one message of a keyword worker holds, for ``enqueue_many``."""

    __slots__ = ("_spec", "fields", "options")

    def __init__(
        self, spec: WorkerSpec, fields: Mapping[str, Any], options: Mapping[str, object]
    ) -> None:
        self._spec = spec
        self.fields: Mapping[str, Any] = fields
        self.options: Mapping[str, object] = options

    def __repr__(self) -> str:
        """For people; shows no values."""
        return f"<call of {self._spec.name}({', '.join(self.fields)})>"

    def outgoing(self, spec: WorkerSpec, /) -> Outgoing:
        """The message, if the call is one of ``spec``'s worker.

        Raises:
            PayloadError: it is not, or its fields are not what the worker takes.
        """
        if self._spec is not spec:
            msg = f"this is a call of worker {self._spec.name}, not of {spec.name}"
            raise PayloadError(msg)
        sending = spec.sending(self.options)
        if sending.tx is not None:
            msg = "leave out tx: enqueue_many sends to the broker"
            raise ConfigError(msg)
        return spec.message(self.fields, sending), sending.delay


class KeywordWorker(_Worker[P, R_co], Generic[P, K, R_co]):
    """A worker that takes keyword-only fields; a message holds them as one JSON object.

    A field that is left out is left out of the message: the default is the one that the
    running worker has. A field that the running worker does not know is never dropped; such a
    message is a dead letter ``decode``.
    """

    def __init__(self, spec: WorkerSpec, options: Mapping[str, object] | None = None) -> None:
        super().__init__(spec)
        self._options = options or {}

    async def enqueue(self, /, *args: K.args, **kwargs: K.kwargs) -> str:
        """Send a message; when this returns, the broker has it for keeping.

        Takes the worker's fields by name; ``options`` says how to send it.

        Returns:
            The message's id.

        Raises:
            PayloadError: a field is missing, unknown, of another type or cannot be written.
            DriverError: the broker did not confirm it.
        """
        message, sending = self._message(args, kwargs)
        return await self._send(message, sending)

    def enqueue_sync(self, /, *args: K.args, **kwargs: K.kwargs) -> str:
        """``enqueue`` for programs without an event loop."""
        message, sending = self._message(args, kwargs)
        return self._send_sync(message, sending)

    def call(self, /, *args: K.args, **kwargs: K.kwargs) -> Call:
        """What a message would hold, for ``enqueue_many``; the fields are checked there."""
        return Call(self._spec, _fields(self._spec, args, kwargs), self._options)

    def options(self, **options: Unpack[SendOptions]) -> KeywordWorker[P, K, R_co]:
        """The same worker, sending with ``options``: ``f.options(delay=60).enqueue(x=1)``.

        Raises:
            ConfigError: an option is unknown or out of its range.
        """
        merged = {**self._options, **options}
        self._spec.sending(merged)
        return KeywordWorker(self._spec, merged)

    async def enqueue_many(
        self, calls: Iterable[Call] | AsyncIterable[Call], /, *, errors: OnErrors = "raise"
    ) -> SendReport:
        """Send a message for each of ``f.call(…)``; see ``PayloadWorker.enqueue_many``.

        Each call has its own options: ``f.options(delay=60).call(x=1)``.

        Raises:
            EnqueueError: some items were not confirmed; its ``report`` says which and why.
            ConfigError: an argument is wrong; nothing was sent.
        """
        return await self._send_many(calls, self._maker(), errors)

    def enqueue_many_sync(
        self, calls: Iterable[Call], /, *, errors: OnErrors = "raise"
    ) -> SendReport:
        """``enqueue_many`` for programs without an event loop."""
        return self._send_many_sync(calls, self._maker(), errors)

    def parse(self, body: bytes, /) -> Call:
        """The call that ``body`` holds, fit for ``enqueue_many``.

        Raises:
            EnvelopeError: it holds none.
        """
        fields: Any = self._spec.codec.decode(body, "")
        return Call(self._spec, fields, self._options)

    def child(
        self, child_id: str, parent_id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> PendingChild:
        """The message of ``job.enqueue(worker, **kwargs)``."""
        fields = _fields(self._spec, args, kwargs)
        return self._spec.child(fields, self._options, child_id=child_id, parent_id=parent_id)

    def _message(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Message, CheckedOptions]:
        sending = self._spec.sending(self._options)
        return self._spec.message(_fields(self._spec, args, kwargs), sending), sending

    def _maker(self) -> Callable[[Any], Outgoing]:
        if self._options:
            msg = "options belong to each call here: write worker.options(…).call(…)"
            raise ConfigError(msg)
        spec = self._spec

        def make(call: object) -> Outgoing:
            if not isinstance(call, Call):
                msg = f"enqueue_many takes {spec.name}.call(…), not {type(call).__name__}"
                raise PayloadError(msg)
            return call.outgoing(spec)

        return make


def _fields(
    spec: WorkerSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    if args:
        msg = (
            f"worker {spec.name} takes its fields by name: {', '.join(spec.signature.fields or ())}"
        )
        raise PayloadError(msg)
    for name in kwargs.keys() - (spec.signature.fields or {}).keys():
        # Whoever has used a payload worker will look for its options here.
        if name in SendOptions.__annotations__:
            msg = (
                f"worker {spec.name} has no field {name!r}; "
                f"the option is said before: {spec.name}.options({name}=…)"
            )
            raise PayloadError(msg)
    return kwargs


def _check_many(items: object, errors: object, wanted: Any) -> None:
    if errors not in ("raise", "return"):
        msg = f"errors must be 'raise' or 'return', not {errors!r:.200}"
        raise ConfigError(msg)
    found = type(items).__name__
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, wanted):
        msg = f"an iterable of items is wanted, not {found}"
        raise ConfigError(msg)


def _answer(report: SendReport, errors: OnErrors) -> SendReport:
    if report.failed_count and errors == "raise":
        raise EnqueueError(report)
    return report

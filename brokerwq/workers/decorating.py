"""From a function to a worker: the types of the decorator, and what it does.

The overloads overlap on purpose. Those that answer ``Refused`` catch shapes that would lose a
parameter silently: they have no ``enqueue``, so that a type checker complains where one is
used; at run time the decorator has refused them already.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import (
    Any,
    Concatenate,
    NotRequired,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from brokerwq.codecs import Arguments, codec_for
from brokerwq.errors import ConfigError
from brokerwq.job import Job
from brokerwq.tx import Tx
from brokerwq.workers.foreign import foreign_of
from brokerwq.workers.guarded import GuardMaker, exact_key, guard_for
from brokerwq.workers.keys import key_reader, value_reader
from brokerwq.workers.names import check_name
from brokerwq.workers.options import WorkerOptions
from brokerwq.workers.signature import Signature, check_function, read_signature
from brokerwq.workers.spec import Sender, WorkerSpec
from brokerwq.workers.worker import KeywordWorker, PayloadWorker

P = ParamSpec("P")
K = ParamSpec("K")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")

AnyWorker: TypeAlias = PayloadWorker[..., Any, Any] | KeywordWorker[..., ..., Any]


class Refused:
    """What a type checker sees of a function whose shape no worker has."""


class WorkerDecorator(Protocol):
    """``app.worker("queue")``."""

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[[Job, Tx, T], R], /
    ) -> PayloadWorker[[Job, Tx, T], T, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Job, Tx, K], R], /
    ) -> KeywordWorker[Concatenate[Job, Tx, K], K, R]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Job, A, B, P], R], /
    ) -> Refused: ...
    @overload
    def __call__(self, fn: Callable[[Job, T], R], /) -> PayloadWorker[[Job, T], T, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Job, K], R], /
    ) -> KeywordWorker[Concatenate[Job, K], K, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[A, B, P], R], /) -> Refused: ...
    @overload
    def __call__(self, fn: Callable[[T], R], /) -> PayloadWorker[[T], T, R]: ...
    @overload
    def __call__(self, fn: Callable[K, R], /) -> KeywordWorker[K, K, R]: ...


class BatchDecorator(Protocol):
    """``app.worker("queue", batch=50)``."""

    @overload
    def __call__(
        self, fn: Callable[[list[Job], list[T]], R], /
    ) -> PayloadWorker[[list[Job], list[T]], T, R]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], R], /) -> PayloadWorker[[list[T]], T, R]: ...


def build_worker(
    sender: Sender,
    fn: Callable[..., Any],
    options: WorkerOptions,
    frame_locals: Mapping[str, Any],
    make_guard: GuardMaker | None = None,
) -> AnyWorker:
    """The worker that ``fn`` becomes.

    Args:
        sender: What it sends with.
        fn: The function.
        options: What the decorator was given.
        frame_locals: Names at the place of decoration, for annotations that are not global.
        make_guard: Makes what ``once`` asks for; None where there is no store.

    Raises:
        ConfigError: the function is of no shape that a worker has, or an option does not fit.
    """
    if isinstance(fn, PayloadWorker | KeywordWorker):
        worker = cast("AnyWorker", fn)
        msg = f"{worker!r} is a worker already; write app.worker(…)({worker.name}.fn) for another"
        raise ConfigError(msg)
    check_function(fn)
    name = _name_of(fn) if options.name is None else options.name
    if name in options.aliases:
        msg = f"worker {name}: {name!r} is its name, and needs no alias"
        raise ConfigError(msg)
    signature = read_signature(fn, batch=options.batch is not None, frame_locals=frame_locals)
    kind = signature.kind if signature.fields is None else _record_of(name, signature)
    codec = codec_for(options.codec, kind)
    try:
        bound = codec.bind(Any if kind is Arguments else kind)
        key = key_reader(options.key, signature)
        guard = guard_for(name, options, signature, make_guard)
        if guard is not None and key is not None:
            key = exact_key(key, value_reader(options.key, signature))
    except ConfigError as exc:
        msg = f"worker {name}: {exc}"
        raise ConfigError(msg) from exc
    spec = WorkerSpec(
        sender=sender,
        fn=fn,
        name=name,
        options=options,
        signature=signature,
        codec=bound,
        content_type=codec.content_type,
        key=key,
        guard=guard,
        foreign=foreign_of(options, signature, codec, bound, key),
    )
    return PayloadWorker(spec) if signature.fields is None else KeywordWorker(spec)


def decorator(
    sender: Sender,
    options: WorkerOptions,
    register: Callable[[AnyWorker], object],
    make_guard: GuardMaker | None = None,
) -> Callable[[Callable[..., Any]], AnyWorker]:
    """What ``@app.worker(…)`` applies; each worker is handed to ``register`` once it is built."""

    def decorate(fn: Callable[..., Any], /) -> AnyWorker:
        # The locals of whoever decorates are what annotations inside a function may mean.
        frame = inspect.currentframe()
        caller = frame.f_back if frame else None
        locals_ = caller.f_locals if caller else {}
        worker = build_worker(sender, fn, options, locals_, make_guard)
        register(worker)
        return worker

    return decorate


def _name_of(fn: Callable[..., Any]) -> str:
    try:
        return check_name(fn.__name__, "worker name")
    except ConfigError as exc:
        msg = f"{exc}; say app.worker(…, name=…)"
        raise ConfigError(msg) from exc


def _record_of(name: str, signature: Signature) -> Any:
    """The type of a mapping of the fields, as pydantic reads it; unknown ones are refused."""
    from pydantic import ConfigDict  # noqa: PLC0415  -- 100 ms that an import must not cost
    from typing_extensions import TypedDict  # noqa: PLC0415  -- pydantic wants it below 3.12

    make: Any = TypedDict  # a type that no checker can follow is made here
    optional: Any = NotRequired
    fields = signature.fields or {}
    record = make(
        name,
        {
            field: each.kind if each.required else optional[each.kind]
            for field, each in fields.items()
        },
    )
    record.__pydantic_config__ = ConfigDict(extra="forbid")
    return record

"""Middleware: one async callable around the handler, as in ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from brokerwq.errors import ConfigError

if TYPE_CHECKING:
    from brokerwq.job import Job

Next: TypeAlias = Callable[["Job"], Awaitable[object]]


class Middleware(Protocol):
    """Wraps every job of a worker. Call ``call_next`` once, or not at all to skip the job."""

    async def __call__(self, job: Job, call_next: Next, /) -> object:
        """Return what the job's result shall be, or raise what its failure shall be."""
        ...


def compose(middleware: Sequence[Middleware], handler: Next) -> Next:
    """``handler`` inside all of ``middleware``; the first is the outermost."""
    for layer in reversed(middleware):
        handler = _around(layer, handler)
    return handler


def _around(layer: Middleware, inner: Next) -> Next:
    async def call(job: Job) -> object:
        return await layer(job, inner)

    return call


def check_layers(middleware: object) -> tuple[Middleware, ...]:
    """``middleware`` as a tuple.

    Raises:
        ConfigError: it is no list, or holds what cannot be called with a job.
    """
    if isinstance(middleware, str) or not isinstance(middleware, Sequence):
        msg = f"middleware must be a list of async callables, not {middleware!r:.200}"
        raise ConfigError(msg)
    layers = cast("Sequence[object]", middleware)  # whatever they are, they are objects
    for layer in layers:
        if isinstance(layer, type):
            msg = f"middleware {layer.__name__} is a class: give an instance of it"
            raise ConfigError(msg)
        if not callable(layer):
            msg = f"middleware {layer!r:.200} cannot be called"
            raise ConfigError(msg)
    return tuple(cast("Sequence[Middleware]", layers))  # as far as can be told without a call

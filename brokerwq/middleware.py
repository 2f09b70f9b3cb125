"""Middleware: one async callable around the handler, as in ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

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

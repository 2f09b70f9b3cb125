"""Sending what jobs enqueued: after success, and before their messages are acked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import TypeVar

from brokerwq._runtime.cancellation import uncancel
from brokerwq.errors import DriverError
from brokerwq.job import Child
from brokerwq.message import Outgoing
from brokerwq.outcomes import Done, Outcome, Retry

T = TypeVar("T")


async def send_children(
    send: Callable[[Sequence[Child]], Awaitable[None]],
    context: Context | None,
    children_of: Sequence[Sequence[Child]],
    outcomes: Sequence[Outcome],
    error: BaseException | None,
    *,
    is_aborting: Callable[[], bool],
) -> tuple[list[Outcome], BaseException | None]:
    """The outcomes, and the error behind them, once the children of all that is done are sent.

    ``children_of`` has those of each job, in the order of ``outcomes``.
    """
    results = list(outcomes)
    for n, (children, outcome) in enumerate(zip(children_of, outcomes, strict=True)):
        if not children or not isinstance(outcome, Done):
            continue
        try:
            await in_context(context, send(children))
        except (Exception, asyncio.CancelledError) as failure:
            if is_aborting():
                raise
            uncancel()
            results[n], error = Retry(), failure  # whatever it was: the job must run again
    return results, error


async def send_by_kind(
    send_batch: Callable[[str, Sequence[Outgoing]], Awaitable[Sequence[DriverError | None]]],
    children: Sequence[Child],
) -> None:
    """Send ``children``, those of one queue and type together.

    Raises:
        DriverError: one was not accepted; others were.
    """
    outgoing: dict[tuple[str, str], list[Outgoing]] = {}
    for child in children:
        kind = child.queue, child.message.type  # as telemetry tells them apart
        outgoing.setdefault(kind, []).append((child.message, child.delay))
    for (queue, _), messages in outgoing.items():
        for error in await send_batch(queue, messages):
            if error is not None:
                raise error


async def in_context(context: Context | None, sending: Awaitable[T]) -> T:
    """What ``sending`` answers, done in ``context``.

    The handler has ended; what it asked for is still its own in a trace.
    """
    if context is None:
        return await sending

    async def send() -> T:
        return await sending

    return await asyncio.create_task(send(), context=context)

"""Sending what jobs enqueued: after success, and before their messages are acked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context

from brokerwq.job import Child, Job
from brokerwq.outcomes import Done, Outcome, Retry


async def send_children(
    send: Callable[[Sequence[Child]], Awaitable[None]],
    context: Context | None,
    jobs: Sequence[Job],
    outcomes: Sequence[Outcome],
    error: BaseException | None,
) -> tuple[list[Outcome], BaseException | None]:
    """The outcomes, and the error behind them, once the children of all that is done are sent."""
    results = list(outcomes)
    for n, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
        children = job.take_children()
        if not children or not isinstance(outcome, Done):
            continue
        try:
            await _in_context(context, send(children))
        except Exception as failure:  # noqa: BLE001 -- any: the job must then run again
            results[n], error = Retry(), failure
    return results, error


async def _in_context(context: Context | None, sending: Awaitable[None]) -> None:
    # The handler has ended; what it asked for is still its own in a trace.
    if context is None:
        await sending
        return

    async def send() -> None:
        await sending

    await asyncio.create_task(send(), context=context)

"""Calling a handler: through its middleware, and in a thread if it is a plain function."""

from __future__ import annotations

import inspect
import os
from typing import Any, cast

import anyio
import anyio.to_thread

from brokerwq._runtime.forks import end_if_forked
from brokerwq._runtime.route import Route
from brokerwq.job import Job
from brokerwq.middleware import compose


async def call_handler(
    route: Route, jobs: list[Job], payloads: list[object], threads: anyio.CapacityLimiter
) -> object:
    """What the handler of ``route`` answers to ``payloads``; raises what it raises."""
    if route.batch:
        return await _invoke(route, jobs, payloads, threads)
    if not route.middleware:
        return await _invoke(route, jobs[0], payloads[0], threads)

    async def innermost(job: Job) -> object:
        return await _invoke(route, job, payloads[0], threads)

    return await compose(route.middleware, innermost)(jobs[0])


async def _invoke(route: Route, job: Any, payload: Any, threads: anyio.CapacityLimiter) -> object:
    if route.is_async:
        return cast("object", await route.call(job, payload))

    pid = os.getpid()

    def call() -> tuple[object, BaseException | None]:
        # Handed over as a value: asyncio closes a coroutine into which it throws a
        # GeneratorExit, and a future refuses a StopIteration.
        try:
            return route.call(job, payload), None
        except BaseException as raised:  # noqa: BLE001 -- raised again in the slot
            return None, raised
        finally:
            end_if_forked(pid)

    # Never abandoned: a thread cannot be stopped, so its slot stays taken until it returns.
    answer, error = await anyio.to_thread.run_sync(call, limiter=threads)
    if error is not None:
        raise error
    # A plain function may hand on a coroutine; dropped, it would be work that was never done.
    return await answer if inspect.isawaitable(answer) else answer

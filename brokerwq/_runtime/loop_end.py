"""What is to be closed when an event loop ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress


async def closed_at_loop_end(close: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
    """Once it is begun, ``close`` is called when it is closed, at the latest by its loop.

    ``asyncio.run`` closes the generators that are suspended when its loop ends: the only notice
    a loop gives of its end. It closes them all at once, so that what one of them holds may not
    be another's: the suspended frame of a client's context manager must not be what is closed.
    """
    try:
        yield
    finally:
        with suppress(Exception):  # nobody is left who could be told
            await close()

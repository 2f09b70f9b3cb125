"""What is to be closed when an event loop ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

Close: TypeAlias = Callable[[], Awaitable[object]]

_open: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, set[Close]]] = WeakKeyDictionary()


async def closed_at_loop_end(close: Close) -> AsyncGenerator[None]:
    """Once it is begun, ``close`` is called when it is closed, at the latest by its loop.

    ``asyncio.run`` closes the generators that are suspended when its loop ends: the only notice
    a loop gives of its end. It closes them all at once, so that what one of them holds may not
    be another's: the suspended frame of a client's context manager must not be what is closed.

    A loop that somebody made and closes by hand gives none. There ``loop.close`` does it.
    """
    closes = _closes_of(asyncio.get_running_loop())
    closes.add(close)
    try:
        yield
    finally:
        closes.discard(close)
        with suppress(Exception):  # nobody is left who could be told
            await close()


def _closes_of(loop: Any) -> set[Close]:
    closes = _open.get(loop)
    if closes is None:
        closes = _open[loop] = set()
        with suppress(AttributeError):  # a loop of another kind need not let itself be changed
            loop.close = lambda: _close_by_hand(loop)
    return closes


def _close_by_hand(loop: Any) -> None:
    del loop.close  # the loop's own is below it
    closes = _open.pop(loop, None)
    if closes and not loop.is_running() and asyncio._get_running_loop() is None:  # noqa: SLF001
        loop.run_until_complete(_close_all(list(closes)))
    loop.close()


async def _close_all(closes: Sequence[Close]) -> None:
    await asyncio.gather(*(close() for close in closes), return_exceptions=True)

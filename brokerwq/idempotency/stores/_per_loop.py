"""What belongs to the event loop on which it is used."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Makes a thing for each event loop that asks; after a fork it begins anew.

    Args:
        make: Makes one, on the loop.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._things: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()
        self._pid = os.getpid()

    def get(self) -> T:
        """The running loop's."""
        if self._pid != os.getpid():
            self._things, self._pid = WeakKeyDictionary(), os.getpid()
        loop = asyncio.get_running_loop()
        thing = self._things.get(loop)
        if thing is None:
            thing = self._things[loop] = self._make()
        return thing

    def pop(self) -> T | None:
        """The running loop's, which makes a new one next time; None if it has none."""
        if self._pid != os.getpid():
            return None
        return self._things.pop(asyncio.get_running_loop(), None)

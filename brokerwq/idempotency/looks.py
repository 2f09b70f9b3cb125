"""How soon a message whose work is under way elsewhere is looked at again."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Final

SHORTEST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 60.0
"""Seconds; between them the pauses double, and none is longer than the owner's lease lasts. A
little more is added so that copies do not come in step."""
_REMEMBERED: Final = 4096


class Looks:
    """Counts the looks at keys that are busy, in this process and for the latest keys only.

    An owner's lease says when it is over at the latest; mostly its work is done far sooner. That
    the pauses double keeps the looks few, since at some brokers each costs a copy.
    """

    def __init__(self) -> None:
        self._pauses: OrderedDict[bytes, float] = OrderedDict()

    def pause(self, key: bytes, remaining: float, *, shortest: float = SHORTEST_WAIT) -> float:
        """Seconds until the next look at ``key``, whose owner's lease lasts ``remaining``."""
        known = self._pauses.pop(key, SHORTEST_WAIT)
        self._pauses[key] = min(known * 2, LONGEST_WAIT)
        if len(self._pauses) > _REMEMBERED:
            self._pauses.popitem(last=False)
        wait = min(max(remaining, shortest), known)
        return wait + random.uniform(0.0, min(wait / 10, 1.0))  # noqa: S311 -- spreading

    def forget(self, key: bytes) -> None:
        """``key`` is busy no more."""
        self._pauses.pop(key, None)

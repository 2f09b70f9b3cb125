"""What an adapter that can examine a broker's set-up offers to ``brokerwq doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from brokerwq.driver.protocol import QueueSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: What: a queue, a permission, the server.
        level: ``ok``; ``warning`` if it works with fewer guarantees; ``error`` if it does not.
        text: What is so.
        fix: A line that would change it, where there is one.
    """

    subject: str
    level: Literal["ok", "warning", "error"]
    text: str
    fix: str = ""


@runtime_checkable
class Doctor(Protocol):
    """A driver that can say what of a queue's set-up is missing or weak."""

    async def examine(self, spec: QueueSpec, /) -> Sequence[Finding]:
        """Look at the queue, its neighbours and our permissions; changes nothing.

        Raises:
            DriverError: the broker cannot be asked.
        """
        ...

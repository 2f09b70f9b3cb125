"""Looking through a queue of either side without leaving a trace."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Final

from brokerwq.clock import Clock
from brokerwq.dead_letters.sweep import DEFAULT_MAX_HELD, Sweep
from brokerwq.driver.protocol import QueueSpec
from brokerwq.errors import DriverError
from brokerwq.message import Message
from brokerwq.migrate.cargo import unmoved
from brokerwq.migrate.pair import Pair
from brokerwq.migrate.side import Side

ALL: Final = DEFAULT_MAX_HELD
"""The most messages that one look can hold."""

_LEASE: Final = 300.0
"""Seconds; thousands of leases cannot be extended every few seconds everywhere."""


@asynccontextmanager
async def look_through(
    side: Side, pair: Pair, clock: Clock, *, max_held: int = ALL, at_target: bool = False
) -> AsyncGenerator[Sweep]:
    """A pass over one queue of ``pair``; what it claims goes back with the attempts it had.

    Raises:
        QueueNotFoundError: there is no such queue.
        DriverError: the side cannot be asked, or what is looked at could not be put back as it
            was; also from inside.
    """
    queue = pair.target if at_target else pair.source
    await side.require([queue], takes=True)
    sweep = Sweep(
        side.driver,
        queue,
        clock=clock,
        lease=_LEASE,
        max_held=max_held,
        mark_of=lambda delivery: unmoved(delivery, forgiven=0, is_dead=pair.is_dead),
    )
    with side.named():
        async with sweep:
            yield sweep


def are_newer(messages: Sequence[Message], moment: datetime) -> bool:
    """Whether all of these were made after ``moment``: no look shall chase who goes on sending."""
    return all(
        message.created_at is not None and message.created_at > moment for message in messages
    )


async def know(side: Side, pair: Pair, *, at_target: bool = False) -> None:
    """Let the driver compare the queue with what it would declare: it then counts better."""
    if not pair.is_dead:
        with suppress(DriverError):
            name = pair.target if at_target else pair.source
            await side.driver.declare(QueueSpec(name=name), check_only=True)

"""Putting back what was only looked at, though the broker may want a pause meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from brokerwq._runtime.pauses import Pauses
from brokerwq.clock import Clock
from brokerwq.driver import Consumer, Delivery, Mark
from brokerwq.errors import DriverError, PermissionDeniedError

_TRIES = 8
_LONGEST_PAUSE = 2.0


async def return_chunk(
    consumer: Consumer,
    deliveries: Sequence[Delivery],
    delays: Sequence[float],
    marks: Sequence[Mark],
    clock: Clock,
) -> PermissionDeniedError | None:
    """Put back what fits one call, not counted; what is not allowed of that, if anything.

    What the broker does not take although it is asked again is returned counted, which needs no
    copy; failing that as well, it comes back when its lease ends.
    """
    waiting = list(range(len(deliveries)))
    pauses = Pauses(_LONGEST_PAUSE)
    denial: PermissionDeniedError | None = None
    for attempt in range(_TRIES):
        if attempt:
            await clock.sleep(pauses.next())
        answers: Sequence[DriverError | None]
        try:
            answers = await consumer.put_back(
                [deliveries[n] for n in waiting],
                [delays[n] for n in waiting],
                [marks[n] for n in waiting],
            )
        except DriverError as error:
            answers = [error] * len(waiting)
        denials = [answer for answer in answers if isinstance(answer, PermissionDeniedError)]
        denial = denials[0] if denials else denial
        waiting = [
            n
            for n, answer in zip(waiting, answers, strict=True)
            if answer is not None and answer.retryable
        ]
        if not waiting:
            return denial
    with suppress(DriverError):
        await consumer.release([deliveries[n] for n in waiting], [delays[n] for n in waiting])
    return denial

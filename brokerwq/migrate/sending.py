"""Sending to the target: split to its limits, patient with a broker that wants a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from brokerwq._runtime.pauses import Pauses
from brokerwq.clock import Clock, move_on_after
from brokerwq.driver.moving import abilities_of
from brokerwq.driver.support import split_to_limits
from brokerwq.errors import DriverError, ThrottledError, TransientError
from brokerwq.migrate.cargo import REFUSALS, Cargo
from brokerwq.migrate.side import Side

_LONGEST_PAUSE = 10.0
_CALL_SECONDS = 30.0
_CALLS = 8
"""Calls under way at once."""


class Target:
    """The target of one migration, shared by all that move to it.

    Attributes:
        throttled: How many answers asked for a pause.
        failure: Why nothing can be sent any more; None while it can.

    Args:
        side: Where it is.
        clock: For pauses and bounds.
        stopping: Once it is set, what a broker in trouble has not taken is not sent again.
        patience: Seconds without a single message accepted after which a broker that only asks
            for pauses is given up on.
    """

    def __init__(self, side: Side, clock: Clock, patience: float, stopping: asyncio.Event) -> None:
        self.driver = side.driver
        self._side = side
        self.throttled = 0
        self.failure: DriverError | None = None
        self._clock = clock
        self._patience = patience
        self._stopping = stopping
        self._pauses = Pauses(_LONGEST_PAUSE)
        self._resume_at = 0.0
        self._accepted_at = clock.now()

    async def send(
        self, queue: str, cargo: Sequence[Cargo], *, in_order: bool
    ) -> list[DriverError | None]:
        """Send; one answer each: None for accepted, one of ``REFUSALS`` for what does not fit.

        Any other error says that the target was in trouble when the mover was told to stop, or
        that it is given up on (see ``failure``): it refuses, or has accepted nothing for all of
        the patience.
        """
        results: list[DriverError | None] = [None] * len(cargo)
        sizes = [len(one.message.body) for one in cargo]
        calls = 1 if in_order else _CALLS
        waiting = list(range(len(cargo)))
        while waiting:
            await self._wait_for_turn()
            failure = self.failure
            if failure is not None:
                for n in waiting:
                    results[n] = failure
                break
            errors: list[DriverError] = []
            done: set[int] = set()
            parts = split_to_limits(sizes, waiting, self.driver.capabilities)[:calls]
            for part, answers in zip(parts, await self._call_all(queue, cargo, parts), strict=True):
                for n, answer in zip(part, answers, strict=True):
                    results[n] = answer
                    if answer is None or isinstance(answer, REFUSALS):
                        done.add(n)
                    else:
                        errors.append(answer)
            self._note(errors, accepted=len(done))
            waiting = [n for n in waiting if n not in done]
            if errors and self._stopping.is_set():
                break
        return results

    async def _wait_for_turn(self) -> None:
        while (pause := self._resume_at - self._clock.now()) > 0:
            await self._clock.sleep(pause)

    def _note(self, errors: Sequence[DriverError], *, accepted: int) -> None:
        now = self._clock.now()
        if accepted:
            self._accepted_at = now
            self._pauses.reset()
        if not errors:
            return
        fatal = next((error for error in errors if not error.retryable), None)
        if fatal is not None or now - self._accepted_at > self._patience:
            self.failure = fatal or errors[0]
            self._side.name(self.failure)
            return
        self.throttled += len(errors)
        asked = max(
            (e.retry_after or 0.0 for e in errors if isinstance(e, ThrottledError)), default=0.0
        )
        self._resume_at = max(self._resume_at, now + max(asked, self._pauses.next()))

    async def _call_all(
        self, queue: str, cargo: Sequence[Cargo], parts: Sequence[Sequence[int]]
    ) -> list[Sequence[DriverError | None]]:
        if len(parts) == 1:
            return [await self._call(queue, [cargo[n] for n in parts[0]])]
        return await asyncio.gather(
            *(self._call(queue, [cargo[n] for n in part]) for part in parts)
        )

    async def _call(self, queue: str, cargo: Sequence[Cargo]) -> Sequence[DriverError | None]:
        limit = abilities_of(self.driver, queue).max_send_delay
        answers: Sequence[DriverError | None] | None = None
        with move_on_after(self._clock, _CALL_SECONDS):
            try:
                answers = await self.driver.send(
                    queue,
                    [one.message for one in cargo],
                    [min(one.delay, limit) for one in cargo],
                )
            except DriverError as error:
                answers = [error] * len(cargo)
        if answers is None:
            late = TransientError(f"the target has not answered within {_CALL_SECONDS:g} seconds")
            return [late] * len(cargo)
        return answers

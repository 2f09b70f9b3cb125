"""Finds out that a job under test waits for something that never comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.errors import BrokerwqError
from brokerwq.testing.clock import FakeClock
from brokerwq.testing.watch import IN_HANDLER, Watch

HANG_PATIENCE: Final = 10.0
"""Seconds of the machine's time for which nothing must happen before a job is said to hang."""
_STANDSTILL: Final = 1800.0
"""The same of the fake clock: what the app does by itself now and then has come round in it."""


class HangError(BrokerwqError):
    """A worker waits for something that never comes, so that the test would not end."""


@dataclass(slots=True)
class Silence:
    """For how long no handler has begun or ended, and nothing was sent.

    A handler may wait for the machine, such as for a database, for the fake clock, for its
    time limit, or for another message: only where there is none of these it is said to hang.

    Attributes:
        clock: The fake one.
        watch: Knows which handlers run.
        patience: Seconds of the machine's time.
    """

    clock: FakeClock
    watch: Watch
    patience: float
    _sign: object = None
    _real: float = field(default_factory=SYSTEM_CLOCK.now)
    _fake: float = 0.0

    @property
    def is_suspicious(self) -> bool:
        """Whether it lasts for long, and nothing is known that could end it."""
        is_long = SYSTEM_CLOCK.now() - self._real >= self.patience
        return is_long and self.watch.is_endless and not self.clock.has_timer(IN_HANDLER)

    def listen(self, sign: object) -> None:
        """Begin anew if ``sign`` is another one than before."""
        if sign != self._sign:
            self._sign, self._real, self._fake = sign, SYSTEM_CLOCK.now(), self.clock.now()

    def check(self) -> None:
        """Make sure that something can still happen.

        Raises:
            HangError: nothing can.
        """
        if not self.is_suspicious:
            return
        passed = self.clock.now() - self._fake
        if passed < _STANDSTILL and self.clock.next_at is not None:
            return
        jobs = [f"{type_} (message {id_})" for type_, id_ in self.watch.jobs]
        msg = (
            f"{', '.join(jobs)}: waits for something that never comes. Nothing has happened for "
            f"{SYSTEM_CLOCK.now() - self._real:.0f} s, and {passed:.0f} s of the fake clock. Give "
            "the worker timeout=…, or the test something that answers; where it really waits for "
            "so long, raise hang_patience of the TestApp"
        )
        raise HangError(msg)

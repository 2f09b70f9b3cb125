"""What time it is at a service that tells it only in the headers of its answers."""

from __future__ import annotations

import math
from datetime import UTC
from email.utils import parsedate_to_datetime

from brokerwq.clock import Clock

_RESOLUTION = 1.0


class ServiceTime:
    """The service's clock, seen from here.

    Each answer says in which second it was written, and was written between two readings of
    our own clock: that bounds how far apart the clocks are, and what several answers allow
    bounds it better than one. Our wall clock is not looked at: it may be wrong, or be set.

    Args:
        clock: Its ``now`` runs as fast as the service's clock, nearly.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._least = -math.inf
        self._most = math.inf

    def now(self) -> float | None:
        """Seconds since 1970 there, to about half a second; None before the first answer."""
        if math.isinf(self._least):
            return None
        return self._clock.now() + (self._least + self._most) / 2

    def heard(self, date: str, asked: float) -> None:
        """Take account of an answer.

        Args:
            date: Its ``Date`` header; one that cannot be read is passed over.
            asked: What our clock's ``now`` was before the question.
        """
        try:
            moment = parsedate_to_datetime(date)
        except ValueError:
            return
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
        least = seconds - self._clock.now()
        most = seconds + _RESOLUTION - asked
        self._least, self._most = max(self._least, least), min(self._most, most)
        if self._least > self._most:
            # One of the clocks has jumped, or they have drifted apart: what was known is void.
            self._least, self._most = least, most

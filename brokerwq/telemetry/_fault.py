"""What happens when telemetry itself fails: one log line, and the job goes on."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from brokerwq.telemetry._text import text_of, type_of

_log: Final = logging.getLogger("brokerwq.telemetry")


class Fault:
    """Reports the first failure and keeps quiet about the rest.

    A broken exporter fails at every message; a line for each would be a second outage.
    """

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told = False

    def report(self, where: str, error: BaseException) -> None:
        """Note that ``where`` raised ``error``. Never raises."""
        if self._told:
            return
        self._told = True
        with suppress(Exception):
            _log.warning(
                "telemetry failed; jobs go on, and later failures are not reported"
                " (%s raised %s: %s)",
                where,
                type_of(error),
                text_of(error),
            )

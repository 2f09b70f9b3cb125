"""Trouble of a store that does not pass by itself, told apart only where that helps."""

from __future__ import annotations

from brokerwq.errors import StoreUnavailableError


class LastingError(StoreUnavailableError):
    """The whole store is of no use until somebody has mended it.

    For a job that is an outage, so that no message is given up on for it: its runner asks
    ``check``, which raises it as a plain ``StoreError``, and ends.
    """

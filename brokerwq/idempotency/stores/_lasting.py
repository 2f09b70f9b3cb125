"""Trouble of a store that does not pass by itself, told apart only where that helps."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from brokerwq.errors import StoreError, StoreUnavailableError


class LastingError(StoreUnavailableError):
    """The whole store is of no use until somebody has mended it.

    For a job that is an outage, so that no message is given up on for it: its runner asks
    ``check``, which raises it as a plain ``StoreError``, and ends.
    """


@contextmanager
def no_outage() -> Generator[None]:
    """A ``check``: what lasts is raised as a plain ``StoreError``."""
    try:
        yield
    except LastingError as exc:
        raise StoreError(str(exc)) from exc

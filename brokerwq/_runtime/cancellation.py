"""Cancellation that a handler brought upon itself."""

from __future__ import annotations

import asyncio


def uncancel() -> None:
    """A handler that cancelled its own task has only failed itself: the slot goes on."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()

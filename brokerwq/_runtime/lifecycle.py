"""The runner's state, why it is not ready, and the requests to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, TypeAlias

from brokerwq.events import StateChanged

State: TypeAlias = Literal["starting", "ready", "degraded", "draining", "stopped"]


class Lifecycle:
    """Where a runner is between ``starting`` and ``stopped``.

    ``ready`` means that every queue has a live consumer; a problem makes it ``degraded``
    until it is cleared.

    Args:
        emit: Told of every change.
    """

    def __init__(self, emit: Callable[[StateChanged], object] | None) -> None:
        self._emit = emit
        self._phase: State = "starting"
        self._problems: dict[str, str] = {}
        self._shown: tuple[State, tuple[str, ...]] = ("starting", ())
        self.stop_asked = asyncio.Event()
        self.force_asked = asyncio.Event()
        self.exit_code = 0
        self.failure: BaseException | None = None

    @property
    def state(self) -> State:
        """The state now."""
        return "degraded" if self._phase == "ready" and self._problems else self._phase

    @property
    def reasons(self) -> tuple[str, ...]:
        """What keeps it from being ready."""
        return tuple(self._problems.values())

    def enter(self, phase: State) -> None:
        """Go on to the next phase."""
        self._phase = phase
        self._changed()

    def trouble(self, key: str, reason: str) -> None:
        """Something named ``key`` is wrong."""
        self._problems[key] = reason
        self._changed()

    def clear(self, key: str) -> bool:
        """What is named ``key`` is right; whether it was wrong."""
        if self._problems.pop(key, None) is None:
            return False
        self._changed()
        return True

    def ask_stop(self, exit_code: int = 0) -> None:
        """Stop when the running jobs have ended; asked twice: at once."""
        if self.stop_asked.is_set():
            self.force_asked.set()
            return
        self.exit_code = exit_code
        self.stop_asked.set()

    def fail(self, failure: BaseException) -> None:
        """Stop, and raise ``failure`` at the end."""
        if self.failure is None:
            self.failure = failure
        if not self.stop_asked.is_set():
            self.ask_stop()

    def _changed(self) -> None:
        shown = (self.state, self.reasons)
        if shown != self._shown:
            self._shown = shown
            if self._emit is not None:
                self._emit(StateChanged(state=shown[0], reasons=shown[1]))

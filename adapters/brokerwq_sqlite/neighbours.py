"""The engines of this process: whom to wake after a commit, and what a fork does to them.

SQLite's file locks belong to a process, and its bookkeeping of them is copied into a forked
child, which would then believe to hold locks that it does not hold, and could destroy the file
("How To Corrupt An SQLite Database File", section 2.6). So every connection of the process is
closed before a fork; the parent's engines open theirs again, the child's are done with.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Protocol


class Neighbour(Protocol):
    """What is asked of an engine."""

    path: str
    gate: threading.Lock

    @property
    def has_parked(self) -> bool:
        """Whether a claim waits there."""
        ...

    def poke(self) -> None:
        """Have waiting claims look again at once."""
        ...

    def let_go(self) -> None:
        """Close the connection; called with ``gate`` held."""
        ...

    def stop_soon(self) -> None:
        """End the thread, without waiting for it."""
        ...

    def join(self, patience: float, /) -> None:
        """Wait for the thread to end, up to ``patience`` seconds."""
        ...


_EXIT_PATIENCE = 2.0

_lock = threading.Lock()
_running: tuple[Neighbour, ...] = ()  # replaced, never changed: read without the lock


def join(engine: Neighbour) -> None:
    """``engine`` has started to work."""
    global _running  # noqa: PLW0603
    with _lock:
        _running = (*_running, engine)


def leave(engine: Neighbour) -> None:
    """``engine`` works no longer."""
    global _running  # noqa: PLW0603
    with _lock:
        _running = tuple(other for other in _running if other is not engine)


def poke_others(engine: Neighbour) -> None:
    """Wake the claims that wait on the same file elsewhere in this process."""
    for other in _running:
        if other is not engine and other.has_parked and other.path == engine.path:
            other.poke()


def _before_fork() -> None:
    _lock.acquire()
    for engine in _running:
        engine.gate.acquire()
        engine.let_go()


def _after_fork_in_parent() -> None:
    for engine in _running:
        engine.gate.release()
    _lock.release()


def _after_fork_in_child() -> None:
    global _running  # noqa: PLW0603
    _running = ()
    _lock.release()


def _at_exit() -> None:
    # A daemon thread that is cut off inside SQLite while the interpreter goes down is asking
    # for trouble, and the last one to leave should fold the write-ahead log into the file.
    engines = _running
    for engine in engines:
        engine.stop_soon()
    for engine in engines:
        engine.join(_EXIT_PATIENCE)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
atexit.register(_at_exit)

"""One run of a worker, step by step: where its points are, and what befalls it at one.

A point is a line of the user's own code that is about to be run, or a place where the worker waits
for something. Code of Python itself, of installed packages and of brokerwq has none; nor has what
cleans up: see ``source.unguarded``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal
from weakref import WeakKeyDictionary

import anyio.to_thread

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.testing import source
from brokerwq.testing.mishap import Mishap

_FOREIGN = tuple(
    {
        str(Path(folder).resolve()) + os.sep
        for folder in map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
        if folder
    }
)
_known: WeakKeyDictionary[CodeType, bool] = WeakKeyDictionary()


class FaultError(ConnectionError):
    """A fault on purpose: what ``error_at`` raises in a worker."""


class CrashedError(BaseException):
    """The process of a run is gone; no ``except Exception`` of a worker may hold that up."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a run can be struck.

    Attributes:
        kind: ``line`` before a line is run, ``await`` where something is waited for.
        place: File name and line number.
        text: What stands there, as far as it can be read.
    """

    kind: Literal["line", "await"]
    place: str
    text: str

    def __str__(self) -> str:
        """For people."""
        where = "while waiting in" if self.kind == "await" else "before"
        return f"{where} {self.place}  {self.text}".rstrip()


class Run:
    """One run of a worker.

    Args:
        mishap: What befalls it; None for nothing.

    Attributes:
        points: Those it has met.
        struck: Whether the mishap has come.
        held: Set as long as it stands still at its point.
        is_crashed: Its process is gone.
        is_over: It has ended.
        began: When it began, by the machine's clock.
        left_behind: What a crash left waiting; None for nothing.
    """

    def __init__(self, mishap: Mishap | None) -> None:
        self.mishap: Mishap | None = mishap
        self.points: list[Point] = []
        self.struck = False
        self.held: asyncio.Event = asyncio.Event()
        self.is_crashed = False
        self.is_over = False
        self.began: float = SYSTEM_CLOCK.now()
        self.left_behind: Any = None
        self._released = threading.Event()
        self._go_on: asyncio.Event = asyncio.Event()
        self._cancel_next = False
        self._lines: dict[FrameType, int] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def is_held(self) -> bool:
        """Whether it stands still at its point."""
        return self.held.is_set() and not self._released.is_set()

    def release(self, *, cancel: bool) -> None:
        """Let it go on.

        Args:
            cancel: Cancel it where it waits next, as a process does that finds its lease lost.
        """
        self._cancel_next = cancel
        self._released.set()
        self._go_on.set()

    async def coroutine(self, awaitable: Awaitable[object]) -> object:
        """Run a coroutine worker to its end, or to its point."""
        try:
            return await _Steps(self, awaitable)
        finally:
            self._end()

    async def thread(self, call: Callable[[], object]) -> object:
        """Run a plain function in a thread."""

        def traced() -> object:
            before = sys.gettrace()
            sys.settrace(self.trace)
            try:
                return call()
            finally:
                sys.settrace(before)

        try:
            return await anyio.to_thread.run_sync(traced)
        finally:
            self._end()

    def _end(self) -> None:
        self._lines.clear()
        self.is_over = True

    async def bury(self) -> None:
        """End what a crash left behind, as a cancellation would: what it held is free again."""
        steps, self.left_behind = self.left_behind, None
        if steps is not None:
            with suppress(BaseException):
                await _Rest(steps)

    # -- at a point ------------------------------------------------------------------------

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """The trace function; see ``sys.settrace``."""
        if not _is_users(frame):
            return None
        if event == "line":
            self._at_line(frame)
        return self.trace

    def _at_line(self, frame: FrameType) -> None:
        if self.is_crashed or not self._is_point(frame) or not self._is_here("line", frame):
            return
        kind = self.mishap.kind if self.mishap is not None else ""
        if kind == "crash_at":
            self.is_crashed = True
            raise CrashedError
        if kind == "error_at":
            raise FaultError(_WORDS)
        if self.mishap is not None and self.mishap.holds and not _on_a_loop():
            self._loop.call_soon_threadsafe(self.held.set)
            self._released.wait()

    def _is_point(self, frame: FrameType) -> bool:
        """Whether an exception at this line leaves the process in order."""
        file, number = frame.f_code.co_filename, frame.f_lineno
        before = self._lines.get(frame, 0)
        self._lines[frame] = number
        # A step back to a ``with`` is its end, where what it holds would stay held.
        is_end = number <= before and source.is_with(file, number)
        return not is_end and number not in source.unguarded(file)

    def at_await(self, frame: FrameType | None) -> BaseException | Literal["hold"] | None:
        """What shall befall the worker when it goes on from where it waits now."""
        if self.is_crashed:
            return None
        if self._cancel_next:
            self._cancel_next = False
            return asyncio.CancelledError()
        if not self._is_here("await", frame):
            return None
        kind = self.mishap.kind if self.mishap is not None else ""
        if kind == "crash_at":
            self.is_crashed = True
            return CrashedError()
        if kind == "error_at":
            return FaultError(_WORDS)
        return "hold"

    async def stand_still(self) -> None:
        """Wait to be released."""
        self.held.set()
        await self._go_on.wait()

    def _is_here(self, kind: Literal["line", "await"], frame: FrameType | None) -> bool:
        self.points.append(_point(kind, frame))
        is_it = self.mishap is not None and self.mishap.at == len(self.points)
        self.struck = self.struck or is_it
        return is_it


_WORDS = "a fault on purpose"


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Steps:
    """Awaits a worker's coroutine one step at a time."""

    def __init__(self, run: Run, awaitable: Awaitable[object]) -> None:
        self._run = run
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, object]:
        run = self._run
        steps: Any = self._awaitable.__await__()
        strike: BaseException | None = None
        while True:
            before = sys.gettrace()
            sys.settrace(run.trace)
            try:
                waiting = steps.send(None) if strike is None else steps.throw(strike)
            except StopIteration as ended:
                return ended.value
            finally:
                sys.settrace(before)
            fate = run.at_await(_innermost(self._awaitable))
            if isinstance(fate, CrashedError):
                # Never resumed: nothing of the worker runs any more, not even its cleanup.
                run.left_behind = steps
                raise fate
            strike = fate if isinstance(fate, BaseException) else None
            try:
                yield waiting
            except BaseException as error:  # noqa: BLE001  -- the worker's own business
                strike = error
            if fate == "hold":
                yield from run.stand_still().__await__()


class _Rest:
    """What is left of a coroutine that is cancelled where it waits."""

    def __init__(self, steps: Any) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, None]:
        waiting = self._steps.throw(asyncio.CancelledError())
        while True:
            try:
                answer = yield waiting
            except BaseException as error:  # noqa: BLE001  -- the worker's own business
                waiting = self._steps.throw(error)
            else:
                waiting = self._steps.send(answer)


def _innermost(awaitable: Any) -> FrameType | None:
    """The frame of the user's own code that waits, the last one that was called."""
    found: FrameType | None = None
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is not None and _is_users(frame):
            found = frame
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
    return found


def _is_users(frame: FrameType) -> bool:
    code = frame.f_code
    found = _known.get(code)
    if found is None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        is_ours = package == "brokerwq" or package.startswith("brokerwq_")
        found = _known[code] = not is_ours and _is_in_a_project(code.co_filename)
    return found


def _is_in_a_project(file: str) -> bool:
    return not file.startswith("<") and not str(Path(file).resolve()).startswith(_FOREIGN)


def _point(kind: Literal["line", "await"], frame: FrameType | None) -> Point:
    if frame is None:
        return Point(kind, "", "")
    name, number = frame.f_code.co_filename, frame.f_lineno
    return Point(kind, f"{Path(name).name}:{number}", source.line(name, number))

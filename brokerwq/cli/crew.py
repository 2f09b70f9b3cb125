"""Several runner processes, looked after by one: restarted when they die, stopped together.

Each process is the same command again, in a session of its own, so that a signal from the
terminal reaches the parent alone, which passes it on once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from brokerwq.cli.failure import ExitCode, say
from brokerwq.cli.link import VARIABLE
from brokerwq.clock import SYSTEM_CLOCK

STABLE_AFTER = 10.0
"""Seconds; a process that lived so long is replaced at once when it dies."""
MAX_DEATHS_AT_START = 5
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_STOP_MARGIN = 30.0
_FORCED_MARGIN = 1.7
_FOR_GOOD = (ExitCode.USAGE, ExitCode.UNREACHABLE, ExitCode.DIFFERS, ExitCode.INTERNAL)

News = Callable[["Member", dict[str, Any]], object]


def _no_news(_: Member, __: dict[str, Any]) -> None:
    pass


@dataclass(eq=False)
class Member:
    """One place in the crew, and the process that fills it now."""

    number: int
    process: asyncio.subprocess.Process | None = None
    state: str = "starting"
    reasons: tuple[str, ...] = ()
    was_ready: bool = False
    deaths: int = 0
    deaths_at_start: int = 0
    code: int | None = None

    @property
    def pid(self) -> int:
        """The process's id; 0 while there is none."""
        return self.process.pid if self.process is not None else 0

    def hear(self, news: dict[str, Any]) -> None:
        """Take in what the process tells."""
        self.state = str(news.get("state", self.state))
        self.reasons = tuple(news.get("reasons", self.reasons))
        self.was_ready = self.was_ready or self.state == "ready"

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it still lives."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Crew:
    """Runs ``command`` in ``count`` processes.

    Args:
        command: What each runs.
        count: How many.
        grace: Seconds that a process gets to stop.
        until_done: Whether a process that ends with 0 or 1 has done its part; otherwise every
            one that ends is replaced.
        on_news: Told what a process tells.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        grace: float,
        until_done: bool = False,
        on_news: News = _no_news,
    ) -> None:
        self.members = [Member(number) for number in range(1, count + 1)]
        self._command = command
        self._grace = grace
        self._until_done = until_done
        self._on_news = on_news
        self._stopping = asyncio.Event()
        self._signals: list[int] = []
        self._given_up: int | None = None
        self._watched, self._ours = os.pipe()

    @property
    def state(self) -> str:
        """As of one runner, for health: ``ready`` if every process is."""
        if self._stopping.is_set():
            return "draining"
        states = {member.state for member in self.members}
        return "ready" if states == {"ready"} else "degraded"

    @property
    def reasons(self) -> tuple[str, ...]:
        """What keeps it from being ready."""
        return tuple(
            f"process {member.number} (pid {member.pid}) is {member.state}"
            + (f": {', '.join(member.reasons)}" if member.reasons else "")
            for member in self.members
            if member.state != "ready"
        )

    async def run(self) -> int:
        """Run until stopped, or done; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            async with asyncio.TaskGroup() as tasks:
                for member in self.members:
                    tasks.create_task(self._keep(member))
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            for member in self.members:
                member.signal(signal.SIGKILL)
            os.close(self._ours)
            os.close(self._watched)
        return self._exit_code()

    def stop(self) -> None:
        """Stop all processes; called again: at once."""
        forced = self._stopping.is_set()
        self._stopping.set()
        for member in self.members:
            member.signal(signal.SIGTERM)
        patience = _FORCED_MARGIN if forced else self._grace + _STOP_MARGIN
        asyncio.get_running_loop().call_later(patience, self._kill)

    def _kill(self) -> None:
        for member in self.members:
            member.signal(signal.SIGKILL)

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        self.stop()

    async def _keep(self, member: Member) -> None:
        while not self._stopping.is_set():
            born_at = SYSTEM_CLOCK.now()
            member.code = await self._run_once(member)
            if self._stopping.is_set() or (self._until_done and member.code in (0, 1)):
                return
            pause = self._after_death(member, SYSTEM_CLOCK.now() - born_at)
            if pause is None:
                return
            member.code = None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    def _after_death(self, member: Member, lived: float) -> float | None:
        """Seconds until its successor is started; None if there shall be none."""
        code = member.code or 0
        how = _how_it_ended(code)
        member.deaths = 0 if lived >= STABLE_AFTER else member.deaths + 1
        member.deaths_at_start = 0 if member.was_ready else member.deaths_at_start + 1
        if not member.was_ready and (
            code in _FOR_GOOD or member.deaths_at_start >= MAX_DEATHS_AT_START
        ):
            say(f"process {member.number} {how} before it was ready; stopping all")
            self._given_up = code if code > 0 else int(ExitCode.INTERNAL)
            self.stop()
            return None
        pause = 0.0
        if member.deaths > 1:
            pause = min(_FIRST_PAUSE * 2.0 ** min(member.deaths - 2, 10), _LONGEST_PAUSE)
        when = f" in {pause:g} s" if pause else ""
        say(f"process {member.number} {how} after {lived:.1f} s; starting another{when}")
        return pause

    async def _run_once(self, member: Member) -> int:
        read_fd, write_fd = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(self._watched, write_fd),
                env={**os.environ, VARIABLE: f"{self._watched},{write_fd}"},
                start_new_session=True,
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        member.process, member.state, member.was_ready = process, "starting", False
        if self._stopping.is_set():
            member.signal(signal.SIGTERM)
        listening = asyncio.create_task(self._listen(member, read_fd))
        try:
            code = await process.wait()
        finally:
            # What it told last is still in the pipe; a grandchild may hold it open.
            await asyncio.wait({listening}, timeout=1.0)
            listening.cancel()
            await asyncio.wait({listening})
        member.state = "stopped"
        return code

    async def _listen(self, member: Member, read_fd: int) -> None:
        reader = asyncio.StreamReader(limit=2**20)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb")
        )
        try:
            while line := await reader.readline():
                news: Any = json.loads(line)
                member.hear(news)
                self._on_news(member, news)
        finally:
            transport.close()

    def _exit_code(self) -> int:
        if self._given_up is not None:
            return self._given_up
        if len(self._signals) > 1:
            return 128 + self._signals[-1]
        return max(map(_code_at_the_end, self._codes()), default=0)

    def _codes(self) -> Iterable[int]:
        return (member.code for member in self.members if member.code is not None)


def _code_at_the_end(code: int) -> int:
    # Told to stop before it could listen, it died of the signal: as clean as any stop.
    if code == -signal.SIGTERM:
        return 0
    return ExitCode.TERMINATED if code < 0 else code


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def same_command(verb: str, *arguments: str) -> list[str]:
    """The command line that runs ``verb`` in a process of the same interpreter."""
    return [sys.executable, "-m", "brokerwq", verb, *arguments]

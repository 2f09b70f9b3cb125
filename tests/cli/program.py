"""The command as a process of its own, for what only a process can show: signals and death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE = 20.0


class Program:
    """One running ``brokerwq``; what it says is in a file, so that it never blocks."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self._log = folder / f"log-{time.monotonic_ns()}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "brokerwq", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until_said(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.said.count(text) >= times, lambda: f"{text!r} in:\n{self.said}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, within: float = PATIENCE) -> int:
        """The exit code; fails if it does not end in time."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within} s:\n{self.said}") from None

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def children(self) -> list[int]:
        return sorted(_children(self.process.pid))


def _children(parent: int) -> Iterator[int]:
    for task in Path(f"/proc/{parent}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def wait_until(
    is_so: Callable[[], bool], what: Callable[[], str], within: float = PATIENCE
) -> None:
    until = time.monotonic() + within
    while not is_so():
        assert time.monotonic() < until, what()
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""Processes that run ``tests.cases.apps.site``, and the notes they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerwq import Message, QueueSpec, QueueStats, connect
from brokerwq.driver import dead_letter_name
from tests.cases.lab import PATIENCE, ROOT

TARGET = "tests.cases.apps.site:app"


@dataclass(frozen=True)
class Note:
    """One line of the side file."""

    at: float
    pid: int
    what: str
    n: int
    attempt: int
    more: str = ""


@dataclass
class Site:
    """A folder with a queue in SQLite, a side file, and processes that belong to it."""

    folder: Path
    lease: float = 60.0
    attempts: int = 3
    base: float = 0.01
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    processes: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'queue.db'}"

    @property
    def notes_file(self) -> Path:
        return self.folder / "notes"

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "BROKERWQ_URL": self.url,
            "SITE_NOTES": str(self.notes_file),
            "SITE_LEASE": str(self.lease),
            "SITE_ATTEMPTS": str(self.attempts),
            "SITE_BASE": str(self.base),
            **self.settings,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """``brokerwq`` with ``arguments``, in the background; a verb's app goes first."""
        verb, *rest = arguments
        process = subprocess.Popen(
            [sys.executable, "-m", "brokerwq", verb, TARGET, *rest],
            cwd=ROOT,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[str], within: float = PATIENCE) -> tuple[int, str]:
        """Wait for its end; the exit code, and all it said."""
        out, err = process.communicate(timeout=within)
        assert "Traceback" not in err, err
        return process.returncode, out + err

    def drain(self, *arguments: str, within: float = PATIENCE) -> int:
        """``brokerwq drain``; its exit code."""
        code, _ = self.finish(self.start("drain", *arguments), within)
        return code

    def close(self) -> None:
        """End whatever still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    # -- the side file ------------------------------------------------------------------------

    def notes(self, what: str = "") -> list[Note]:
        """The notes so far, in order; only of one kind if it is named."""
        if not self.notes_file.exists():
            return []
        found = [_note(line) for line in self.notes_file.read_text().splitlines()]
        return [note for note in found if not what or note.what == what]

    def until(self, condition: Callable[[], object], within: float = PATIENCE) -> None:
        give_up_at = time.monotonic() + within
        while not condition():
            assert time.monotonic() < give_up_at, self.notes()[-20:]
            time.sleep(0.005)

    def until_started(self, count: int = 1, *, pid: int = 0) -> None:
        """Until so many handler calls have begun, in one process if it is named."""
        self.until(lambda: sum(not pid or n.pid == pid for n in self.notes("start")) >= count)

    # -- the queue ----------------------------------------------------------------------------

    async def send(self, queue: str, *messages: Mapping[str, Any]) -> None:
        """One message for each mapping of fields, on a queue that is declared first."""
        import json

        async with connect(self.url) as broker:
            await broker.declare(QueueSpec(name=queue, lease=self.lease))
            type_ = "plain" if queue == "plain" else "work"
            outgoing = [
                (
                    Message(
                        id=f"{queue}-{fields['n']}",
                        type=type_,
                        content_type="application/json",
                        body=json.dumps(fields).encode(),
                    ),
                    0.0,
                )
                for fields in messages
            ]
            results = await broker.send_batch(queue, outgoing)
            assert not any(results)

    async def stats(self, queue: str = "q") -> QueueStats:
        async with connect(self.url) as broker:
            return await broker.inspect(queue)

    async def counts(self, queue: str = "q") -> tuple[int, int, int, int]:
        """Ready, leased, delayed, dead."""
        found = await self.stats(queue)
        return found.ready.value, found.leased.value, found.delayed.value, found.dead.value

    async def dead(self, queue: str = "q") -> dict[str, str]:
        """Why each dead letter is dead, by its id."""
        async with connect(self.url) as broker:
            driver = await broker.driver()
            consumer = await driver.consume(dead_letter_name(queue), lease=600.0, prefetch=100)
            letters = [delivery.message for delivery in await consumer.claim(100, 0.0)]
        return {letter.id: letter.dead.reason for letter in letters if letter.dead is not None}


def _note(line: str) -> Note:
    at, pid, what, n, attempt, *more = line.split()
    return Note(float(at), int(pid), what, int(n), int(attempt), " ".join(more))


@contextmanager
def supervised(site: Site, *arguments: str, restarts: int = 30) -> Generator[Callable[[], None]]:
    """Keep one process running, as an orchestrator does: call it again and again."""
    process = site.start(*arguments)
    left = restarts

    def look() -> None:
        nonlocal process, left
        if process.poll() is not None:
            assert left > 0, "restarted too often"
            left -= 1
            process.communicate()
            process = site.start(*arguments)

    yield look
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)

"""An app in a file, as a web application has it, and its file looked into from outside."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from brokerwq import App


class Ring:
    """One worker, which notes what it saw."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "queue.db"
        self.app = App(f"sqlite:///{self.file}")

        @self.app.worker("q")
        async def work(*, n: int) -> None:
            self.seen.append(n)

        self.work = work
        self.seen: list[int] = []

    def drained(self) -> list[int]:
        """What was in the queue, sorted, by an app of its own; the file must be sound."""
        other = Ring(self.file.parent)

        async def drain() -> None:
            await other.app.drain(log=False)

        asyncio.run(drain())
        with closing(sqlite3.connect(self.file)) as file:
            assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return sorted(other.seen)

"""Many processes on one SQLite file, killed at random: nothing is lost, nothing is done twice.

The processes note in a side file what they begin and end, the killer notes when it kills. From
both it follows whether a message was ever run under somebody else's live lease.
"""

from __future__ import annotations

import itertools
import random
import signal
import sqlite3
import subprocess
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field

from tests.cases.site import Note, Site

_NO_WORK = 20.0
"""Seconds without any note after which the campaign is stuck."""


@dataclass
class Campaign:
    """What is done to the file.

    Attributes:
        site: Where; its leases are short.
        messages: How many.
        seconds: What each takes.
        every: Seconds from one kill to the next.
        processes: Runner processes; each that dies is replaced.
        slots: Of each.
        seed: Of the choice of victims.
    """

    site: Site
    messages: int
    seconds: float
    every: float
    processes: int = 8
    slots: int = 4
    seed: int = 1
    kills: dict[int, float] = field(default_factory=dict[int, float])
    lives: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    async def run(self) -> None:
        """Run until every message has ended and nothing is left in the queue."""
        work = [{"n": n, "seconds": self.seconds} for n in range(self.messages)]
        await self.site.send("q", *work)
        self.lives = [self._start() for _ in range(self.processes)]
        self.site.until(lambda: len({note.pid for note in self._starts()}) == self.processes, 60)
        kill_at = time.monotonic() + self.every
        rng = random.Random(self.seed)  # noqa: S311 -- repeatable, not secret
        while any((await self.site.counts())[:3]):
            if time.monotonic() >= kill_at:
                kill_at = time.monotonic() + self.every
                self._kill(rng.randrange(self.processes))
            newest = max(note.at for note in self.site.notes())
            assert time.monotonic() - newest < _NO_WORK, await self.site.counts()
            time.sleep(0.05)  # noqa: ASYNC251 -- nothing else runs on this loop
        for process in self.lives:
            process.send_signal(signal.SIGTERM)
        codes = [self.site.finish(process, 60)[0] for process in self.lives]
        # One that was still starting had not yet learnt to stop cleanly.
        assert set(codes) <= {0, -signal.SIGTERM}, codes

    def _start(self) -> subprocess.Popen[str]:
        return self.site.start("run", "q", "--slots", str(self.slots), "--grace", "10")

    def _starts(self) -> list[Note]:
        return self.site.notes("start")

    def _kill(self, victim: int) -> None:
        process = self.lives[victim]
        self.kills[process.pid] = time.monotonic()
        process.kill()
        process.communicate()
        self.lives[victim] = self._start()

    # -- what must have come of it ------------------------------------------------------------

    async def check(self) -> None:
        """Every message done, none dead, no run under another's live lease, a sound file."""
        ended = {note.n for note in self.site.notes("end")}
        assert ended == set(range(self.messages)), sorted(set(range(self.messages)) - ended)[:10]
        assert await self.site.dead() == {}
        assert await self.site.counts() == (0, 0, 0, 0)
        assert self.doubles() == []
        with closing(sqlite3.connect(self.site.folder / "queue.db")) as file:
            assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert file.execute("SELECT count(*) FROM message").fetchone() == (0,)

    def doubles(self) -> list[str]:
        """Runs that began though the one before was neither over nor its process killed.

        A message may be run again only if the process that had it was killed before: during
        the run, or between its end and its ack.
        """
        runs: dict[int, list[Note]] = defaultdict(list)
        for note in self.site.notes():
            runs[note.n].append(note)
        found: list[str] = []
        for n, notes in runs.items():
            found += [f"{n}: cancelled in {note.pid}" for note in notes if note.what == "cancelled"]
            starts = [note for note in notes if note.what == "start"]
            for before, after in itertools.pairwise(starts):
                killed_at = self.kills.get(before.pid)
                if killed_at is None or after.at < killed_at:
                    found.append(f"{n}: {before} was alive when {after} began")
        return found

    def summary(self) -> str:
        notes = self.site.notes()
        starts = sum(note.what == "start" for note in notes)
        seconds = notes[-1].at - notes[0].at
        return f"{self.messages} messages, {starts} runs, {len(self.kills)} kills, {seconds:.1f} s"

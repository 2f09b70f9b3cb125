"""Kills and freezes runners at random, and counts what became of each key.

The handler's time is a small part random pause, a small part effect, and a random pause again,
so that about half of all kills fall between the effect and what follows it. What a campaign
finds is arithmetic over the effects table: extra effects, and keys without one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from brokerwq import App, Job, QueueSpec, RetryPolicy, Runner, Tx

STRATEGIES = ("none", "mark-first", "marker", "transactional", "lease_tx")


@dataclass(frozen=True)
class Setting:
    """One campaign.

    Attributes:
        strategy: One of ``STRATEGIES``.
        url: The broker.
        folder: Where the databases are.
        store: The store's URL; None for SQLite in ``folder``.
        keys: How many pieces of work.
        duplicate_share: Copies on top, with ids of their own.
        lease: Seconds; of the message, and about of the record.
        processes, slots: Runners, and jobs at once in each.
        pause: Longest random pause before, and after, the effect, in seconds.
        kills, freezes: Relative frequency of the two faults.
        faults_every: Mean seconds between two faults.
        fault_seconds: Faults end after so long, if the queue is not empty before.
        seed: Of the faults.
        queue: Its name.
        environment: Variables that the runners need.
    """

    strategy: str
    url: str
    folder: Path
    store: str | None = None
    keys: int = 500
    duplicate_share: float = 0.2
    lease: float = 0.4
    processes: int = 4
    slots: int = 2
    pause: float = 0.02
    kills: float = 1.0
    freezes: float = 1.0
    faults_every: float = 0.08
    fault_seconds: float = 40.0
    seed: int = 1
    queue: str = "work"
    environment: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def effects(self) -> Path:
        return self.folder / "work.db"


@dataclass
class Found:
    """What a campaign found.

    Attributes:
        effects: Effects of each key.
        extra: Effects beyond the first.
        lost: Keys without any.
        left: Messages that were not drained.
        dead: Dead letters.
        kills, freezes: Faults.
        seconds: From the first message to the drained queue.
    """

    effects: Counter[int]
    extra: int
    lost: int
    left: int
    dead: int
    kills: int
    freezes: int
    seconds: float
    fences_fall: int = field(default=0)

    def __str__(self) -> str:
        return (
            f"extra {self.extra:4d}, lost {self.lost:3d}, left {self.left}, dead {self.dead}, "
            f"kills {self.kills}, freezes {self.freezes}, {self.seconds:.1f} s"
        )


def build_app(setting: Setting) -> App:
    app = App(
        setting.url,
        store=setting.store or f"sqlite:///{setting.effects}",
        name="campaign",
        lease=setting.lease,
        queues=[QueueSpec(name=setting.queue, broker_limit=10_000)],
        retry=RetryPolicy(max_attempts=100, base=0.05, cap=0.2),
    )
    options: dict[str, Any] = {}
    if setting.strategy in ("marker", "transactional", "lease_tx"):
        options["once"] = setting.strategy
    app.worker(setting.queue, name="work", key="n", **options)(_handlers(setting)[setting.strategy])
    return app


def _handlers(setting: Setting) -> dict[str, Callable[..., Any]]:
    rng = random.Random(os.urandom(8))  # noqa: S311 -- no secret
    sink = Sink(setting.effects)

    async def pause() -> None:
        await asyncio.sleep(rng.uniform(0.001, setting.pause))

    async def beside(job: Job, *, n: int) -> None:
        await pause()
        await sink.add(n, job.fence)
        await pause()

    async def mark_first(*, n: int) -> None:
        if not await sink.mark(n):
            return
        await pause()
        await sink.add(n, 0)
        await pause()

    async def transactional(_job: Job, tx: Tx, *, n: int) -> None:
        await pause()
        await write_effect(tx.conn, n)
        await pause()

    async def lease_tx(job: Job, tx: Tx, *, n: int) -> None:
        await pause()
        await write_effect(await tx.begin(), n, job.fence)
        await pause()

    return {
        "none": beside,
        "marker": beside,
        "mark-first": mark_first,
        "transactional": transactional,
        "lease_tx": lease_tx,
    }


class Sink:
    """The effects, written with no regard to any record."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._lock = asyncio.Lock()

    async def add(self, n: int, fence: int) -> None:
        await self._write("INSERT INTO effects (n, fence) VALUES (?, ?)", n, fence)

    async def mark(self, n: int) -> bool:
        return await self._write("INSERT OR IGNORE INTO marks VALUES (?)", n) == 1

    async def _write(self, sql: str, *values: int) -> int:
        async with self._lock:
            return await asyncio.to_thread(self._write_now, sql, *values)

    def _write_now(self, sql: str, *values: int) -> int:
        if self._db is None:
            self._db = sqlite3.connect(
                self._path, isolation_level=None, timeout=30, check_same_thread=False
            )
        return self._db.execute(sql, values).rowcount


async def write_effect(conn: Any, n: int, fence: int = 0) -> None:
    """One row in the effects table, through whatever connection the store gives."""
    if isinstance(conn, sqlite3.Connection):
        conn.execute("INSERT INTO effects (n, fence) VALUES (?, ?)", (n, fence))
        return
    await conn.execute("INSERT INTO effects (n, fence) VALUES ($1, $2)", n, fence)


def prepare_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE effects (seq INTEGER PRIMARY KEY, n INTEGER, fence INTEGER)")
        db.execute("CREATE TABLE marks (n INTEGER PRIMARY KEY)")
    db.close()


def read_sqlite(path: Path) -> list[tuple[int, int]]:
    db = sqlite3.connect(path)
    rows = db.execute("SELECT n, fence FROM effects ORDER BY seq").fetchall()
    db.close()
    return rows


def run_worker(setting: Setting) -> None:
    """The body of one runner process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(setting.environment)
    app = build_app(setting)
    asyncio.run(Runner(app, slots=setting.slots, grace=2.0, log=False).run())


class Faults:
    """Runners that are killed and frozen by one random generator."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._random = random.Random(setting.seed)  # noqa: S311 -- no secret
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.chaos.campaign", "brokerwq.idempotency"])
        self._processes: list[ForkServerProcess] = []
        self._frozen: dict[ForkServerProcess, float] = {}
        self.kills = self.freezes = 0

    def start(self) -> None:
        while len(self._processes) < self._setting.processes:
            process = self._context.Process(target=run_worker, args=(self._setting,), daemon=True)
            process.start()
            self._processes.append(process)

    def strike(self) -> None:
        """One fault."""
        setting = self._setting
        victim = self._random.choice(self._processes)
        kinds = (self.kill, self.freeze)
        (kind,) = self._random.choices(kinds, weights=(setting.kills, setting.freezes))
        kind(victim)

    def kill(self, victim: ForkServerProcess) -> None:
        self.kills += 1
        self._frozen.pop(victim, None)
        victim.kill()
        victim.join()
        self._processes.remove(victim)
        victim.close()
        self.start()

    def freeze(self, victim: ForkServerProcess) -> None:
        if victim in self._frozen or victim.pid is None:
            return
        self.freezes += 1
        os.kill(victim.pid, signal.SIGSTOP)
        lease = self._setting.lease
        self._frozen[victim] = time.monotonic() + lease * self._random.uniform(0.5, 3.0)

    def thaw(self, *, all_: bool = False) -> None:
        for victim, until in list(self._frozen.items()):
            if all_ or time.monotonic() >= until:
                del self._frozen[victim]
                if victim.pid is not None:
                    os.kill(victim.pid, signal.SIGCONT)

    def wait(self) -> float:
        """Seconds to the next fault."""
        return self._random.expovariate(1.0 / self._setting.faults_every)

    def check_alive(self) -> None:
        for process in self._processes:
            assert process.exitcode is None, f"a runner ended with {process.exitcode}"

    def stop(self) -> None:
        self.thaw(all_=True)
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(10)
            if process.exitcode is None:
                process.kill()
                process.join()


async def run_campaign(
    setting: Setting,
    *,
    read: Callable[[], list[tuple[int, int]]] | None = None,
    drain_seconds: float = 60.0,
) -> Found:
    """Run ``setting``; ``read`` reads effects that are not in SQLite."""
    prepare_sqlite(setting.effects)
    app = build_app(setting)
    worker: Any = app.workers[0]
    rng = random.Random(setting.seed)  # noqa: S311 -- no secret
    copies = rng.sample(range(setting.keys), int(setting.keys * setting.duplicate_share))
    numbers = [*range(setting.keys), *copies]
    rng.shuffle(numbers)
    await worker.enqueue_many(worker.call(n=n) for n in numbers)
    faults = Faults(setting)
    started = time.monotonic()
    try:
        await asyncio.to_thread(faults.start)
        await _strike(app, faults, setting)
        faults.thaw(all_=True)
        await _drained(app, faults, drain_seconds)
        seconds = time.monotonic() - started
    finally:
        await asyncio.to_thread(faults.stop)
    # Where the broker cannot count what is leased, its runners may have stopped too early.
    await asyncio.wait_for(Runner(app, log=False).drain(handle_signals=False), drain_seconds)
    left = await _left(app)
    stats = await app.broker().inspect(setting.queue)
    await app.aclose()
    rows = (read or (lambda: read_sqlite(setting.effects)))()
    return _count(setting, rows, faults, left=left, dead=stats.dead.value, seconds=seconds)


async def _strike(app: App, faults: Faults, setting: Setting) -> None:
    end = time.monotonic() + setting.fault_seconds
    next_fault = time.monotonic() + 0.5
    next_look = time.monotonic() + 1.0
    while time.monotonic() < end:
        await asyncio.sleep(0.01)
        faults.thaw()
        now = time.monotonic()
        if now >= next_fault:
            faults.strike()
            next_fault = now + faults.wait()
        if now >= next_look:
            next_look = now + 1.0
            if await _left(app) == 0:
                return


async def _left(app: App) -> int:
    stats = await app.broker().inspect(app.workers[0].queue)
    return stats.ready.value + stats.leased.value + stats.delayed.value


async def _drained(app: App, faults: Faults, seconds: float) -> None:
    end = time.monotonic() + seconds
    while await _left(app) and time.monotonic() < end:
        faults.check_alive()
        await asyncio.sleep(0.1)


def _count(
    setting: Setting,
    rows: list[tuple[int, int]],
    faults: Faults,
    *,
    left: int,
    dead: int,
    seconds: float,
) -> Found:
    effects = Counter(n for n, _ in rows)
    last: dict[int, int] = {}
    fall = 0
    for n, fence in rows:
        fall += bool(fence) and fence <= last.get(n, 0)
        last[n] = fence
    return Found(
        effects=effects,
        extra=sum(count - 1 for count in effects.values()),
        lost=sum(n not in effects for n in range(setting.keys)),
        left=left,
        dead=dead,
        kills=faults.kills,
        freezes=faults.freezes,
        seconds=seconds,
        fences_fall=fall,
    )

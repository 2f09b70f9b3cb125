"""A move from one broker to another with everything that can happen on the way, and back.

Messages wait, are held, delayed, dead, or do not fit; a producer goes on sending and is switched
in the middle; runners with a store take from both sides; movers are killed, and two move at
once. In the end it is counted by id: nothing is lost, and every effect is there once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from brokerwq.driver import Driver, Mark
from brokerwq.driver.protocol import Certainty
from brokerwq.message import DeadLetterNote, Message, new_message_id
from tests.migrate.lab import DEAD, QUEUE, Lab, opened

T = TypeVar("T")

ROOT = Path(__file__).parent.parent.parent
WORKER = Path(__file__).with_name("campaign_worker.py")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much of everything.

    Attributes:
        messages: In the queue at the start, held ones and misfits included.
        held: Of those, held by somebody for a while.
        delayed: On top, delayed by a few seconds.
        dead: On top, in the dead-letter queue.
        misfits: Of ``messages``, with bodies of ``misfit_bytes``.
        rate: Messages a second that the producer sends.
        kills: Movers killed on the way there; and one on the way back.
        slots, seconds: Of the runner. With SQLite for a store one job's transaction is open at a
            time, so that the seconds of all jobs add up.
        mover_rate: Messages a second of each mover; 0 for as fast as it goes.
        settle: Seconds for which a mover must find nothing before it ends.
        patience: Seconds that any phase may take.
    """

    messages: int
    held: int
    delayed: int
    dead: int
    misfits: int
    misfit_bytes: int = 1_100_000
    rate: float = 50.0
    kills: int = 5
    slots: int = 4
    seconds: float = 0.05
    mover_rate: int = 0
    settle: float = 3.0
    patience: float = 300.0


@dataclass
class Campaign:
    """One move.

    Attributes:
        lab: The two sides, and the ledger.
        sizes: How much of everything.
        target_of_movers: The target's URL for movers, where that is another: one that throttles.
        environment: Variables for every process.
        sent: The numbers of all messages, by id.
    """

    lab: Lab
    sizes: Sizes
    target_of_movers: str = ""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    sent: dict[str, int] = field(default_factory=dict[str, int])
    misfits: set[str] = field(default_factory=set[str])
    dead: set[str] = field(default_factory=set[str])
    kills: int = 0
    _chance: random.Random = field(default_factory=lambda: random.Random(5))  # noqa: S311
    _switched: asyncio.Event = field(default_factory=asyncio.Event)
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.target_of_movers = self.target_of_movers or self.lab.target
        self.store = f"sqlite:///{self.lab.folder}/work.db"

    async def run(self) -> None:
        """All of it. Fails by assertion."""
        await self._fill()
        await self._plan()
        runner = await self._runner()
        holding = asyncio.create_task(self._hold())
        producing = asyncio.create_task(self._produce())
        try:
            await self._forth()
            await asyncio.wait_for(holding, self.sizes.patience)
        finally:
            self._over.set()
            await producing
            await _end(runner)
        await self._count_sides()
        await self._back()
        await self._finish_work()
        self._count_effects()

    # -- before ---------------------------------------------------------------------------

    async def _fill(self) -> None:
        lab, sizes = self.lab, self.sizes
        with sqlite3.connect(lab.folder / "work.db") as db:
            db.execute("CREATE TABLE effects (n INTEGER NOT NULL)")
        db.close()
        await self._command("keys", "init", "--store", self.store)
        await lab.declare(lab.source)
        if lab.target.startswith("sqlite:"):
            await lab.declare(lab.target)  # a plan makes no file
        ordinary = [self._made() for _ in range(sizes.messages - sizes.misfits)]
        unfit = [self._made(pad="x" * sizes.misfit_bytes) for _ in range(sizes.misfits)]
        self.misfits = {message.id for message in unfit}
        await lab.send(ordinary[: len(ordinary) // 2])
        for message in unfit:
            await lab.send([message])
        await lab.send(ordinary[len(ordinary) // 2 :])
        for nth in range(4):
            part = [self._made() for _ in range(sizes.delayed // 4)]
            if part:
                await lab.send(part, delay=2.0 + 3 * nth)
        note = DeadLetterNote(reason="failed", error_type="ValueError", attempts=5, queue=QUEUE)
        dead = [self._made(dead=note) for _ in range(sizes.dead)]
        self.dead = {message.id for message in dead}
        await lab.send(dead, queue=DEAD)

    def _made(self, *, dead: DeadLetterNote | None = None, **payload: Any) -> Message:
        n = len(self.sent)
        message = Message(
            id=new_message_id(),
            body=json.dumps({"n": n, **payload}).encode(),
            type="work",
            content_type="application/json",
            headers={"n": str(n)},
            created_at=datetime.now(UTC),
            dead=dead,
        )
        self.sent[message.id] = n
        return message

    async def _plan(self) -> None:
        """Everything that does not fit is known before anything moves."""
        code, told = await self._migrate("plan", "--sample", "all", "--json")
        plan = json.loads(told)
        assert code == (1 if self.misfits else 0)
        assert {misfit["id"] for misfit in plan["misfits"]} == self.misfits
        assert plan["certainty"] == "all"
        queue, dead = plan["queues"]
        due_meanwhile = queue["sampled"] - self.sizes.messages
        assert 0 <= due_meanwhile <= self.sizes.delayed
        assert dead["sampled"] == self.sizes.dead

    # -- meanwhile ------------------------------------------------------------------------

    async def _runner(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, str(WORKER), self.store),
            *(str(self.sizes.seconds), str(self.sizes.slots)),
            cwd=ROOT,
            env={
                **self._variables,
                "BROKERWQ_URL": f"{self.lab.source} {self.lab.target}",
                "BROKERWQ_SEND_TO": self.lab.target,
            },
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def _hold(self) -> None:
        """Hold some messages at the source, and put them back uncounted."""
        if not self.sizes.held:
            return
        async with opened(self.lab.source) as driver:
            consumer = await driver.consume(QUEUE, lease=60, prefetch=self.sizes.held)
            held: list[Any] = []
            while len(held) < self.sizes.held:
                claimed = await consumer.claim(self.sizes.held - len(held), 1.0)
                if not claimed:
                    break
                held += claimed
            await asyncio.sleep(min(10.0, self.sizes.patience / 10))
            for start in range(0, len(held), 100):
                part = held[start : start + 100]
                marks = [Mark.of(delivery.message) for delivery in part]
                await consumer.put_back(part, [0.0] * len(part), marks)
            await consumer.aclose()

    async def _produce(self) -> None:
        pause = 0.2
        for url in (self.lab.source, self.lab.target):
            done = self._switched if url == self.lab.source else self._over
            async with opened(url) as driver:
                while not done.is_set() and not self._over.is_set():
                    batch = [self._made() for _ in range(max(1, round(self.sizes.rate * pause)))]
                    await _send(driver, batch)
                    await asyncio.sleep(pause)

    # -- there ----------------------------------------------------------------------------

    async def _forth(self) -> None:
        for nth in range(self.sizes.kills):
            before = self._noted()
            movers = [await self._mover("run") for _ in range(2 if nth in (1, 2) else 1)]
            await self._at_work(movers, before)
            for mover in movers:
                await self._kill(mover)
            if nth == self.sizes.kills // 2:
                # The new side takes over; what was sent to the old one is moved all the same.
                self._switched.set()
        self._switched.set()
        movers = [await self._mover("run") for _ in range(2)]
        codes = [await asyncio.wait_for(_wait(mover), self.sizes.patience) for mover in movers]
        assert set(codes) <= {0, 1}, codes
        code, told = await self._migrate("status", "--settle", "0", "--json")
        status = json.loads(told)
        main = status["queues"][0]
        # A worker may be running a misfit at this moment; nothing else is there.
        left = sum(main["old"][kind] or 0 for kind in ("ready", "leased", "delayed"))
        assert main["empty_for"] is not None or left <= len(self.misfits), main
        verified, told = await self._migrate("verify", "--workers-run", "--json")
        assert verified == 0, told
        assert code in (0, 1)  # with workers at the source RabbitMQ cannot tell what they hold

    async def _at_work(self, movers: Sequence[asyncio.subprocess.Process], before: int) -> None:
        """Wait until one of ``movers`` has noted something, and a moment more."""

        def is_at_work() -> bool:
            over = all(mover.returncode is not None for mover in movers)
            return over or self._noted() > before

        await until(is_at_work, self.sizes.patience, "a mover at work")
        await asyncio.sleep(self._chance.uniform(0.0, 0.5))

    def _noted(self) -> int:
        """How much the ledger has noted so far."""
        return self._from_ledger(
            "SELECT total(pending + done + sightings) FROM entry", lambda rows: int(rows[0][0]), 0
        )

    def _from_ledger(self, query: str, read: Callable[[list[Any]], T], default: T) -> T:
        path = self.lab.folder / "ledger.db"
        if not path.exists():
            return default
        db = sqlite3.connect(path, timeout=30)
        try:
            return read(db.execute(query).fetchall())
        except sqlite3.OperationalError:
            return default  # it is being made
        finally:
            db.close()

    # -- afterwards -----------------------------------------------------------------------

    async def _count_sides(self) -> None:
        """Source, target, refused and run: together they are what was sent, by id."""
        old, new = await self._ids(self.lab.source), await self._ids(self.lab.target)
        run = self._run()
        dead_old = await self._ids(self.lab.source, DEAD)
        dead_new = await self._ids(self.lab.target, DEAD)
        found = old.keys() | new.keys() | dead_old.keys() | dead_new.keys()
        numbers = {self.sent[id_] for id_ in found} | run.keys()
        # Misfits are put out of the way for a while: then the source only counts them.
        parked = self._refusals().keys() - old.keys()
        parked = {id_ for id_ in parked if self.sent[id_] not in run}
        assert len(parked) + len(old) == sum(await self.lab.counts(self.lab.source))
        numbers |= {self.sent[id_] for id_ in parked}
        assert (numbers ^ set(self.sent.values())) == set(), "of these nothing is known"
        assert self.dead <= dead_new.keys()
        unexpected = {id_: dead_new[id_] for id_ in dead_new.keys() - self.dead}
        assert {id_: (found.attempts, found.dead) for id_, found in unexpected.items()} == {}
        assert not dead_old
        # Misfits are where they were, or run there; nothing else is.
        assert old.keys() <= self.misfits
        refusals = self._refusals()
        assert refusals.keys() <= self.misfits
        assert (old.keys() & self.misfits) <= refusals.keys()

    async def _back(self) -> None:
        if self.sizes.kills:
            before = self._noted()
            mover = await self._mover("rollback")
            await self._at_work([mover], before)
            await self._kill(mover)
        mover = await self._mover("rollback")
        assert await asyncio.wait_for(_wait(mover), self.sizes.patience) == 0
        new = await self._ids(self.lab.target)
        assert not new
        verified, told = await self._migrate("verify", "--workers-run", "--json")
        assert verified == 0, told
        assert (await self._ids(self.lab.source, DEAD)).keys() == self.dead

    async def _finish_work(self) -> None:
        """Everything is at the old side again, and is run there."""
        runner = await self._runner()
        wanted = set(self.sent.values()) - {self.sent[id_] for id_ in self.dead}
        try:
            await until(
                lambda: runner.returncode is not None or self._run().keys() >= wanted,
                self.sizes.patience,
                "the last job",
            )
            assert runner.returncode is None, "the runner has died"
        finally:
            await _end(runner)

    def _count_effects(self) -> None:
        effects = self._run()
        wanted = set(self.sent.values()) - {self.sent[id_] for id_ in self.dead}
        assert effects.keys() == wanted
        assert {n: times for n, times in effects.items() if times > 1} == {}

    def summary(self) -> str:
        """What was moved, for the table in docs/migration.md."""
        rows: list[Any] = self._from_ledger(
            "SELECT direction, total(done + pending > 0), total(done + pending) FROM entry "
            "GROUP BY direction ORDER BY direction DESC",
            list,
            [],
        )
        moved = ", ".join(f"{way}: {ids:.0f} ids, {copies:.0f} copies" for way, ids, copies in rows)
        return f"{moved}; {self.kills} movers killed; {len(self.sent)} messages sent"

    # -- what can be seen -----------------------------------------------------------------

    def _run(self) -> Counter[int]:
        db = sqlite3.connect(self.lab.folder / "work.db", timeout=30)
        try:
            return Counter(n for (n,) in db.execute("SELECT n FROM effects"))
        finally:
            db.close()

    def _refusals(self) -> dict[str, str]:
        query = "SELECT id, refusal FROM entry WHERE refusal IS NOT NULL AND direction = 'forth'"
        return self._from_ledger(query, dict, {})

    async def _ids(self, url: str, queue: str = QUEUE) -> dict[str, Message]:
        """What is in a queue, delayed misfits included: waits until they are due."""
        found: dict[str, Message] = {}
        async with opened(url) as driver:
            # So long that what was seen first does not come back before the last was.
            consumer = await driver.consume(queue, lease=900, prefetch=1000)
            held: list[Any] = []
            quiet = 0
            while quiet < 3:
                claimed = await consumer.claim(100, 1.0)
                quiet = 0 if claimed else quiet + 1
                held += claimed
                if claimed:
                    continue
                stats = await driver.inspect(queue)
                exact = stats.delayed.certainty is Certainty.EXACT
                if exact and not stats.ready.value:
                    break  # what is delayed are misfits, out of the way for a while
            for delivery in held:
                found[delivery.message.id] = delivery.message
            size = driver.capabilities.max_settle
            for start in range(0, len(held), size):
                part = held[start : start + size]
                marks = [Mark.of(delivery.message) for delivery in part]
                await consumer.put_back(part, [0.0] * len(part), marks)
            await consumer.quiesce()
            await consumer.aclose()
        return found

    # -- processes ------------------------------------------------------------------------

    @property
    def _variables(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **self.environment,
        }

    def _arguments(self, verb: str) -> list[str]:
        # The ledger knows the target by one name, whoever throttles it.
        return [
            *("migrate", verb, self.lab.source, self.target_of_movers),
            *("--queue", QUEUE, "--ledger", self.lab.ledger),
        ]

    async def _mover(self, verb: str) -> asyncio.subprocess.Process:
        rate = ["--rate", str(self.sizes.mover_rate)] if self.sizes.mover_rate else []
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "brokerwq", *self._arguments(verb)),
            *("--settle", f"{self.sizes.settle}s", "--lease", "5s", *rate),
            cwd=ROOT,
            env=self._variables,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def _kill(self, mover: asyncio.subprocess.Process) -> None:
        if mover.returncode is None:
            mover.send_signal(signal.SIGKILL)
            self.kills += 1
        await mover.wait()

    async def _migrate(self, verb: str, *options: str) -> tuple[int, str]:
        return await self._command(*self._arguments(verb), *options)

    async def _command(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "brokerwq", *arguments),
            cwd=ROOT,
            env=self._variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), self.sizes.patience)
        assert process.returncode in (0, 1), err.decode()
        return process.returncode, out.decode()


async def _wait(process: asyncio.subprocess.Process) -> int:
    return await process.wait()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), 30)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _send(driver: Driver, messages: Sequence[Message]) -> None:
    size = driver.capabilities.max_send
    for start in range(0, len(messages), size):
        part = list(messages[start : start + size])
        while part:
            answers = await driver.send(QUEUE, part, [0.0] * len(part))
            part = [m for m, answer in zip(part, answers, strict=True) if answer is not None]


async def until(condition: Callable[[], bool | Awaitable[bool]], within: float, what: str) -> None:
    give_up_at = time.monotonic() + within
    while not condition():
        assert time.monotonic() < give_up_at, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.1)

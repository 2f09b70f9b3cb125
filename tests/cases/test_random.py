"""Random work, random faults, random restarts; whatever the order of events, nothing is lost.

A message's fate is written in it: what each attempt does. From that follows how it must end,
unless a fault took an attempt from it. The seed is in the test's name.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from brokerwq import DeadLetter, Discard, Job, Retry, RetryPolicy, Runner, Snooze
from brokerwq.errors import ConnectionLostError, ThrottledError, TransientError
from brokerwq.testing import FakeClock
from brokerwq.testing.faults import Delay, Fail, Fault, Faults, LoseAnswer, Operation, Partly
from tests.cases.lab import FaultyApp, Place, counts, dead_letters, declare, memory, send

ATTEMPTS = 4
QUEUES = ("plain", "limited", "batched")
SETTLES: tuple[Operation, ...] = ("ack", "release", "put_back", "dead_letter", "extend", "claim")
FAULTS: tuple[Fault, ...] = (
    Fail(ConnectionLostError("cut")),
    Fail(ThrottledError("slowly", retry_after=1)),
    LoseAnswer(ConnectionLostError("cut too late")),
    Delay(3.0),
    Partly(TransientError("busy"), share=0.5),
)


class Body(BaseModel):
    n: int
    fate: list[str]


@dataclass
class World:
    """One random run."""

    seed: int
    place: Place
    ends: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    running: Counter[str] = field(default_factory=Counter[str])
    attempts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list[str])
    over: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311 -- repeatable, not secret
        self.faults = Faults(seed=self.seed, clock=self.place.clock)

    def app(self) -> FaultyApp:
        app = self.place.faulty_app(self.faults, lease=20)
        retry = RetryPolicy(max_attempts=ATTEMPTS, base=0.5, cap=4)

        @app.worker("plain", name="work", retry=retry)
        async def plain(job: Job, *, n: int, fate: list[str]) -> None:
            await self._live(job, n, fate)
            self.ends[job.id].append("done")

        @app.worker("limited", name="work", retry=retry, slots=2, timeout=15)
        async def limited(job: Job, *, n: int, fate: list[str]) -> None:
            await self._live(job, n, fate)
            self.ends[job.id].append("done")

        @app.worker("batched", name="work", retry=retry, batch=4, batch_wait=1)
        async def batched(jobs: list[Job], bodies: list[Body]) -> list[Any]:
            answers = [
                await self._answer(job, body) for job, body in zip(jobs, bodies, strict=True)
            ]
            for job, answer in zip(jobs, answers, strict=True):
                if answer is None:
                    self.ends[job.id].append("done")
            return answers

        return app

    async def _answer(self, job: Job, body: Body) -> Exception | None:
        try:
            await self._live(job, body.n, body.fate)
        except (DeadLetter, Discard, Snooze) as outcome:
            return outcome
        except ValueError:
            return Retry()
        return None

    async def _live(self, job: Job, n: int, fate: list[str]) -> None:
        name = job.id
        self.running[name] += 1
        self.attempts[name].append(job.attempt)
        if self.running[name] > 1 and not job.lease.lost:
            self.problems.append(f"{name} runs twice at once")
        if job.attempt > ATTEMPTS:
            self.problems.append(f"{name} is at attempt {job.attempt}")
        try:
            await self.place.clock.sleep(0.01 * (n % 7))
            await self._act(job, fate[min(job.attempt, len(fate)) - 1])
        finally:
            self.running[name] -= 1

    async def _act(self, job: Job, act: str) -> None:
        match act:
            case "slow":
                await self.place.clock.sleep(9)
            case "fail":
                raise ValueError(act)
            case "dead":
                raise DeadLetter(act)
            case "discard":
                raise Discard(act)
            case "snooze" if job.message.snoozed < 5:
                raise Snooze(2)
            case _:
                pass

    def fate(self) -> list[str]:
        acts = ["done", "done", "slow", "fail", "fail", "snooze", "discard", "dead"]
        return [self.rng.choice(acts) for _ in range(ATTEMPTS)]

    async def run(self, *, messages: int, chance: float) -> dict[str, list[str]]:
        """The fates, once all of them have come true."""
        app = self.app()
        fates: dict[str, list[str]] = {}
        for queue in QUEUES:
            await declare(app.well, queue, lease=20.0)
            for n in range(messages):
                fate = self.fate()
                fates[await send(app.well, queue, "work", n=n, fate=fate)] = fate
        for operation in SETTLES:
            for fault in FAULTS:
                self.faults.add(operation, fault, times=None, chance=chance)
        for _ in range(200):
            runners = [
                Runner(app, log=False, slots=self.rng.choice([1, 3, 8]), grace=3)
                for _ in range(self.rng.choice([1, 1, 2, 3]))
            ]
            self.over = 0
            await asyncio.gather(*map(self._shift, runners), self._time(len(runners)))
            left = [sum((await counts(app.well, queue))[:3]) for queue in QUEUES]
            if not any(left):
                return fates
        pytest.fail("it never came to an end")

    async def _shift(self, runner: Runner) -> None:
        task = asyncio.create_task(runner.run(handle_signals=False))
        await self.place.clock.sleep(self.rng.uniform(0.01, 40))
        runner.stop()
        if self.rng.random() < 0.2:
            runner.stop()
        report = await task
        assert report.stuck == 0
        self.over += 1

    async def _time(self, shifts: int) -> None:
        clock = self.place.clock
        assert isinstance(clock, FakeClock)
        while self.over < shifts:
            await clock.advance_and_settle(0.5)

    async def dead(self) -> dict[str, str]:
        app = self.place.apps[0]
        return {
            letter.id: letter.dead.reason
            for queue in QUEUES
            for letter in await dead_letters(app, queue)
            if letter.dead is not None
        }


def expected(fate: list[str]) -> str:
    """How a message ends that no fault takes an attempt from."""
    for act in fate:
        if act in ("done", "slow", "snooze"):
            return "done"
        if act == "discard":
            return "gone"
        if act == "dead":
            return "dead"
    return "dead"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_without_faults_every_fate_comes_true(seed: int) -> None:
    world = World(seed, memory())
    fates = await world.run(messages=12, chance=0.0)
    dead = await world.dead()
    await world.place.aclose()

    assert world.problems == []
    for name, fate in fates.items():
        end = "dead" if name in dead else "done" if world.ends[name] else "gone"
        assert end == expected(fate), (name, fate, world.attempts[name], world.ends[name])
        assert len(world.ends[name]) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_with_faults_nothing_is_lost(seed: int) -> None:
    world = World(seed, memory())
    fates = await world.run(messages=8, chance=0.03)
    world.faults.clear()
    dead = await world.dead()
    await world.place.aclose()

    assert world.problems == []
    for name, fate in fates.items():
        over = name in dead or world.ends[name] or "discard" in fate
        assert over, (name, fate, world.attempts[name])
        if name in dead and dead[name] == "dead":
            assert "dead" in fate

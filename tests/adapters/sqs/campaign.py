"""What may happen to runner processes on SQS: stopped, killed and poisoned, nothing is lost.

The suite runs each of these once or twice, ``make chaos-sqs`` at length.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import signal
from collections import Counter
from collections.abc import Sequence

from brokerwq import RetryPolicy
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.events import LeaseLost
from brokerwq.testing.servers.localstack import SqsServer
from brokerwq.testing.sqs_faults import throttled
from tests.adapters.sqs import places
from tests.adapters.sqs.places import place_on
from tests.adapters.sqs.processes import works
from tests.cases.lab import counts, dead_letters, declare, reasons

GRACE = 2.0
SLACK = 11.0
"""Seconds that a stop may take beyond the grace: a long poll of ten seconds, and one more."""
STALE = 1.2
"""Seconds: LocalStack's counts are a second old."""


async def three_runs_and_one_dead_letter(
    server: SqsServer, ways: Sequence[str], *, base: float
) -> None:
    """A message that ends badly three times, by failing or by killing its process."""
    async with works(server, BASE=base, LEASE=3) as place:
        await place.enqueue(1, ways)
        async with place.supervised("--slots", "1"):
            await place.until_dead(1, 90)
            if ways[-1] == "fail":
                # Nothing but the third failure itself is needed for the move.
                (_, _, died_at) = place.notes("start")[-1]
                assert SYSTEM_CLOCK.utcnow().timestamp() - died_at < 2
        assert [attempt for _, attempt, _ in place.notes("start")] == [1, 2, 3], ways
        wanted = "failed" if ways[-1] == "fail" else "lost"
        assert await reasons(place.app, "q") == [wanted], ways


async def the_culprit_dies_alone(server: SqsServer, max_attempts: int) -> None:
    """Forty messages on eight slots, one of which ends its process."""
    async with works(server, MAX_ATTEMPTS=max_attempts, LEASE=4) as place:
        for n in range(40):
            await place.enqueue(n, ["exit"] * 9 if n == 20 else [], 0.2)

        async with place.supervised("--slots", "8"):
            await place.until_dead(1, 120)
            await place.until_noted("end", 39, 120)

        assert {n for n, _, _ in place.notes("end")} == set(range(40)) - {20}
        (letter,) = await dead_letters(place.app, "q")
        assert json.loads(letter.body)["n"] == 20


async def stops_strand_nothing(server: SqsServer, rounds: int, seed: int) -> float:
    """Runners that are stopped in a poll, in a buffer or in a job; the longest stop, in seconds.

    With ``max_attempts=1``, so that whatever were lost unhandled would be dead.
    """
    chance = random.Random(seed)  # noqa: S311  -- repeatable moments
    longest = 0.0
    async with works(server, MAX_ATTEMPTS=1, LEASE=30) as place:
        sent = 0
        for number in range(rounds):
            process = await place.start("--slots", "3", "--grace", str(GRACE), "--log", "json")
            await place.until_ready(number + 1)
            for _ in range(4):
                await asyncio.sleep(chance.random() * 0.7)
                await place.enqueue(sent, seconds=chance.choice([0.0, 0.3, 1.5, 4.0]))
                sent += 1
            await asyncio.sleep(chance.random())
            process.send_signal(signal.SIGTERM)
            if chance.random() < 0.5:  # into a poll that is let finish
                await place.enqueue(sent)
                sent += 1
            assert await asyncio.wait_for(process.wait(), 60) == 0, place.log()
            longest = max(longest, place.last_stop())
            assert longest < GRACE + SLACK, place.log()
            await asyncio.sleep(STALE)
            _, leased, _, dead = await counts(place.app, "q")
            assert (leased, dead) == (0, 0), place.log()
        async with place.supervised("--slots", "3"):
            await place.until_noted("end", sent, 120)
        ends = Counter(n for n, _, _ in place.notes("end"))
        assert ends == Counter(range(sent))
        assert (await counts(place.app, "q"))[3] == 0
    return longest


async def throttling_is_sat_out(server: SqsServer, seconds: float) -> None:
    """Half of all calls are throttled for so long: nothing lost, no lease lost, and quiet."""
    async with place_on(server, clients=f"{places.__name__}:clients") as place:
        app = place.app()
        done: Counter[int] = Counter()

        @app.worker("q", lease=30, retry=RetryPolicy(max_attempts=5))
        async def work(*, n: int) -> None:
            await asyncio.sleep(2)
            done[n] += 1

        await declare(app, "q")
        async with place.running(app, slots=10):
            places.faults.often("*", 0.5, throttled())
            started = SYSTEM_CLOCK.now()
            count = 0
            while SYSTEM_CLOCK.now() - started < seconds:
                await work.enqueue_many([work.call(n=count + n) for n in range(10)])
                count += 10
                await asyncio.sleep(3)
            places.faults.stop()
            await place.until(lambda: len(done) == count)
        took = SYSTEM_CLOCK.now() - started

        assert place.events.of(LeaseLost) == []
        assert set(done.values()) == {1}
        assert len(place.lines.said) < 2 * took


async def groups_keep_their_order(server: SqsServer, groups: int, messages: int) -> None:
    """A FIFO queue under eight slots, one job in twenty of which fails."""
    async with place_on(server, fifo="true") as place:
        app = place.app()
        done: dict[str, list[int]] = {}
        failures: Counter[str] = Counter()

        @app.worker("q", retry=RetryPolicy(max_attempts=20, base=0.01))
        async def work(*, group: str, n: int) -> None:
            await asyncio.sleep(secrets.randbelow(30) / 1000)
            if secrets.randbelow(20) == 0:
                failures[group] += 1
                raise ValueError(n)
            done.setdefault(group, []).append(n)

        for n in range(messages):
            for group in range(groups):
                name = f"g{group}"
                await work.options(group=name).enqueue(group=name, n=n)
        async with place.running(app, slots=8):
            until = SYSTEM_CLOCK.now() + 60
            while sum(map(len, done.values())) < groups * messages:
                assert SYSTEM_CLOCK.now() < until, done
                await asyncio.sleep(0.05)

        assert done == {f"g{group}": list(range(messages)) for group in range(groups)}
        assert failures.total() > 0

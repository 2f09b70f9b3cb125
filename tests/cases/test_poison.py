"""A message that kills its process: it dies alone, and all that stood beside it live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cases.site import Note, Site, supervised

pytestmark = pytest.mark.slow

WITHIN = 60.0


@pytest.fixture
def site(tmp_path: Path) -> Generator[Site]:
    site = Site(tmp_path, lease=1.0)
    yield site
    site.close()


async def run_until_settled(
    site: Site, queues: Sequence[str], *, processes: int = 1, slots: int = 8
) -> None:
    """Supervised processes at work until nothing is left in the queues."""
    with ExitStack() as stack:
        looks = [
            stack.enter_context(supervised(site, "run", *queues, "--slots", str(slots)))
            for _ in range(processes)
        ]

        def settled() -> bool:
            for look in looks:
                look()
            return len(ended(site)) >= 39 * len(queues)

        site.until(settled, WITHIN)
        for queue in queues:
            while any((await site.counts(queue))[:3]):
                settled()
                assert len(site.notes("start")) < 1000


def ended(site: Site) -> set[int]:
    return {note.n for note in site.notes("end")}


def calls_of(site: Site, n: int) -> list[Note]:
    return [note for note in site.notes("start") if note.n == n]


def numbered(start: int, poison: int, **innocent: Any) -> list[dict[str, Any]]:
    """Forty messages, one of which ends the process."""
    return [
        {"n": n, "act": "exit", "seconds": 0.05} if n == start + poison else {"n": n, **innocent}
        for n in range(start, start + 40)
    ]


@pytest.mark.parametrize(("attempts", "poison"), [(2, 20), (3, 0)])
async def test_only_the_culprit_dies(site: Site, attempts: int, poison: int) -> None:
    site.attempts = attempts
    await site.send("q", *numbered(0, poison, seconds=0.15))
    await run_until_settled(site, ["q"])

    assert await site.dead() == {f"q-{poison}": "lost"}
    assert ended(site) == set(range(40)) - {poison}
    assert [note.attempt for note in calls_of(site, poison)] == list(range(1, attempts + 1))
    ends = Counter(note.n for note in site.notes("end"))
    assert max(ends.values()) == 1
    # At its last attempt it had the process to itself.
    last = calls_of(site, poison)[-1]
    beside = [note for note in site.notes("start") if note.pid == last.pid and note.at >= last.at]
    assert beside == [last]


@pytest.mark.parametrize("attempts", [2, 3])
async def test_only_the_culprit_dies_beside_another_process(site: Site, attempts: int) -> None:
    site.attempts = attempts
    await site.send("q", *numbered(0, 7, seconds=0.15))
    await run_until_settled(site, ["q"], processes=2)

    assert await site.dead() == {"q-7": "lost"}
    assert ended(site) == set(range(40)) - {7}
    assert len(calls_of(site, 7)) == attempts


@pytest.mark.parametrize("attempts", [2])
async def test_only_the_culprits_of_two_queues_die(site: Site, attempts: int) -> None:
    site.attempts = attempts
    await site.send("q", *numbered(0, 5, seconds=0.1))
    await site.send("p", *numbered(100, 30, seconds=0.1))
    await run_until_settled(site, ["q", "p"])

    assert await site.dead("q") == {"q-5": "lost"}
    assert await site.dead("p") == {"p-130": "lost"}
    assert ended(site) == set(range(40)) - {5} | set(range(100, 140)) - {130}


@pytest.mark.parametrize(("attempts", "base"), [(2, 0.3), (3, 1.0)])
async def test_only_the_culprit_dies_while_others_are_between_attempts(
    site: Site, attempts: int, base: float
) -> None:
    site.attempts = attempts
    site.base = base
    await site.send("q", *numbered(0, 13, act="fail once", seconds=0.0))
    await run_until_settled(site, ["q"])

    assert await site.dead() == {"q-13": "lost"}
    assert ended(site) == set(range(40)) - {13}


async def test_several_culprits_die_and_nobody_else(site: Site) -> None:
    site.attempts = 2
    messages = numbered(0, 3, seconds=0.1)
    messages[20] = {"n": 20, "act": "exit", "seconds": 0.05}
    messages[21] = {"n": 21, "act": "exit", "seconds": 0.05}
    await site.send("q", *messages)
    with supervised(site, "run", "q", "--slots", "8") as look:

        def settled() -> bool:
            look()
            return len(ended(site)) == 37

        site.until(settled, WITHIN)
        while any((await site.counts())[:3]):
            look()
    assert await site.dead() == dict.fromkeys(("q-3", "q-20", "q-21"), "lost")


async def test_a_claim_of_five_loses_one(site: Site) -> None:
    site.attempts = 3
    await site.send("q", {"n": 0, "act": "exit"}, *({"n": n} for n in range(1, 5)))
    with supervised(site, "run", "q", "--slots", "5", restarts=10) as look:

        def settled() -> bool:
            look()
            return ended(site) == {1, 2, 3, 4} and len(calls_of(site, 0)) == 3

        site.until(settled, WITHIN)
        while any((await site.counts())[:3]):
            look()
    assert await site.dead() == {"q-0": "lost"}
    assert Counter(note.n for note in site.notes("end")) == Counter([1, 2, 3, 4])

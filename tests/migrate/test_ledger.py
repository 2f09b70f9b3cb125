"""What a ledger knows and keeps, wherever it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from brokerwq.errors import ConfigError
from brokerwq.migrate.entry import Moved, QueueCounts
from brokerwq.migrate.ledger import Ledger
from brokerwq.migrate.pair import Direction
from brokerwq.migrate.record import MigrationRecord
from brokerwq.testing import FakeClock
from tests.migrate.postgres import postgres_ledger

RECORD = MigrationRecord(source="memory://a", target="memory://b", queues={"q": "q"})
X = Moved("x", b"1")
Y = Moved("y", b"2")
BOTH_WAYS: tuple[Direction, ...] = ("forth", "back")


async def opened(url: str, record: MigrationRecord = RECORD, *, create: bool = True) -> Ledger:
    ledger = Ledger(url)
    await ledger.open(record, create=create)
    return ledger


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
    else:
        async with postgres_ledger() as ledger:
            yield ledger


async def test_what_was_sent_is_pending_until_it_is_deleted(url: str) -> None:
    ledger = await opened(url)

    await ledger.sent("forth", "q", [X, Y])
    assert await ledger.pending("forth", "q", ["x", "y", "z"]) == {X: 1, Y: 1}
    await ledger.deleted("forth", "q", ["x"])
    assert await ledger.pending("forth", "q", ["x", "y"]) == {Y: 1}
    assert await ledger.pending("forth", "other", ["y"]) == {}

    assert await ledger.counts("forth") == {
        "q": QueueCounts(moved=2, copies=2, pending=1, refused=0)
    }
    await ledger.aclose()


async def test_a_second_copy_of_an_id_counts_as_one(url: str) -> None:
    ledger = await opened(url)

    for _ in range(2):
        await ledger.sent("forth", "q", [X])
    await ledger.deleted("forth", "q", ["x"])

    assert await ledger.pending("forth", "q", ["x"]) == {X: 1}
    assert (await ledger.counts("forth"))["q"] == QueueCounts(moved=1, copies=2, pending=1)
    await ledger.aclose()


async def test_what_is_moved_back_is_open_no_more(url: str) -> None:
    """Else the next move of that id would only delete it."""
    ledger = await opened(url)
    await ledger.sent("forth", "q", [X])

    await ledger.sent("back", "q", [X])

    assert await ledger.pending("forth", "q", ["x"]) == {}
    assert await ledger.pending("back", "q", ["x"]) == {X: 1}
    (entry,) = await ledger.entries("q")
    assert (entry.direction, entry.pending) == ("back", 1)
    await ledger.aclose()


async def test_a_refusal_is_forgotten_once_the_message_fits(url: str) -> None:
    ledger = await opened(url)

    assert await ledger.refused("forth", "q", [(X, "too large")]) == [1]
    assert await ledger.refused("forth", "q", [(X, "too large")]) == [2]
    assert (await ledger.counts("forth"))["q"].refused == 1
    await ledger.sent("forth", "q", [X])

    assert (await ledger.counts("forth"))["q"] == QueueCounts(moved=1, copies=1, pending=1)
    await ledger.aclose()


async def test_what_a_dead_mover_left_open_can_be_closed(url: str) -> None:
    ledger = await opened(url)
    await ledger.sent("forth", "q", [X])

    assert await ledger.settle_pending("forth", "q") == 1

    assert await ledger.pending("forth", "q", ["x"]) == {}
    await ledger.aclose()


async def test_movers_that_never_ended_are_counted(url: str) -> None:
    first, second = await opened(url), await opened(url)

    assert await first.begin("forth") == 0
    assert await second.begin("forth") == 1
    assert await first.begin("back") == 0
    await second.end()
    assert [(s.has_ended, s.is_alive) for s in await first.sessions()] == [
        (False, True),
        (True, False),
        (False, True),
    ]
    await first.aclose()
    await second.aclose()


async def test_emptiness_is_counted_from_the_first_look_that_found_nothing(url: str) -> None:
    ledger = await opened(url)

    assert await ledger.looked("forth", "q", empty=True) == pytest.approx(0, abs=5)
    assert await ledger.looked("forth", "q", empty=False) is None
    assert await ledger.looked("forth", "q", empty=True) is not None
    await ledger.aclose()


async def test_a_finished_migration_takes_no_mover(url: str) -> None:
    ledger = await opened(url)

    await ledger.close_migration()

    assert await ledger.closed_at() is not None
    with pytest.raises(ConfigError, match=r"finished at .* UTC; another one needs another ledger"):
        await ledger.begin("forth")
    await ledger.aclose()


async def test_queues_are_added_but_not_turned_elsewhere(url: str) -> None:
    await (await opened(url)).aclose()
    more = MigrationRecord(source="memory://a", target="memory://b", queues={"r": "s"})
    await (await opened(url, more)).aclose()

    other = MigrationRecord(source="memory://a", target="memory://b", queues={"r": "t"})
    with pytest.raises(ConfigError, match="belongs to another migration: r goes to s"):
        await opened(url, other)


async def test_a_missing_ledger_is_named_and_not_made(url: str) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="there is no ledger"):
            await opened(url, create=False)


async def test_what_is_moved_shows_that_neither_side_has_stayed_empty(url: str) -> None:
    """Else a migration could be finished right after a rollback had filled the old side."""
    clock = FakeClock()
    ledger = Ledger(url, clock=clock)
    await ledger.open(RECORD, create=True)
    for direction in BOTH_WAYS:
        await ledger.looked(direction, "q", empty=True)
    clock.advance(90)
    assert [await ledger.looked(way, "q", empty=True) for way in BOTH_WAYS] == [90.0, 90.0]

    await ledger.sent("back", "q", [X])

    assert [await ledger.looked(way, "q", empty=True) for way in BOTH_WAYS] == [0.0, 0.0]
    await ledger.aclose()


async def test_a_misfit_is_out_of_the_way_for_a_time(url: str) -> None:
    clock = FakeClock()
    ledger = Ledger(url, clock=clock)
    await ledger.open(RECORD, create=True)
    await ledger.refused("forth", "q", [(X, "too large"), (Y, "too large"), (X, "too large")])
    await ledger.parked("forth", "q", {"x": 60.0})

    assert await ledger.misfits("forth", "q") == {X: True, Y: False}
    clock.advance(61)
    assert await ledger.misfits("forth", "q") == {X: False, Y: False}
    await ledger.aclose()


async def test_whose_a_ledger_is_can_be_asked_before_it_is_opened(url: str) -> None:
    assert await Ledger(url).known() is None
    await (await opened(url)).aclose()
    assert await Ledger(url).known() == RECORD


async def test_movers_that_make_a_ledger_at_one_moment_share_it(url: str) -> None:
    ledgers = [Ledger(url) for _ in range(4)]

    await asyncio.gather(*(ledger.open(RECORD, create=True) for ledger in ledgers))

    begun = await asyncio.gather(*(ledger.begin("forth") for ledger in ledgers))
    assert sorted(begun) == [0, 1, 2, 3]
    assert await asyncio.gather(*(ledger.show("forth") for ledger in ledgers)) == [3, 3, 3, 3]
    for ledger in ledgers:
        await ledger.end()
        await ledger.aclose()


async def test_movers_that_note_the_same_ids_at_one_moment_lose_no_count(url: str) -> None:
    """In another order each, so that they would wait for each other if both could begin."""
    first, second = await opened(url), await opened(url)
    moved = [Moved(f"{n}", b"1") for n in range(200)]

    for _ in range(5):
        await asyncio.gather(
            first.sent("forth", "q", moved),
            second.sent("forth", "q", moved[::-1]),
            first.deleted("forth", "q", [each.id for each in moved[::-1]]),
        )

    assert (await first.counts("forth"))["q"] == QueueCounts(moved=200, copies=2000, pending=200)
    assert set((await second.pending("forth", "q", ["0", "199"])).values()) == {5}
    await first.aclose()
    await second.aclose()


async def test_notes_that_come_together_are_all_kept(url: str) -> None:
    ledger = await opened(url)
    moved = [Moved(f"m{n}", b"d") for n in range(20)]

    await asyncio.gather(*(ledger.sent("forth", "q", [each]) for each in moved))

    assert await ledger.pending("forth", "q", [each.id for each in moved]) == dict.fromkeys(
        moved, 1
    )
    await ledger.aclose()

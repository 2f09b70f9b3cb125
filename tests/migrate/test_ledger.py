from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from brokerwq.broker import connect
from brokerwq.errors import BrokerwqError, ConfigError, StoreError
from brokerwq.migrate.entry import Moved, QueueCounts
from brokerwq.migrate.ledger import Ledger
from brokerwq.migrate.ledger_file import MigrationRecord
from brokerwq.migrate.pair import Direction
from brokerwq.testing import FakeClock

RECORD = MigrationRecord(source="memory://a", target="memory://b", queues={"q": "q"})
X = Moved("x", b"1")
Y = Moved("y", b"2")
BOTH_WAYS: tuple[Direction, ...] = ("forth", "back")


async def opened(path: Path, record: MigrationRecord = RECORD, *, create: bool = True) -> Ledger:
    ledger = Ledger(f"sqlite:///{path}")
    await ledger.open(record, create=create)
    return ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


async def test_what_was_sent_is_pending_until_it_is_deleted(path: Path) -> None:
    ledger = await opened(path)

    await ledger.sent("forth", "q", [X, Y])
    assert await ledger.pending("forth", "q", ["x", "y", "z"]) == {X: 1, Y: 1}
    await ledger.deleted("forth", "q", ["x"])
    assert await ledger.pending("forth", "q", ["x", "y"]) == {Y: 1}
    assert await ledger.pending("forth", "other", ["y"]) == {}

    assert await ledger.counts("forth") == {
        "q": QueueCounts(moved=2, copies=2, pending=1, refused=0)
    }
    await ledger.aclose()


async def test_a_second_copy_of_an_id_counts_as_one(path: Path) -> None:
    ledger = await opened(path)

    for _ in range(2):
        await ledger.sent("forth", "q", [X])
    await ledger.deleted("forth", "q", ["x"])

    assert await ledger.pending("forth", "q", ["x"]) == {X: 1}
    assert (await ledger.counts("forth"))["q"] == QueueCounts(moved=1, copies=2, pending=1)
    await ledger.aclose()


async def test_what_is_moved_back_is_open_no_more(path: Path) -> None:
    """Else the next move of that id would only delete it."""
    ledger = await opened(path)
    await ledger.sent("forth", "q", [X])

    await ledger.sent("back", "q", [X])

    assert await ledger.pending("forth", "q", ["x"]) == {}
    assert await ledger.pending("back", "q", ["x"]) == {X: 1}
    (entry,) = await ledger.entries("q")
    assert (entry.direction, entry.pending) == ("back", 1)
    await ledger.aclose()


async def test_a_refusal_is_forgotten_once_the_message_fits(path: Path) -> None:
    ledger = await opened(path)

    assert await ledger.refused("forth", "q", [(X, "too large")]) == [1]
    assert await ledger.refused("forth", "q", [(X, "too large")]) == [2]
    assert (await ledger.counts("forth"))["q"].refused == 1
    await ledger.sent("forth", "q", [X])

    assert (await ledger.counts("forth"))["q"] == QueueCounts(moved=1, copies=1, pending=1)
    await ledger.aclose()


async def test_a_ledger_from_before_misfits_had_a_time_is_completed(path: Path) -> None:
    ledger = await opened(path)
    await ledger.refused("forth", "q", [(X, "too large")])
    await ledger.aclose()
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE entry DROP COLUMN parked_until")
    db.close()

    ledger = await opened(path)
    assert await ledger.misfits("forth", "q") == {X: False}
    await ledger.parked("forth", "q", {"x": 60.0})
    assert await ledger.misfits("forth", "q") == {X: True}
    await ledger.aclose()


async def test_what_a_dead_mover_left_open_can_be_closed(path: Path) -> None:
    ledger = await opened(path)
    await ledger.sent("forth", "q", [X])

    assert await ledger.settle_pending("forth", "q") == 1

    assert await ledger.pending("forth", "q", ["x"]) == {}
    await ledger.aclose()


async def test_movers_that_never_ended_are_counted(path: Path) -> None:
    first, second = await opened(path), await opened(path)

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


async def test_emptiness_is_counted_from_the_first_look_that_found_nothing(path: Path) -> None:
    ledger = await opened(path)

    assert await ledger.looked("forth", "q", empty=True) == pytest.approx(0, abs=5)
    assert await ledger.looked("forth", "q", empty=False) is None
    assert await ledger.looked("forth", "q", empty=True) is not None
    await ledger.aclose()


async def test_a_finished_migration_takes_no_mover(path: Path) -> None:
    ledger = await opened(path)

    await ledger.close_migration()

    assert await ledger.closed_at() is not None
    with pytest.raises(ConfigError, match=r"finished at .* UTC; another one needs another ledger"):
        await ledger.begin("forth")
    await ledger.aclose()


async def test_queues_are_added_but_not_turned_elsewhere(path: Path) -> None:
    await (await opened(path)).aclose()
    more = MigrationRecord(source="memory://a", target="memory://b", queues={"r": "s"})
    await (await opened(path, more)).aclose()

    other = MigrationRecord(source="memory://a", target="memory://b", queues={"r": "t"})
    with pytest.raises(ConfigError, match="belongs to another migration: r goes to s"):
        await opened(path, other)


async def test_a_missing_ledger_is_named_and_not_made(path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="there is no ledger"):
            await opened(path, create=False)


async def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE precious (x)")
    db.close()

    with pytest.raises(ConfigError, match="a database of something else"):
        await opened(path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("precious",)]
    db.close()


@pytest.fixture
def text_file(path: Path) -> Path:
    path.write_text("not a database, but long enough to be taken for one" * 20)
    return path


async def test_a_file_that_is_no_database_is_an_error(text_file: Path) -> None:
    with pytest.raises(StoreError, match="is no ledger"):
        await opened(text_file)


@pytest.mark.parametrize("url", ["ledger.db", "sqlite://", "sqlite:///", "postgresql://x/y", ""])
def test_a_ledger_is_a_file(url: str) -> None:
    with pytest.raises(ConfigError, match="must be a file"):
        Ledger(url)


async def test_what_is_moved_shows_that_neither_side_has_stayed_empty(path: Path) -> None:
    """Else a migration could be finished right after a rollback had filled the old side."""
    clock = FakeClock()
    ledger = Ledger(f"sqlite:///{path}", clock=clock)
    await ledger.open(RECORD, create=True)
    for direction in BOTH_WAYS:
        await ledger.looked(direction, "q", empty=True)
    clock.advance(90)
    assert [await ledger.looked(way, "q", empty=True) for way in BOTH_WAYS] == [90.0, 90.0]

    await ledger.sent("back", "q", [X])

    assert [await ledger.looked(way, "q", empty=True) for way in BOTH_WAYS] == [0.0, 0.0]
    await ledger.aclose()


async def test_a_file_of_queues_is_no_ledger_and_a_ledger_holds_no_queues(path: Path) -> None:
    async with connect(f"sqlite:///{path}") as broker:
        await broker.queues()
    with pytest.raises(ConfigError, match="a database of something else"):
        await opened(path)

    ledger = await opened(path.with_name("other.db"))
    await ledger.aclose()
    with pytest.raises(BrokerwqError, match=r"other\.db"):
        async with connect(f"sqlite:///{path.with_name('other.db')}") as broker:
            await broker.queues()

"""A ledger in a file: what it shares its folder with, and what it was before."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from brokerwq import connect
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.errors import BrokerwqError, ConfigError, StoreError
from brokerwq.migrate.entry import Moved
from brokerwq.migrate.ledger import Ledger
from brokerwq.migrate.ledger_sqlite import SqliteDatabase
from brokerwq.migrate.record import MigrationRecord

RECORD = MigrationRecord(source="memory://a", target="memory://b", queues={"q": "q"})
X = Moved("x", b"1")


async def opened(path: Path) -> Ledger:
    ledger = Ledger(f"sqlite:///{path}")
    await ledger.open(RECORD, create=True)
    return ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


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


@pytest.mark.parametrize("url", ["ledger.db", "sqlite://", "sqlite:///", "mysql://x/y", ""])
def test_a_ledger_is_a_file_or_in_postgresql(url: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a file .* or in PostgreSQL"):
        Ledger(url)


@pytest.mark.slow
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


async def test_each_of_the_notes_that_come_together_hears_why_it_is_not_kept(path: Path) -> None:
    ledger = await opened(path)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE entry")
    db.close()

    notes = [ledger.sent("forth", "q", [X]), ledger.deleted("forth", "q", ["x"]), ledger.end()]
    answers = await asyncio.gather(*notes, return_exceptions=True)

    assert isinstance(answers[0], StoreError)
    assert answers[1] is answers[2]  # which waited together, and are one transaction
    assert isinstance(answers[1], StoreError)
    await ledger.aclose()


@pytest.mark.slow
def test_movers_that_make_one_ledger_at_once_all_find_it(tmp_path: Path) -> None:
    def prepare(path: Path, start: Barrier) -> bool:
        start.wait()
        database = SqliteDatabase(str(path), SYSTEM_CLOCK)
        try:
            return database.prepare(create=True)
        finally:
            database.close()

    with ThreadPoolExecutor(3) as pool:
        for nth in range(20):
            start = Barrier(3)
            made = [pool.submit(prepare, tmp_path / f"{nth}.db", start) for _ in range(3)]
            assert [each.result(60) for each in made] == [True] * 3

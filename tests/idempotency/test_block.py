"""``processed``: a key around a unit of work that is not a job's."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from brokerwq.errors import ConfigError, StoreError
from brokerwq.idempotency import (
    KeyBusyError,
    NoKeyError,
    PayloadMismatchError,
    SqliteStore,
    TransactionAbortedError,
    processed,
)
from brokerwq.idempotency.keys import digest_of
from brokerwq.idempotency.results import ResultError
from tests.idempotency.stores import a_claim


@pytest.fixture
async def db(tmp_path: Path) -> AsyncGenerator[sqlite3.Connection]:
    store = SqliteStore(tmp_path / "work.db")
    await store.init()
    await store.aclose()
    connection = sqlite3.connect(tmp_path / "work.db", isolation_level=None)
    connection.execute("CREATE TABLE effects (n)")
    yield connection
    connection.close()


def effects(db: sqlite3.Connection) -> list[int]:
    return [n for (n,) in db.execute("SELECT n FROM effects")]


async def work(db: sqlite3.Connection, key: object, n: int = 1) -> bool:
    """Whether it was done now."""
    async with processed(db, key, scope="invoices") as done:
        if done.duplicate:
            return False
        db.execute("INSERT INTO effects VALUES (?)", (n,))
        return True


async def test_the_second_time_it_is_a_duplicate(db: sqlite3.Connection) -> None:
    assert await work(db, ["order", 7])
    assert not await work(db, ["order", 7])

    assert effects(db) == [1]
    assert not db.in_transaction


async def test_an_exception_takes_back_work_and_mark(db: sqlite3.Connection) -> None:
    with pytest.raises(KeyError):  # noqa: PT012 -- the block is what fails
        async with processed(db, "a"):
            db.execute("INSERT INTO effects VALUES (1)")
            raise KeyError

    assert effects(db) == []
    async with processed(db, "a") as done:
        assert not done.duplicate


async def test_in_an_open_transaction_its_owner_commits(db: sqlite3.Connection) -> None:
    for end in ("ROLLBACK", "COMMIT"):
        db.execute("BEGIN IMMEDIATE")
        assert await work(db, "a")
        assert db.in_transaction
        db.execute(end)

    assert not await work(db, "a")
    assert effects(db) == [1]


async def test_a_result_can_be_kept(db: sqlite3.Connection) -> None:
    async with processed(db, "a") as done:
        await done.keep({"total": 3})

    async with processed(db, "a") as done:
        assert (done.duplicate, done.result) == (True, '{"total":3}')


async def test_a_result_that_cannot_be_kept_is_the_callers_to_know(
    db: sqlite3.Connection,
) -> None:
    with pytest.raises(ResultError):
        async with processed(db, "a") as done:
            await done.keep("x" * 5000)


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_a_block_that_ends_the_transaction_is_found_out(
    db: sqlite3.Connection, statement: str
) -> None:
    with pytest.raises(TransactionAbortedError):  # noqa: PT012 -- as above
        async with processed(db, "a"):
            db.execute("INSERT INTO effects VALUES (1)")
            db.execute(statement)


async def test_another_payload_is_refused(db: sqlite3.Connection) -> None:
    async with processed(db, "a", payload={"total": 1}):
        pass

    async with processed(db, "a", payload={"total": 1}) as done:
        assert done.duplicate
    with pytest.raises(PayloadMismatchError):
        async with processed(db, "a", payload={"total": 2}):
            pass
    assert not db.in_transaction


async def test_scopes_have_keys_of_their_own(db: sqlite3.Connection) -> None:
    async with processed(db, "a", scope="one") as one, processed(db, "a", scope="two") as two:
        assert not one.duplicate
        assert not two.duplicate


async def test_a_key_that_somebody_works_on_is_busy(db: sqlite3.Connection, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "work.db")
    key = int.from_bytes(digest_of(("processed", "processed"), "a"))
    async with processed(db, "b"):
        pass
    payload = (await store.list(1))[0].payload
    await store.claim(a_claim(key, payload=payload, lease=30.0))
    await store.aclose()

    with pytest.raises(KeyBusyError) as caught:
        async with processed(db, "a"):
            pass

    assert 0 < caught.value.remaining <= 30


@pytest.mark.parametrize("key", [None, "", 1.5])
async def test_what_is_no_key_is_refused(db: sqlite3.Connection, key: object) -> None:
    with pytest.raises(NoKeyError):
        async with processed(db, key):
            pass


async def test_a_database_without_tables_says_what_to_do(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "bare.db")
    try:
        with pytest.raises(StoreError, match="keys init"):
            async with processed(db, "a"):
                pass
    finally:
        db.close()


async def test_what_is_no_connection_is_refused() -> None:
    with pytest.raises(ConfigError, match="tx must be"):
        async with processed("sqlite:///x.db", "a"):
            pass

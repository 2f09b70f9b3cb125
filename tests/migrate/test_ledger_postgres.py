"""A ledger in PostgreSQL: connections that are lost, and places that are taken or forbidden."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.errors import ConfigError, StoreError, StoreUnavailableError
from brokerwq.migrate.entry import Moved
from brokerwq.migrate.ledger import Ledger
from brokerwq.migrate.ledger_postgres import PostgresDatabase
from brokerwq.migrate.record import MigrationRecord
from tests.idempotency.postgres import own_asyncpg, server_url, shared_proxy, sql
from tests.migrate.postgres import behind_proxy, in_ledger, postgres_ledger

RECORD = MigrationRecord(source="memory://a", target="memory://b", queues={"q": "q"})
X = Moved("x", b"1")
GATE = """CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END'"""
GATED = """CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON entry
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gate()"""


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with postgres_ledger() as ledger:
        yield ledger


@pytest.fixture
async def ledger(url: str) -> AsyncGenerator[Ledger]:
    """Open, and reached through the proxy."""
    opened = Ledger(behind_proxy(url))
    await opened.open(RECORD, create=True)
    yield opened
    await opened.aclose()


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    give_up_at = time.monotonic() + 30
    while not await condition():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.02)


async def test_a_connection_that_was_lost_is_made_again(ledger: Ledger) -> None:
    await ledger.sent("forth", "q", [X])
    shared_proxy().cut()
    assert await ledger.pending("forth", "q", ["x"]) == {X: 1}
    shared_proxy().cut()
    await ledger.sent("forth", "q", [X])
    assert await ledger.pending("forth", "q", ["x"]) == {X: 2}


async def test_a_server_that_is_away_for_a_while_is_waited_for(ledger: Ledger) -> None:
    shared_proxy().hang_up()
    noting = asyncio.create_task(ledger.sent("forth", "q", [X]))
    await asyncio.sleep(0.3)
    assert not noting.done()

    shared_proxy().answer()

    await noting
    assert await ledger.pending("forth", "q", ["x"]) == {X: 1}


async def test_what_was_cut_off_before_its_commit_is_done_again(ledger: Ledger, url: str) -> None:
    shared_proxy().lose_answers()
    noting = asyncio.create_task(ledger.sent("forth", "q", [X]))
    await asyncio.sleep(0.3)
    shared_proxy().deliver_answers()

    await noting
    assert await in_ledger(url, "SELECT pending FROM entry") == [1]


async def test_what_was_committed_is_not_done_again_when_the_answer_is_lost(
    ledger: Ledger, url: str
) -> None:
    """The commit waits for a gate, behind which its answer goes astray."""
    await in_ledger(url, GATE)
    await in_ledger(url, GATED)
    async with own_asyncpg(server_url()) as gate:
        await gate.run("SELECT pg_advisory_lock(4711)")
        noting = asyncio.create_task(ledger.sent("forth", "q", [X]))
        await until(lambda: sql(server_url(), "SELECT 1 FROM pg_locks WHERE NOT granted"))
        shared_proxy().lose_answers()
    await until(lambda: in_ledger(url, "SELECT 1 FROM entry"))
    await asyncio.sleep(0.3)
    assert not noting.done()

    shared_proxy().deliver_answers()

    await noting
    assert await in_ledger(url, "SELECT pending FROM entry") == [1]


async def test_a_server_that_says_nothing_is_given_up_on(url: str) -> None:
    database = PostgresDatabase(behind_proxy(url), SYSTEM_CLOCK, call_seconds=0.3, patience=0.0)
    assert database.prepare(create=True)
    shared_proxy().swallow()
    try:
        with pytest.raises(StoreUnavailableError, match="cannot be used"):
            await asyncio.wait_for(
                asyncio.to_thread(database.read, lambda db: db.fetch("SELECT 1")), 10
            )
    finally:
        shared_proxy().flow()

    assert database.read(lambda db: db.fetch("SELECT 1")) == [(1,)]
    database.close()


async def test_a_server_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(StoreUnavailableError, match=r"postgresql://u:\*\*\*@127.0.0.1:1/d cannot"):
        await asyncio.wait_for(
            Ledger("postgresql://u:geheim@127.0.0.1:1/d").open(RECORD, create=True), 10
        )


async def test_a_database_that_is_missing_is_named(url: str) -> None:
    with pytest.raises(StoreUnavailableError, match='database "nowhere" does not exist'):
        await Ledger(url.replace("/postgres?", "/nowhere?")).open(RECORD, create=True)


async def test_a_schema_of_something_else_is_left_alone(url: str) -> None:
    schema = url.rpartition("=")[2]
    await sql(server_url(), f"CREATE SCHEMA {schema} CREATE TABLE precious (x integer)")

    with pytest.raises(ConfigError, match=f"schema {schema} of .* holds something else"):
        await Ledger(url).open(RECORD, create=True)

    tables = "SELECT relname FROM pg_class WHERE relnamespace = $1::text::regnamespace"
    assert await sql(server_url(), tables, schema) == ["precious"]


@pytest.mark.usefixtures("ledger")
async def test_a_ledger_of_another_version_is_refused(url: str) -> None:
    await in_ledger(url, "UPDATE brokerwq_ledger SET version = 99")

    with pytest.raises(StoreError, match="is a ledger of version 99; this brokerwq reads 1"):
        await Ledger(url).open(RECORD, create=True)


async def test_who_may_not_make_a_schema_is_told_what_is_needed_and_may_use_one(url: str) -> None:
    schema = url.rpartition("=")[2]
    theirs = url.replace("postgres@", f"{schema}@")
    await sql(server_url(), f"CREATE ROLE {schema} LOGIN")
    try:
        with pytest.raises(StoreError, match=rf"permission denied.*CREATE SCHEMA {schema} AUTH"):
            await Ledger(theirs).open(RECORD, create=True)

        await sql(server_url(), f"CREATE SCHEMA {schema} AUTHORIZATION {schema}")
        ledger = Ledger(theirs)
        await ledger.open(RECORD, create=True)
        await ledger.sent("forth", "q", [X])
        await ledger.aclose()
    finally:
        await sql(server_url(), f"DROP OWNED BY {schema}")
        await sql(server_url(), f"DROP ROLE {schema}")


async def test_an_id_that_no_text_can_hold_stops_nobody(ledger: Ledger) -> None:
    odd = Moved("a\0b", b"1")
    await ledger.sent("forth", "q", [odd])
    await ledger.deleted("forth", "q", [odd.id])
    assert await ledger.refused("forth", "q", [(odd, "a\0b")]) == [1]
    assert (await ledger.counts("forth"))["q"].pending == 0


async def test_times_are_the_servers(ledger: Ledger, url: str) -> None:
    """Machines disagree, and then a side that was seen empty a moment ago would be so for long."""
    await in_ledger(url, "INSERT INTO emptiness SELECT 'forth', 'q', extract(epoch FROM now()) - 9")

    assert await ledger.looked("forth", "q", empty=True) == pytest.approx(9, abs=5)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://h/d?schema=a%20b", "schema of the ledger must be"),
        (f"postgresql://h/d?schema={'a' * 64}", "at most 63"),
        ("postgresql://h/d?schema=a&schema=b", "schema of the ledger must be one name"),
        ("postgresql://h/d?colour=red", "unknown option 'colour'"),
        ("postgresql://h:port/d", "the port is no number"),
        ("postgresql://u:%zz@h/d", "no URL of PostgreSQL"),
    ],
)
def test_a_url_that_cannot_be_read_says_why(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Ledger(url)


@pytest.mark.parametrize("password", ["ge@heim", "ge/heim", "ge?heim", "ge#heim", "%zzheim"])
def test_no_part_of_a_password_is_shown(password: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Ledger(f"postgresql://u:{password}@h/d")

    assert "heim" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_library_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from brokerwq.errors import AdapterMissingError\n"
        "from brokerwq.migrate import Ledger\n"
        "try: Ledger('postgresql://h/d')\n"
        "except AdapterMissingError as exc: print(exc)"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "pip install 'brokerwq[psycopg]'" in said.stdout


def test_the_library_is_imported_only_where_it_is_needed() -> None:
    code = (
        "import sys; from brokerwq.migrate import Ledger\n"
        "Ledger('sqlite:///x.db'); print('psycopg' in sys.modules)"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout.strip() == "False"

"""What ``once`` costs beside the bare effect, in one run for each store.

    python benchmarks/idempotency.py [--items N] [--keys N] [--store NAMES] [--folder DIR] [--json]

The bare effect is one row, written in a transaction of its own, as durably as the store writes.
Then the same with the record: in the same transaction, as a long job's, and beside it. They
take turns, one job each, and medians are shown, so that a busy machine slows all of them
alike. PostgreSQL is started for the run where it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from brokerwq.idempotency import SqliteStore
from brokerwq.idempotency.record import Claim
from brokerwq.testing.servers.dynamodb import dynamodb
from brokerwq.testing.servers.installation import ServerUnavailableError
from brokerwq.testing.servers.postgres import postgres
from brokerwq.testing.servers.redis import redis


@dataclass
class Lab:
    """A store, and its bare effect.

    Attributes:
        store: The store.
        bare: One effect in a transaction of its own.
        write: One effect in a transaction.
        size: Bytes that the records take.
        is_transactional: The effect can be in the store's transaction.
        limit: Most turns and keys, of a server that is no measure.
        retention: Seconds, of the keys that are counted; longer where they leave by themselves.
    """

    store: Any
    bare: Callable[[], Awaitable[object]]
    write: Callable[[Any], Awaitable[object]]
    size: Callable[[], Awaitable[int]]
    is_transactional: bool = True
    limit: int | None = None
    retention: float = 0.001


_numbers = count(int(time.time()) << 32)


def a_claim(retention: float = 1000.0) -> Claim:
    # As keys are: spread over all of the index.
    return Claim(
        key=os.urandom(16),
        worker="shop/charge",
        payload=os.urandom(16),
        message_id=f"0196f5a0-0000-7000-8000-{next(_numbers) & 0xFFFFFFFFFFFF:012x}",
        generation=0,
        owner=os.urandom(16),
        lease=30.0,
        retention=retention,
    )


@asynccontextmanager
async def on_sqlite(folder: Path) -> AsyncGenerator[Lab]:
    store = SqliteStore(folder / "work.db")
    await store.init()
    table = "CREATE TABLE effects (n INTEGER PRIMARY KEY, text TEXT)"
    records = sqlite3.connect(folder / "work.db", isolation_level=None)
    records.execute(table)
    # In a file of its own: two connections that write in turn empty each other's cache.
    db = sqlite3.connect(folder / "bare.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(table)
    thread = ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    insert = "INSERT INTO effects (text) VALUES (?)"

    async def bare() -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute(insert, ("x" * 50,))
        await loop.run_in_executor(thread, db.execute, "COMMIT")

    async def write(transaction: Any) -> None:
        transaction.conn.execute(insert, ("x" * 50,))

    async def size() -> int:
        sql = "SELECT sum(pgsize) FROM dbstat WHERE name LIKE 'brokerwq_key%'"
        try:
            return int(records.execute(sql).fetchone()[0])
        except sqlite3.OperationalError:  # built without the dbstat table
            records.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return (folder / "work.db").stat().st_size

    yield Lab(store, bare, write, size)
    await store.aclose()
    records.close()
    db.close()
    thread.shutdown()


INSERT = "INSERT INTO effects (text) VALUES ({})"
TABLE = "CREATE TABLE IF NOT EXISTS effects (n bigserial PRIMARY KEY, text text)"


_servers = ExitStack()


@cache
def server_url() -> str:
    """One server for all client libraries."""
    return _servers.enter_context(postgres()).url


@asynccontextmanager
async def on_asyncpg(_folder: Path) -> AsyncGenerator[Lab]:
    from brokerwq.idempotency.stores.asyncpg import AsyncpgStore, asyncpg

    url = server_url()
    pool: Any = await asyncpg.create_pool(url, min_size=1)
    insert = INSERT.format("$1")

    async def bare() -> None:
        async with pool.acquire() as conn, conn.transaction():
            await conn.execute(insert, "x" * 50)

    async def write(transaction: Any) -> None:
        await transaction.conn.execute(insert, "x" * 50)

    async with postgres_lab(AsyncpgStore(url), pool, bare, write) as lab:
        yield lab


@asynccontextmanager
async def on_psycopg(_folder: Path) -> AsyncGenerator[Lab]:
    from brokerwq.idempotency.stores.asyncpg import asyncpg
    from brokerwq.idempotency.stores.psycopg import PsycopgStore, psycopg

    url = server_url()
    own = await psycopg.AsyncConnection.connect(url, autocommit=True)
    insert = INSERT.format("%s")

    async def bare() -> None:
        async with own.transaction():
            await own.execute(insert, ("x" * 50,))

    async def write(transaction: Any) -> None:
        await transaction.conn.execute(insert, ("x" * 50,))

    pool: Any = await asyncpg.create_pool(url, min_size=1)
    async with postgres_lab(PsycopgStore(url), pool, bare, write) as lab:
        yield lab
    await own.close()


@asynccontextmanager
async def on_sqlalchemy(_folder: Path) -> AsyncGenerator[Lab]:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    from brokerwq.idempotency.stores.asyncpg import asyncpg
    from brokerwq.idempotency.stores.sqlalchemy import SqlalchemyStore

    url = server_url()
    address = url.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(address)
    sessions = async_sessionmaker(engine)
    insert = text(INSERT.format(":text"))

    async def bare() -> None:
        async with sessions.begin() as session:
            await session.execute(insert, {"text": "x" * 50})

    async def write(transaction: Any) -> None:
        await transaction.session.execute(insert, {"text": "x" * 50})

    pool: Any = await asyncpg.create_pool(url, min_size=1)
    async with postgres_lab(SqlalchemyStore(address), pool, bare, write) as lab:
        yield lab
    await engine.dispose()


@asynccontextmanager
async def postgres_lab(
    store: Any,
    pool: Any,
    bare: Callable[[], Awaitable[object]],
    write: Callable[[Any], Awaitable[object]],
) -> AsyncGenerator[Lab]:
    await store.init()
    await pool.execute(TABLE)
    await pool.execute("TRUNCATE brokerwq_key")

    async def size() -> int:
        return int(await pool.fetchval("SELECT pg_total_relation_size('brokerwq_key')"))

    yield Lab(store, bare, write, size)
    await pool.close()
    await store.aclose()


@asynccontextmanager
async def on_redis(folder: Path) -> AsyncGenerator[Lab]:
    """The effect is a row in SQLite; the append-only file is flushed every second."""
    from brokerwq.idempotency.stores._redis_client import redis_asyncio
    from brokerwq.idempotency.stores.redis import RedisStore

    with redis() as server:
        store = RedisStore(server.url)
        await store.init()
        native: Any = redis_asyncio.Redis.from_url(server.url)

        async def size() -> int:
            return int((await native.info("memory"))["used_memory_dataset"])

        async with on_sqlite(folder) as effects:
            yield Lab(
                store, effects.bare, effects.write, size, is_transactional=False, retention=1000.0
            )
        await native.aclose()
        await store.aclose()


@asynccontextmanager
async def on_dynamodb(folder: Path) -> AsyncGenerator[Lab]:
    """The effect is a row in SQLite; of moto only what is counted means anything."""
    from brokerwq.idempotency.stores.dynamodb import DynamodbStore

    with dynamodb() as server:
        os.environ.update(server.environment)
        store = DynamodbStore("keys", region=server.region, endpoint_url=server.endpoint)
        await store.init()

        async def size() -> int:
            items = (await store.table.call("scan"))["Items"]
            values = [value for item in items for value in item.items()]
            return sum(len(name) + len(next(iter(value.values()))) for name, value in values)

        async with on_sqlite(folder) as effects:
            yield Lab(store, effects.bare, effects.write, size, is_transactional=False, limit=200)
        await store.aclose()


async def transactional(lab: Lab) -> None:
    transaction = await lab.store.begin_marked(a_claim())
    await lab.write(transaction)
    await transaction.examine()
    await transaction.commit()


async def lease_tx(lab: Lab) -> None:
    claim = a_claim()
    await lab.store.claim(claim)
    transaction = await lab.store.begin_completing(claim.key, claim.owner, 1000.0)
    await lab.write(transaction)
    await transaction.examine()
    await transaction.commit()


async def marker(lab: Lab) -> None:
    claim = a_claim()
    await lab.store.claim(claim)
    await lab.bare()
    await lab.store.complete(claim.key, claim.owner, 1000.0, None)


async def milliseconds(work: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1000


async def measure(lab: Lab, items: int, keys: int) -> dict[str, float]:
    items, keys = min(items, lab.limit or items), min(keys, lab.limit or keys)
    ways: dict[str, Callable[[], Awaitable[object]]] = {"bare": lab.bare}
    if lab.is_transactional:
        ways["transactional"] = lambda: transactional(lab)
        ways["lease_tx"] = lambda: lease_tx(lab)
    ways["marker"] = lambda: marker(lab)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for n in range(items + 20):
        # The first of a round pays for what others did to caches meanwhile: each in its turn.
        names = list(ways)[n % len(ways) :] + list(ways)[: n % len(ways)]
        for name in names:
            work = ways[name]
            taken = await milliseconds(work)
            if n >= 20:  # the first ones open connections and fill caches
                times[name].append(taken)
    found = {name: statistics.median(values) for name, values in times.items()}
    return {**found, **await measure_keys(lab, keys)}


async def measure_keys(lab: Lab, keys: int) -> dict[str, float]:
    """Bytes per key, and how fast expired ones are pruned."""

    async def fill(size: int) -> None:
        for _ in range(size):
            claim = a_claim(lab.retention)
            await lab.store.claim(claim)
            await lab.store.complete(claim.key, claim.owner, lab.retention, None)

    before = await lab.size()
    start = time.perf_counter()
    await asyncio.gather(*(fill(keys // 50) for _ in range(50)))
    filled = time.perf_counter() - start
    size = await lab.size() - before
    await asyncio.sleep(0.1)
    worst, pruned, start = 0.0, 0, time.perf_counter()
    while True:
        began = time.perf_counter()
        count_ = await lab.store.prune(1000)
        worst = max(worst, time.perf_counter() - began)
        pruned += count_
        if not count_:
            break
    return {
        "bytes_per_key": size / keys,
        "marks_per_second": keys / filled,
        "prune_per_second": pruned / (time.perf_counter() - start),
        "prune_worst_ms": worst * 1000,
    }


def shown(name: str, found: dict[str, float]) -> str:
    bare = found["bare"]
    lines = [f"{name}: bare effect {bare:.3f} ms"]
    for way in [way for way in ("transactional", "lease_tx", "marker") if way in found]:
        more = found[way] - bare
        lines.append(f"  {way:<13} {found[way]:.3f} ms: +{more:.3f} ms, {more / bare:+.0%}")
    pruned = "expired keys leave by themselves"
    if found["prune_per_second"]:
        pruned = f"{found['prune_per_second']:,.0f} pruned/s "
        pruned += f"(worst batch of 1,000: {found['prune_worst_ms']:.0f} ms)"
    lines.append(
        f"  {found['bytes_per_key']:.0f} bytes a key, {found['marks_per_second']:,.0f} marks/s "
        f"from 50 jobs at once, {pruned}"
    )
    return "\n".join(lines)


async def run(options: argparse.Namespace) -> None:
    labs: dict[str, Any] = {
        "SQLite": on_sqlite,
        "PostgreSQL, asyncpg": on_asyncpg,
        "PostgreSQL, psycopg": on_psycopg,
        "PostgreSQL, SQLAlchemy": on_sqlalchemy,
        "Redis": on_redis,
        "DynamoDB (moto)": on_dynamodb,
    }
    wanted = [word.lower() for word in options.store.split(",")]
    for name, lab in labs.items():
        if not any(word in name.lower() for word in wanted):
            continue
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            try:
                async with lab(Path(folder)) as opened:
                    found = await measure(opened, options.items, options.keys)
            except (FileNotFoundError, ImportError, ServerUnavailableError) as exc:
                print(f"{name}: left out, {exc}")
                continue
        print(json.dumps({"store": name, **found}) if options.json else shown(name, found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--store", default="", help="parts of their names, with commas")
    parser.add_argument("--json", action="store_true")
    with _servers:
        asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

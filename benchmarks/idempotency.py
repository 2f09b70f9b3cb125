"""What ``once`` costs beside the bare effect, in one run for each store.

    python benchmarks/idempotency.py [--items N] [--keys N] [--folder DIR] [--json]

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
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from brokerwq.idempotency import SqliteStore
from brokerwq.idempotency.record import Claim
from brokerwq.testing.servers.postgres import postgres


@dataclass
class Lab:
    """A store, and its bare effect.

    Attributes:
        store: The store.
        bare: One effect in a transaction of its own.
        write: One effect on a transaction's connection.
        size: Bytes that the records take.
    """

    store: Any
    bare: Callable[[], Awaitable[object]]
    write: Callable[[Any], Awaitable[object]]
    size: Callable[[], Awaitable[int]]


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
    db = sqlite3.connect(folder / "work.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE effects (n INTEGER PRIMARY KEY, text TEXT)")
    thread = ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    insert = "INSERT INTO effects (text) VALUES (?)"

    async def bare() -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute(insert, ("x" * 50,))
        await loop.run_in_executor(thread, db.execute, "COMMIT")

    async def write(conn: sqlite3.Connection) -> None:
        conn.execute(insert, ("x" * 50,))

    async def size() -> int:
        sql = "SELECT sum(pgsize) FROM dbstat WHERE name LIKE 'brokerwq_key%'"
        try:
            return int(db.execute(sql).fetchone()[0])
        except sqlite3.OperationalError:  # built without the dbstat table
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return (folder / "work.db").stat().st_size

    yield Lab(store, bare, write, size)
    await store.aclose()
    db.close()
    thread.shutdown()


@asynccontextmanager
async def on_asyncpg(_folder: Path) -> AsyncGenerator[Lab]:
    from brokerwq.idempotency.stores.asyncpg import AsyncpgStore, asyncpg

    with postgres() as server:
        store = AsyncpgStore(server.url)
        await store.init()
        pool: Any = await asyncpg.create_pool(server.url, min_size=1)
        await pool.execute("CREATE TABLE effects (n bigserial PRIMARY KEY, text text)")
        insert = "INSERT INTO effects (text) VALUES ($1)"

        async def bare() -> None:
            async with pool.acquire() as conn, conn.transaction():
                await conn.execute(insert, "x" * 50)

        async def write(conn: Any) -> None:
            await conn.execute(insert, "x" * 50)

        async def size() -> int:
            return int(await pool.fetchval("SELECT pg_total_relation_size('brokerwq_key')"))

        yield Lab(store, bare, write, size)
        await pool.close()
        await store.aclose()


async def transactional(lab: Lab) -> None:
    transaction = await lab.store.begin_marked(a_claim())
    await lab.write(transaction.conn)
    await transaction.examine()
    await transaction.commit()


async def lease_tx(lab: Lab) -> None:
    claim = a_claim()
    await lab.store.claim(claim)
    transaction = await lab.store.begin_completing(claim.key, claim.owner, 1000.0)
    await lab.write(transaction.conn)
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
    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "bare": lab.bare,
        "transactional": lambda: transactional(lab),
        "lease_tx": lambda: lease_tx(lab),
        "marker": lambda: marker(lab),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for n in range(items + 20):
        for name, work in ways.items():
            taken = await milliseconds(work)
            if n >= 20:  # the first ones open connections and fill caches
                times[name].append(taken)
    found = {name: statistics.median(values) for name, values in times.items()}
    return {**found, **await measure_keys(lab, keys)}


async def measure_keys(lab: Lab, keys: int) -> dict[str, float]:
    """Bytes per key, and how fast expired ones are pruned."""

    async def fill(size: int) -> None:
        for _ in range(size):
            claim = a_claim(0.001)
            await lab.store.claim(claim)
            await lab.store.complete(claim.key, claim.owner, 0.001, None)

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
    for way in ("transactional", "lease_tx", "marker"):
        more = found[way] - bare
        lines.append(f"  {way:<13} {found[way]:.3f} ms: +{more:.3f} ms, {more / bare:+.0%}")
    lines.append(
        f"  {found['bytes_per_key']:.0f} bytes a key, {found['marks_per_second']:,.0f} marks/s "
        f"from 50 jobs at once, {found['prune_per_second']:,.0f} pruned/s "
        f"(worst batch of 1,000: {found['prune_worst_ms']:.0f} ms)"
    )
    return "\n".join(lines)


async def run(options: argparse.Namespace) -> None:
    labs: dict[str, Any] = {"SQLite": on_sqlite, "PostgreSQL, asyncpg": on_asyncpg}
    for name, lab in labs.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            try:
                async with lab(Path(folder)) as opened:
                    found = await measure(opened, options.items, options.keys)
            except (FileNotFoundError, ModuleNotFoundError) as exc:
                print(f"{name}: left out, {exc}")
                continue
        print(json.dumps({"store": name, **found}) if options.json else shown(name, found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--json", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

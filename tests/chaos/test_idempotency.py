"""Runners are killed and frozen at random; every key has its one effect all the same.

``none`` and ``mark-first`` are the positive controls: were there no extra effects and no lost
keys in them, the campaign would not bite. By default a short form runs; the environment
variable ``CAMPAIGN=full`` asks for 500 keys and three seeds, ``make chaos-idempotency`` sets it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from brokerwq.idempotency import open_store
from brokerwq.testing.servers.postgres import program
from brokerwq.testing.servers.redis import redis
from tests.chaos.campaign import Found, Setting, run_campaign
from tests.chaos.reports import part_of_whole, sums
from tests.idempotency.dynamodb_lab import dynamodb_server, table_name
from tests.idempotency.postgres import postgres_schema
from tests.idempotency.redis_lab import redis_url

Read: TypeAlias = Callable[[], list[tuple[int, int]]]
FULL = os.environ.get("CAMPAIGN") == "full"
KEYS = 500 if FULL else 120
SEEDS = (1, 2, 3) if FULL else (1,)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def campaign(
    folder: Path, strategy: str, seed: int, *, url: str = "", read: Read | None = None, **more: Any
) -> Found:
    values: dict[str, Any] = {"keys": KEYS, "fault_seconds": 40.0 if FULL else 10.0, **more}
    setting = Setting(
        strategy=strategy,
        url=url or f"sqlite:///{folder / 'queue.db'}",
        folder=folder,
        seed=seed,
        **values,
    )
    found = await run_campaign(setting, read=read)
    print(f"{strategy}, seed {seed}: {found}")
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("strategy", ["transactional", "lease_tx"])
async def test_every_key_has_exactly_one_effect(tmp_path: Path, strategy: str, seed: int) -> None:
    found = await campaign(tmp_path, strategy, seed)

    assert (found.extra, found.lost, found.left, found.dead) == (0, 0, 0, 0)
    assert found.fences_fall == 0
    assert found.kills + found.freezes > 10


@pytest.mark.timeout(900)
async def test_a_table_of_reports_ends_with_one_row_a_job(tmp_path: Path) -> None:
    """800,000 jobs append a row each while runners are killed: as many as time allows."""
    seconds, least = (180.0, 4000) if FULL else (5.0, 200)
    pilot_jobs = 1000 if FULL else 200
    pace: dict[str, Any] = {
        "duplicate_share": 0.0,
        "pause": 0.002,
        "freezes": 0.0,
        "faults_every": 0.5,
        "fault_seconds": 600.0,
    }
    (tmp_path / "pilot").mkdir()
    pilot = await campaign(tmp_path / "pilot", "none", 7, keys=pilot_jobs, **pace)
    jobs = part_of_whole(pilot, pilot_jobs, seconds, least)

    found = await campaign(tmp_path, "transactional", 7, keys=jobs, **pace)

    setting = Setting(strategy="transactional", url="", folder=tmp_path, keys=jobs)
    print(sums(setting, found, pilot, pilot_jobs))
    assert sum(found.effects.values()) == len(found.effects) == jobs
    assert (found.lost, found.left, found.dead) == (0, 0, 0)
    assert found.kills > 0
    assert pilot.extra > 0 or pilot.kills < 30


@pytest.mark.parametrize("strategy", ["transactional", "lease_tx"])
async def test_with_the_work_in_postgres_it_is_the_same(tmp_path: Path, strategy: str) -> None:
    pytest.importorskip("asyncpg")
    with postgres_schema() as dsn:
        server, _, schema = dsn.partition("?search_path=")
        sql = f"SELECT n, fence FROM {schema}.effects ORDER BY seq"  # noqa: S608 -- our own name
        psql = [program("psql") or "psql", server, "-qtA", "-c", sql]
        await make_tables(dsn)

        def read() -> list[tuple[int, int]]:
            done = subprocess.run(psql, check=True, capture_output=True, text=True)
            rows = [line.split("|") for line in done.stdout.split()]
            return [(int(n), int(fence)) for n, fence in rows]

        found = await campaign(tmp_path, strategy, 1, store=dsn, read=read)

    assert (found.extra, found.lost, found.left, found.dead) == (0, 0, 0, 0)
    assert found.fences_fall == 0


async def make_tables(dsn: str) -> None:
    from brokerwq.idempotency.stores.asyncpg import AsyncpgStore

    store = AsyncpgStore(dsn)
    await store.init()
    await store.fetch(
        "CREATE TABLE effects (seq serial PRIMARY KEY, n integer NOT NULL, fence bigint NOT NULL)"
    )
    await store.aclose()


@pytest.mark.parametrize(
    ("strategy", "seed"),
    [
        *((strategy, seed) for strategy in ("transactional", "lease_tx") for seed in SEEDS),
        ("none", 1),
        ("mark-first", 1),
    ],
)
async def test_over_rabbitmq_it_is_the_same(tmp_path: Path, strategy: str, seed: int) -> None:
    pytest.importorskip("aio_pika")
    from tests.adapters.rabbit import RELEASES, server_or_skip

    server = await asyncio.to_thread(server_or_skip, RELEASES[0])

    queue = f"once-{uuid.uuid4().hex}"
    found = await campaign(tmp_path, strategy, seed, url=server.url, queue=queue)

    assert (found.left, found.dead) == (0, 0)
    if strategy == "mark-first":
        # In the short form a kill need not have struck between the mark and the effect.
        assert found.lost > 0 or not FULL
    else:
        assert found.lost == 0
        assert (found.extra == 0) == (strategy != "none")


@pytest.mark.parametrize("kind", ["redis", "dynamodb"])
async def test_a_marker_in_another_store_loses_nothing_either(tmp_path: Path, kind: str) -> None:
    async with STORES[kind]() as (url, environment):
        found = await campaign(tmp_path, "marker", 1, store=url, environment=environment)

    assert (found.lost, found.left, found.dead, found.fences_fall) == (0, 0, 0, 0)
    assert found.extra <= 2 * (found.kills + found.freezes)


async def test_a_store_that_dies_again_and_again_costs_neither_keys_nor_messages(
    tmp_path: Path,
) -> None:
    await asyncio.to_thread(redis_url)  # skips where there is none
    deaths = 0
    with redis(appendfsync="always") as server:
        await made_ready(server.url)

        async def kill_it() -> None:
            nonlocal deaths
            while True:
                await asyncio.sleep(2.0)
                await asyncio.to_thread(server.stop, by=signal.SIGKILL)
                deaths += 1
                await asyncio.sleep(0.5)
                await asyncio.to_thread(server.start)

        killing = asyncio.create_task(kill_it())
        try:
            found = await campaign(tmp_path, "marker", 1, store=server.url, faults_every=0.3)
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
    print(f"the store was killed {deaths} times")

    assert deaths > 0
    assert (found.lost, found.left, found.dead, found.fences_fall) == (0, 0, 0, 0)
    # In each slot of every runner there may be an effect whose record cannot be written.
    assert found.extra <= 2 * (found.kills + found.freezes) + 8 * deaths


@asynccontextmanager
async def in_redis() -> AsyncGenerator[tuple[str, dict[str, str]]]:
    url = f"{await asyncio.to_thread(redis_url)}?namespace=t{uuid.uuid4().hex}"
    await made_ready(url)
    yield url, {}


@asynccontextmanager
async def in_dynamodb() -> AsyncGenerator[tuple[str, dict[str, str]]]:
    server = await asyncio.to_thread(dynamodb_server)
    url = server.url(table_name(), skew=0.1)
    await made_ready(url)
    yield url, dict(server.environment)


STORES = {"redis": in_redis, "dynamodb": in_dynamodb}


async def made_ready(url: str) -> None:
    store = open_store(url)
    await store.init()
    await store.aclose()


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_marker_loses_nothing_and_has_fewer_extra_effects_than_kills(
    tmp_path: Path, seed: int
) -> None:
    found = await campaign(tmp_path, "marker", seed)

    assert (found.lost, found.left, found.dead, found.fences_fall) == (0, 0, 0, 0)
    # Each fault can strike between effect and completion in each slot of one runner.
    assert found.extra <= 2 * (found.kills + found.freezes)


async def test_without_a_store_there_are_extra_effects(tmp_path: Path) -> None:
    found = await campaign(tmp_path, "none", 1)

    assert found.extra > KEYS / 10
    assert found.lost == 0


async def test_marking_first_loses_keys(tmp_path: Path) -> None:
    found = await campaign(tmp_path, "mark-first", 1, keys=500, fault_seconds=30.0)

    assert found.lost > 0
    assert found.left == 0

"""Records in Redis: what every store promises, and what is Redis's own."""

from __future__ import annotations

import asyncio
import re
import signal
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from brokerwq import App, Runner
from brokerwq.errors import ConfigError, StoreError, StoreUnavailableError
from brokerwq.idempotency.record import Busy, Claim, Claimed, Completed
from brokerwq.testing.servers.proxy import TcpProxy
from brokerwq.testing.servers.redis import Redis, redis
from brokerwq.testing.stores import OpenBench, a_claim
from brokerwq.testing.stores.pytest_suite import StoreConformanceSuite
from tests.cases.lab import Place, counts, sqlite
from tests.idempotency.lab import RETRY
from tests.idempotency.redis_lab import redis_bench, redis_url

pytest.importorskip("redis")

from brokerwq.idempotency.stores._redis_client import redis_asyncio
from brokerwq.idempotency.stores.redis import RedisStore


class TestRedisStore(StoreConformanceSuite):
    @pytest.fixture
    def open_bench(self) -> OpenBench:
        return redis_bench


@pytest.fixture
def url() -> str:
    return redis_url()


@asynccontextmanager
async def opened(source: Any, **options: Any) -> AsyncGenerator[RedisStore]:
    values: dict[str, Any] = {"namespace": f"t{uuid.uuid4().hex}", **options}
    store = RedisStore(source, **values)
    try:
        yield store
    finally:
        await store.aclose()


@contextmanager
def server(**settings: str) -> Generator[Redis]:
    redis_url()  # skips where there is none
    with redis(**settings) as running:
        yield running


async def claim_and_complete(store: RedisStore, key: int = 1) -> Claim:
    claim = a_claim(key)
    assert isinstance(await store.claim(claim), Claimed)
    assert await store.complete(claim.key, claim.owner, 1000.0, None)
    return claim


# -- fit to be a store ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["volatile-lru", "allkeys-lru", "volatile-ttl"])
async def test_a_server_that_may_forget_is_refused(policy: str) -> None:
    with server(maxmemory_policy=policy) as running:
        async with opened(running.url) as store:
            await store.init()

            with pytest.raises(StoreError, match=rf"{policy}.*noeviction") as caught:
                await store.check()

            assert not isinstance(caught.value, StoreUnavailableError)


async def test_a_server_without_an_append_only_file_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with server(appendonly="no") as running:
        async with opened(running.url) as store:
            await store.init()
            await store.check()
            await store.check()

    (record,) = [each for each in caplog.records if each.name == "brokerwq.store"]
    assert record.levelname == "WARNING"
    assert "appendonly yes" in record.getMessage()


async def test_with_its_append_only_file_nothing_is_warned_of(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(url) as store:
        await store.init()
        await store.check()

    assert [each for each in caplog.records if each.name == "brokerwq.store"] == []


async def test_a_replica_is_waited_for(url: str) -> None:
    port = urlsplit(url).port
    with server(replicaof=f"127.0.0.1 {port}") as replica:
        async with opened(replica.url) as store:
            with pytest.raises(StoreUnavailableError, match="replica"):
                await store.check()


async def test_a_full_server_is_an_outage_and_loses_nothing() -> None:
    with server(maxmemory="4mb", lazyfree_lazy_user_flush="no") as running:
        native: Any = redis_asyncio.Redis.from_url(running.url)
        async with opened(running.url) as store:
            await store.init()
            claim = await claim_and_complete(store)
            await native.config_set("maxmemory", "1mb")

            with pytest.raises(StoreUnavailableError):
                await store.claim(a_claim(2))

            assert (await store.get(claim.key)) is not None
            await native.config_set("maxmemory", "0")
            assert isinstance(await store.claim(a_claim(2)), Claimed)
        await native.aclose()


# -- what a server remembers ---------------------------------------------------------------


async def test_finished_work_outlives_a_crash_of_the_server() -> None:
    with server(appendfsync="always") as running:
        async with opened(running.url) as store:
            await store.init()
            claim = await claim_and_complete(store)
            running.stop(by=signal.SIGKILL)
            with pytest.raises(StoreUnavailableError):
                await store.claim(a_claim(1))
            running.start()

            assert await store.claim(a_claim(1)) == Completed(result=None)
            assert await store.complete(claim.key, claim.owner, 1000.0, None)


async def test_a_server_that_came_back_empty_is_not_taken_for_a_new_one() -> None:
    with server(appendonly="no") as running:
        async with opened(running.url) as store:
            await store.init()
            await claim_and_complete(store)
            running.stop(by=signal.SIGKILL)
            running.start()

            # Without its being asked anything: the client has connected anew by itself.
            # Some versions of redis-py tell first that they were cut off.
            with suppress(StoreUnavailableError):
                pytest.fail(f"it was answered: {await store.claim(a_claim(1))}")
            with pytest.raises(StoreUnavailableError, match="lost its records"):
                await store.claim(a_claim(1))
            with pytest.raises(StoreError, match="keys init") as caught:
                await store.check()
            assert not isinstance(caught.value, StoreUnavailableError)

            await store.init()
            await store.check()
            assert isinstance(await store.claim(a_claim(1)), Claimed)


async def test_records_leave_by_themselves_when_their_time_is_over(url: str) -> None:
    native: Any = redis_asyncio.Redis.from_url(url)
    async with opened(url) as store:
        await store.init()
        claim = a_claim(1, lease=2.0, retention=1000.0)
        name = f"{store.schema()[0].split()[1].removesuffix(':schema')}:{claim.key.hex()}"
        await store.claim(claim)
        begun = await native.pttl(name)
        await store.complete(claim.key, claim.owner, 50.0, None)
        done = await native.pttl(name)
        await store.forget(claim.key)
        forgotten = await native.exists(name)
    await native.aclose()

    # Work under way is kept an hour longer, for an owner that is late.
    assert 1000 < begun / 1000 - 3600 + 1 <= 1001
    assert 49 < done / 1000 <= 50
    assert not forgotten


# -- connections ---------------------------------------------------------------------------


@pytest.fixture
def proxy(url: str) -> Generator[TcpProxy]:
    parts = urlsplit(url)
    with TcpProxy(parts.hostname or "127.0.0.1", parts.port or 6379) as proxy:
        yield proxy


async def test_a_connection_that_is_dropped_is_made_anew(proxy: TcpProxy) -> None:
    async with opened(f"redis://{proxy.host}:{proxy.port}") as store:
        await store.init()
        claims = [a_claim(key, lease=30.0) for key in range(50)]
        tasks = [asyncio.ensure_future(store.claim(claim)) for claim in claims]
        await asyncio.sleep(0.002)
        await asyncio.to_thread(proxy.cut)
        await asyncio.gather(*tasks, return_exceptions=True)

        # Repeated by its owner each is the claim it was, whether the answer had come or not.
        again = [await store.claim(claim) for claim in claims]

    assert all(isinstance(answer, Claimed) and answer.attempt == 1 for answer in again)


async def test_a_claim_whose_answer_never_came_is_still_its_owners(proxy: TcpProxy) -> None:
    async with opened(f"redis://{proxy.host}:{proxy.port}", command_timeout=0.3) as store:
        await store.init()
        claim = a_claim(1, lease=30.0)
        await asyncio.to_thread(proxy.swallow)
        with pytest.raises(StoreUnavailableError):
            await store.claim(claim)
        await asyncio.to_thread(proxy.flow)

        mine = await store.claim(claim)
        other = await store.claim(a_claim(1))

    assert isinstance(mine, Claimed)
    assert (mine.attempt, mine.takeover) == (1, False)
    assert isinstance(other, Busy)


async def test_more_claims_than_connections_take_turns(url: str) -> None:
    async with opened(url, connections=2) as store:
        await store.init()

        answers = await asyncio.gather(*(store.claim(a_claim(key)) for key in range(200)))

    assert all(isinstance(answer, Claimed) for answer in answers)


# -- sources -------------------------------------------------------------------------------


async def test_it_takes_a_clients_settings_and_leaves_its_connections_alone(url: str) -> None:
    client: Any = redis_asyncio.Redis.from_url(url, decode_responses=True)
    async with opened(client) as store:
        await store.init()
        await claim_and_complete(store)
    await client.set(f"t{uuid.uuid4().hex}", "x", px=100)
    await client.aclose()

    assert str(urlsplit(url).port) in store.name


async def test_it_takes_a_function_that_makes_a_client(url: str) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(redis_asyncio.Redis.from_url(url))
        return made[-1]

    async with opened(make) as store:
        await store.init()
        await store.check()
        await claim_and_complete(store)

    assert len(made) == 1


async def test_a_client_that_decodes_is_refused(url: str) -> None:
    async with opened(lambda: redis_asyncio.Redis.from_url(url, decode_responses=True)) as store:
        with pytest.raises(ConfigError, match="decode_responses"):
            await store.check()


async def test_records_in_a_cluster_of_one_node() -> None:
    with server(cluster_enabled="yes") as running:
        native: Any = redis_asyncio.Redis.from_url(running.url)
        await native.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while not re.search(r"state\W+ok", str(await native.execute_command("CLUSTER INFO"))):
            await asyncio.sleep(0.02)
        await native.aclose()

        async with opened(lambda: redis_asyncio.RedisCluster.from_url(running.url)) as store:
            await store.init()
            await store.check()
            for key in range(20):
                await claim_and_complete(store, key)
            assert await store.claim(a_claim(1)) == Completed(result=None)
            assert len(await store.list(100, state=None, worker=None)) == 20


async def test_namespaces_keep_records_apart(url: str) -> None:
    name = f"t{uuid.uuid4().hex}"
    async with opened(f"{url}?namespace={name}") as one, opened(url, namespace=f"{name}2") as two:
        for store in (one, two):
            await store.init()
            await claim_and_complete(store)
        for store in (one, two):
            assert len(await store.list(10, state=None, worker=None)) == 1


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        ("http://localhost", {}, "redis://"),
        ("redis://localhost?no_such_option=1", {}, "no_such_option"),
        ("redis://localhost", {"namespace": "a b"}, "namespace"),
        ("redis://localhost", {"namespace": "a*"}, "namespace"),
        ("redis://localhost", {"command_timeout": 0}, "command_timeout"),
        (7, {}, "int"),
    ],
)
def test_what_is_no_redis_is_refused(source: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        RedisStore(source, **options)


async def test_no_server_is_an_outage_and_the_password_stays_unsaid() -> None:
    async with opened("redis://me:secret@127.0.0.1:9/0") as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.check()

    assert "secret" not in str(caught.value) + repr(store)


async def test_a_name_that_is_taken_by_something_else_is_a_damaged_record(url: str) -> None:
    name = f"t{uuid.uuid4().hex}"
    native: Any = redis_asyncio.Redis.from_url(url)
    await native.set(f"{name}:{(1).to_bytes(16, 'big').hex()}", "a string")
    await native.hset(f"{name}:{(2).to_bytes(16, 'big').hex()}", "field", "of another application")
    await native.hset(f"{name}:not-a-key", "field", "x")
    await native.aclose()
    async with opened(url, namespace=name) as store:
        await store.init()
        for key in (1, 2):
            with pytest.raises(StoreError, match="damaged"):
                await store.claim(a_claim(key))
            assert await store.forget(key.to_bytes(16, "big"))
            await claim_and_complete(store, key)
        assert len(await store.list(10, state=None, worker=None)) == 2


# -- a runner ------------------------------------------------------------------------------


def an_app(folder: Path, store: RedisStore, runs: list[int]) -> tuple[Place, App, Any]:
    place = sqlite(folder)
    app = place.app(store=store, name="shop", retry=RETRY, lease=2.0)

    @app.worker("q", once="marker", key="n")
    async def charge(*, n: int) -> None:
        runs.append(n)

    return place, app, charge


async def test_a_server_that_may_forget_ends_the_runner_before_anything_runs(
    tmp_path: Path,
) -> None:
    runs: list[int] = []
    with server(maxmemory_policy="allkeys-lru") as running:
        async with opened(running.url) as store:
            await store.init()
            place, app, charge = an_app(tmp_path, store, runs)
            await charge.enqueue(n=1)

            with pytest.raises(StoreError, match="noeviction"):
                await Runner(app, log=False).run(handle_signals=False)
            await place.aclose()

    assert runs == []


async def test_a_server_that_forgot_ends_the_runner_and_costs_no_message_an_attempt(
    tmp_path: Path,
) -> None:
    runs: list[int] = []
    with server(appendonly="no") as running:
        async with opened(running.url) as store:
            await store.init()
            place, app, charge = an_app(tmp_path, store, runs)
            runner = asyncio.create_task(Runner(app, log=False).run(handle_signals=False))
            await charge.enqueue(n=0)
            await place.until(lambda: runs == [0])
            running.stop(by=signal.SIGKILL)
            running.start()
            for n in range(6):
                await charge.enqueue(n=n)

            with pytest.raises(StoreError, match="lost its records"):
                await asyncio.wait_for(runner, 20)
            left = await counts(app, "q")
            await place.aclose()

    assert runs == [0]
    assert (sum(left[:3]), left[3]) == (6, 0)

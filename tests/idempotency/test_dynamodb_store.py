"""Records in DynamoDB: what every store promises, and what is DynamoDB's own."""

from __future__ import annotations

import base64
import json
import pkgutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from brokerwq.clock import SystemClock
from brokerwq.errors import ConfigError, StoreError, StoreUnavailableError
from brokerwq.idempotency.record import Busy, Claimed, Completed, State
from brokerwq.testing.servers.dynamodb import DynamodbServer
from brokerwq.testing.stores import OpenBench, a_claim
from brokerwq.testing.stores.pytest_suite import StoreConformanceSuite
from tests.idempotency.dynamodb_lab import dynamodb_bench, dynamodb_server, table_name

pytest.importorskip("aiobotocore")

from brokerwq.idempotency.stores._dynamodb_client import sdk_client
from brokerwq.idempotency.stores._dynamodb_time import ServiceTime
from brokerwq.idempotency.stores.dynamodb import DynamodbStore


class TestDynamodbStore(StoreConformanceSuite):
    @pytest.fixture
    def open_bench(self) -> OpenBench:
        return dynamodb_bench


@pytest.fixture
def server() -> DynamodbServer:
    return dynamodb_server()


@asynccontextmanager
async def opened(server: DynamodbServer, **options: Any) -> AsyncGenerator[DynamodbStore]:
    """A store in a new table, which is not made."""
    values: dict[str, Any] = {"region": server.region, "endpoint_url": server.endpoint, **options}
    store = DynamodbStore(options.pop("table", table_name()), **values)
    try:
        yield store
    finally:
        with suppress(StoreError):
            await store.table.call("delete_table")
        await store.aclose()


# -- the table -----------------------------------------------------------------------------


async def test_init_makes_a_table_that_is_paid_by_request_and_lets_records_go(
    server: DynamodbServer,
) -> None:
    async with opened(server) as store:
        await store.init()
        await store.init()
        await store.check()
        table = (await store.table.call("describe_table"))["Table"]
        ttl = (await store.table.call("describe_time_to_live"))["TimeToLiveDescription"]
        claim = a_claim(1)
        await store.claim(claim)
        item = (await store.table.call("get_item", Key={"key": {"B": claim.key}}))["Item"]

    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    # Seconds, a day after the record means nothing any more.
    assert int(item["ttl"]["N"]) == pytest.approx(
        int(item["expires_ms"]["N"]) / 1000 + 86400, abs=1
    )


async def test_a_record_takes_less_than_a_unit_of_writing(server: DynamodbServer) -> None:
    async with opened(server) as store:
        await store.init()
        claim = a_claim(1, message_id="m" * 36, worker="application/a-worker")
        await store.claim(claim)
        await store.complete(claim.key, claim.owner, 1000.0, None)
        item = (await store.table.call("get_item", Key={"key": {"B": claim.key}}))["Item"]

    size = sum(len(name) + len(next(iter(value.values()))) for name, value in item.items())
    assert size < 1024 / 2


async def test_a_table_of_another_shape_is_refused(server: DynamodbServer) -> None:
    async with opened(server) as store:
        await store.table.call(
            "create_table",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        with pytest.raises(StoreError, match="primary key"):
            await store.check()


async def test_a_table_that_is_gone_is_an_outage_for_jobs_and_an_error_for_the_check(
    server: DynamodbServer,
) -> None:
    async with opened(server) as store:
        await store.init()
        await store.table.call("delete_table")
        with pytest.raises(StoreUnavailableError, match="keys init"):
            await store.claim(a_claim(1))
        with pytest.raises(StoreError, match="keys init") as caught:
            await store.check()

    assert not isinstance(caught.value, StoreUnavailableError)


async def test_what_init_prints_makes_the_same_table(server: DynamodbServer) -> None:
    async with opened(server) as store:
        for line in store.schema():
            _, _, command, _, text = line.split(" ", 4)
            arguments = json.loads(text.strip("'"))
            if command == "put-item":
                arguments["Item"]["key"]["B"] = base64.b64decode(arguments["Item"]["key"]["B"])
            await store.table.call(command.replace("-", "_"), **arguments)

        await store.check()
        assert isinstance(await store.claim(a_claim(1)), Claimed)


# -- requests ------------------------------------------------------------------------------


class Requests:
    """Counts the requests of a client, and loses answers when it is told to."""

    def __init__(self, server: DynamodbServer) -> None:
        self._make = sdk_client(None, server.region, server.endpoint, 5.0)
        self.made: list[str] = []
        self.loses = 0

    @asynccontextmanager
    async def __call__(self) -> AsyncGenerator[Any]:
        async with self._make() as client:
            yield _Counted(self, client)


class _Counted:
    def __init__(self, requests: Requests, client: Any) -> None:
        self._requests = requests
        self._client = client

    def __getattr__(self, operation: str) -> Any:
        async def call(**arguments: Any) -> Any:
            self._requests.made.append(operation)
            answer = await getattr(self._client, operation)(**arguments)
            if self._requests.loses:
                self._requests.loses -= 1
                raise ConnectionResetError
            return answer

        return call


async def test_a_job_costs_two_writes_and_a_copy_of_it_one(server: DynamodbServer) -> None:
    requests = Requests(server)
    async with opened(server, client=requests) as store:
        await store.init()
        requests.made.clear()
        claim = a_claim(1)
        await store.claim(claim)
        await store.complete(claim.key, claim.owner, 1000.0, None)
        job = list(requests.made)
        requests.made.clear()

        assert await store.claim(a_claim(1)) == Completed(result=None)

        assert job == ["put_item", "update_item"]
        assert requests.made == ["put_item"]


async def test_an_answer_that_was_lost_changes_nothing(server: DynamodbServer) -> None:
    requests = Requests(server)
    async with opened(server, client=requests) as store:
        await store.init()
        claim = a_claim(1, lease=30.0)
        for call in (
            lambda: store.claim(claim),
            lambda: store.extend(claim.key, claim.owner, 30.0),
            lambda: store.complete(claim.key, claim.owner, 1000.0, "1"),
        ):
            requests.loses = 1
            with pytest.raises(StoreUnavailableError):
                await call()
            assert await call()
        record = await store.get(claim.key)

    assert record is not None
    assert (record.attempt, record.state, record.result) == (1, State.COMPLETED, "1")


async def test_a_lease_that_outlasts_the_records_time_keeps_the_record(
    server: DynamodbServer,
) -> None:
    async with opened(server, time=lambda: 1_000_000.0) as store:
        await store.init()
        claim = a_claim(1, lease=1.0, retention=1.0)
        await store.claim(claim)

        async def ttl() -> int:
            item = await store.table.call("get_item", Key={"key": {"B": claim.key}})
            return int(item["Item"]["ttl"]["N"])

        before = await ttl()
        assert await store.extend(claim.key, claim.owner, 60.0)
        near = await ttl()
        assert await store.extend(claim.key, claim.owner, 100_000.0)
        far = await ttl()
        assert not await store.extend(claim.key, b"s" * 16, 200_000.0)

    assert (before, near, far) == (1_086_401, 1_086_401, 1_186_400)


# -- time ----------------------------------------------------------------------------------


async def test_a_lease_counts_as_over_only_so_long_after_its_end(server: DynamodbServer) -> None:
    moments = {"ours": 1_000_000.0, "theirs": 1_000_000.0}
    async with opened(server, time=lambda: moments["ours"], skew=2.0) as ours:
        await ours.init()
        theirs = DynamodbStore(
            ours.name.rpartition("/")[2],
            region=server.region,
            endpoint_url=server.endpoint,
            time=lambda: moments["theirs"],
            skew=2.0,
        )
        await ours.claim(a_claim(1, lease=10.0))
        moments["theirs"] += 11.9  # 1.9 seconds fast, as the lease is not over yet
        early = await theirs.claim(a_claim(1))
        moments["theirs"] += 0.2
        late = await theirs.claim(a_claim(1))
        await theirs.aclose()

    assert isinstance(early, Busy)
    assert early.remaining == pytest.approx(0.1, abs=0.01)
    assert isinstance(late, Claimed)
    assert late.takeover


async def test_ten_minutes_on_the_machines_wall_clock_are_nothing(server: DynamodbServer) -> None:
    class WrongClock(SystemClock):
        def __init__(self, seconds: float) -> None:
            self._shift = timedelta(seconds=seconds)

        def utcnow(self) -> datetime:
            return super().utcnow() + self._shift

    async with opened(server) as right:
        await right.init()
        claim = a_claim(1, lease=30.0)
        await right.claim(claim)
        for seconds in (600.0, -600.0):
            wrong = DynamodbStore.from_url(
                server.url(right.name.rpartition("/")[2]), clock=WrongClock(seconds)
            )
            busy = await wrong.claim(a_claim(1))
            assert isinstance(busy, Busy)
            assert busy.remaining == pytest.approx(30.0, abs=5.0)
            await wrong.aclose()


class Ticks(SystemClock):
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


def date(seconds: float) -> str:
    return format_datetime(datetime.fromtimestamp(int(seconds), UTC), usegmt=True)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.999])
def test_the_services_time_is_known_to_half_a_second_and_then_better(part: float) -> None:
    clock = Ticks()
    service = ServiceTime(clock)
    assert service.now() is None
    start = 1_000_000_000.0 + part
    worst: list[float] = []
    for n in range(30):
        clock.seconds = asked = n * 0.617
        clock.seconds += 0.02
        service.heard(date(start + clock.seconds - 0.01), asked)
        found = service.now()
        assert found is not None
        worst.append(abs(found - (start + clock.seconds)))

    assert worst[0] <= 0.55
    assert worst[-1] <= 0.1


def test_a_clock_that_jumps_is_found_out() -> None:
    clock = Ticks()
    service = ServiceTime(clock)
    for n in range(10):
        clock.seconds = n * 0.3
        service.heard(date(1_000_000_000.0 + clock.seconds), clock.seconds)
    # The machine slept for an hour, which its monotonic clock did not see.
    service.heard(date(1_000_003_600.0 + clock.seconds), clock.seconds)

    found = service.now()
    assert found is not None
    assert abs(found - (1_000_003_600.0 + clock.seconds)) <= 1.0


@pytest.mark.parametrize("text", ["", "yesterday", "99 99 99"])
def test_a_date_that_cannot_be_read_is_passed_over(text: str) -> None:
    service = ServiceTime(Ticks())
    service.heard(text, 0.0)
    assert service.now() is None


async def test_a_damaged_record_keeps_no_other_from_being_pruned(server: DynamodbServer) -> None:
    moment = 1_000_000.0
    async with opened(server, time=lambda: moment) as store:
        await store.init()
        for key in range(5):
            claim = a_claim(key)
            await store.claim(claim)
            await store.complete(claim.key, claim.owner, 10.0, None)
        await store.table.call("put_item", Item={"key": {"B": b"k" * 16}, "state": {"N": "77"}})
        moment += 100.0

        assert [await store.prune(100), await store.prune(100)] == [5, 0]
        assert await store.forget(b"k" * 16)


# -- sources -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["aiobotocore.session:get_session", "aioboto3:Session"])
async def test_it_takes_a_session_of_the_users_own(server: DynamodbServer, name: str) -> None:
    make: Any = pkgutil.resolve_name(name)

    async with opened(server, session=make()) as store:
        await store.init()
        assert isinstance(await store.claim(a_claim(1)), Claimed)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("dynamodb://eu-west-1", "no name of a table"),
        ("dynamodb://eu-west-1/a b c", "no name of a table"),
        ("dynamodb://key:secret@eu-west-1/keys", "credentials"),
        ("dynamodb://eu-west-1/keys?endpoint_url=localhost:8000", "http"),
        ("dynamodb://eu-west-1/keys?no_such_option=1", "no_such_option"),
        ("dynamodb://eu-west-1/keys?skew=-1", "skew"),
        ("dynamodb://eu-west-1/keys?skew=7200", "skew"),
    ],
)
def test_what_is_no_url_of_a_table_is_refused(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        DynamodbStore.from_url(url)


async def test_no_server_is_an_outage(server: DynamodbServer) -> None:
    store = DynamodbStore("keys", region=server.region, endpoint_url="http://127.0.0.1:9")
    with pytest.raises(StoreUnavailableError):
        await store.check()
    await store.aclose()

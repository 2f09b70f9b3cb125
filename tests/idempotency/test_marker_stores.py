"""Jobs with ``once="marker"`` whose records are in Redis or in DynamoDB."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from brokerwq import App, DeadLetter, Job, Message, Once, RetryPolicy, Tx
from brokerwq.dead_letters import DeadLetters
from brokerwq.errors import ConfigError
from brokerwq.events import MarkerTrouble, StoreReached, StoreUnreachable
from brokerwq.idempotency import Record, State
from brokerwq.testing.stores import StoreBench, a_claim
from tests.cases.lab import Place, counts, dead_letters, declare, send_raw, sqlite
from tests.idempotency.dynamodb_lab import dynamodb_bench
from tests.idempotency.lab import RETRY
from tests.idempotency.redis_lab import redis_bench

BENCHES: dict[str, Callable[[], AbstractAsyncContextManager[StoreBench]]] = {
    "redis": redis_bench,
    "dynamodb": lambda: dynamodb_bench(on_fake_clock=False),
}


def itself(payload: object) -> object:
    return payload


def same(_payload: object) -> object:
    return "same"


@dataclass
class Shop:
    """An app on SQLite, and its store.

    Attributes:
        runs: What the workers note of each call.
    """

    place: Place
    bench: StoreBench
    app: App
    runs: list[Any] = field(default_factory=list[Any])

    def worker(self, fn: Callable[..., Any] | None = None, **options: Any) -> Any:
        """A worker of ``q``; without ``fn`` it notes its runs."""

        async def note(job: Job, n: int) -> int:
            self.runs.append(job)
            return n

        keywords: dict[str, Any] = {
            "once": Once(strategy="marker", **options.pop("once", {})),
            "key": itself,
            "name": "charge",
            **options,
        }
        worker_on: Any = self.app.worker
        return worker_on("q", **keywords)(fn or note)

    async def drain(self, **options: Any) -> Any:
        return await self.place.drain(self.app, **options)

    async def send(self, *messages: Message) -> None:
        await declare(self.app, "q")
        await send_raw(self.app, "q", *messages)

    async def record(self) -> Record:
        (record,) = await self.bench.store.list(1000, state=None, worker=None)
        return record

    async def taken_over(self, *, completes: bool) -> None:
        """Somebody else takes the only record over."""
        store, record = self.bench.store, await self.record()
        await store.forget(record.key)
        claim = a_claim(
            int.from_bytes(record.key), payload=record.payload, owner=b"B" * 16, lease=0.5
        )
        await store.claim(claim)
        if completes:
            await store.complete(claim.key, claim.owner, 1000.0, '"of B"')


@pytest.fixture(params=list(BENCHES))
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Shop]:
    async with BENCHES[request.param]() as bench:
        place = sqlite(tmp_path)
        app = place.app(store=bench.store, name="shop", retry=RETRY, lease=2.0)
        yield Shop(place, bench, app)
        await place.aclose()


async def test_two_messages_with_one_key_are_done_once(shop: Shop) -> None:
    charge = shop.worker()
    for n in (1, 1, 2):
        await charge.enqueue(n)

    report = await shop.drain(slots=1)

    assert (report.done, report.duplicates, report.failed) == (2, 1, 0)
    assert len(shop.runs) == 2
    assert await counts(shop.app, "q") == (0, 0, 0, 0)


async def test_a_copy_waits_while_its_work_is_under_way_and_spends_no_attempt(shop: Shop) -> None:
    may_end = asyncio.Event()

    async def slow(job: Job, n: int) -> None:
        shop.runs.append((job.attempt, n))
        await may_end.wait()

    charge = shop.worker(slow)
    await charge.enqueue(1)
    await charge.enqueue(1)

    async with shop.place.running(shop.app, slots=2) as running:
        await shop.place.until(lambda: shop.runs)
        while (await counts(shop.app, "q"))[2] != 1:
            await asyncio.sleep(0.02)
        may_end.set()
        while any(await counts(shop.app, "q")):
            await asyncio.sleep(0.05)
        report = await running.stop()

    assert shop.runs == [(1, 1)]
    assert (report.done, report.duplicates, report.failed, report.dead_count) == (1, 1, 0, 0)


@pytest.mark.parametrize("raises", [False, True])
async def test_an_owner_that_was_taken_over_changes_nothing(shop: Shop, *, raises: bool) -> None:
    async def fn(job: Job, n: int) -> None:
        shop.runs.append((job.attempt, n))
        await shop.taken_over(completes=True)
        if raises:
            msg = "after resuming"
            raise ValueError(msg)

    charge = shop.worker(fn)
    await charge.enqueue(1)

    report = await shop.drain()

    record = await shop.record()
    assert (record.owner, record.result, record.state) == (b"B" * 16, '"of B"', State.COMPLETED)
    assert (len(shop.runs), report.duplicates) == (1, 1)


async def test_an_owner_hears_from_the_heartbeat_that_it_was_taken_over(shop: Shop) -> None:
    lost: list[bool] = []

    async def fn(job: Job, n: int) -> None:
        shop.runs.append(n)
        await shop.taken_over(completes=True)
        try:
            await asyncio.sleep(30)
        finally:
            lost.append(job.lease.lost)

    charge = shop.worker(fn, lease=0.9)
    await charge.enqueue(1)

    report = await shop.drain()

    assert lost == [True]
    assert report.duplicates == 1


async def test_a_handler_that_blocks_the_loop_keeps_message_and_record(shop: Shop) -> None:
    async def fn(job: Job, n: int) -> None:
        shop.runs.append((job.attempt, n))
        time.sleep(2.0)  # noqa: ASYNC251 -- the fault under test

    charge = shop.worker(fn, lease=0.9)
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.done, report.lost, len(shop.runs)) == (1, 0, 1)


async def test_another_payload_under_a_known_key_is_a_dead_letter(shop: Shop) -> None:
    charge = shop.worker(key=same)
    await charge.enqueue(1)
    await charge.enqueue(2)

    report = await shop.drain(slots=1)

    assert (report.done, report.dead) == (1, {"payload-mismatch": 1})
    (letter,) = await dead_letters(shop.app, "q")
    assert letter.dead is not None
    assert (await shop.record()).payload.hex() in letter.dead.error


async def test_while_the_store_is_down_nothing_runs_and_nothing_is_claimed(shop: Shop) -> None:
    charge = shop.worker()
    assert shop.bench.outage is not None
    async with shop.place.running(shop.app) as running:
        await shop.place.until(lambda: running.runner.state == "ready")
        async with shop.bench.outage():
            for n in range(20):
                await charge.enqueue(n)
            await shop.place.until(lambda: running.runner.state == "degraded")
            assert any("store" in reason for reason in running.runner.reasons)
            await asyncio.sleep(0.5)
            assert shop.runs == []
        await shop.place.until(lambda: len(shop.runs) == 20)
        await shop.place.until(lambda: running.runner.state == "ready")
        report = await running.stop()

    assert report.dead_count == 0
    assert {job.attempt for job in shop.runs} == {1}
    assert shop.place.events.of(StoreUnreachable)
    assert shop.place.events.of(StoreReached)


async def test_done_work_is_acked_though_its_record_could_not_be_written(shop: Shop) -> None:
    assert shop.bench.outage is not None
    outage = shop.bench.outage()

    async def fn(job: Job, n: int) -> None:
        shop.runs.append((job.attempt, n))
        await outage.__aenter__()

    charge = shop.worker(fn, lease=4.0)
    await charge.enqueue(1)
    try:
        report = await shop.drain()
    finally:
        await outage.__aexit__(None, None, None)

    (event,) = shop.place.events.of(MarkerTrouble)
    assert event.problem == "unmarked"
    assert (report.done, len(shop.runs)) == (1, 1)


async def test_a_message_older_than_the_retention_is_parked_and_a_redrive_runs(shop: Shop) -> None:
    broken = True

    async def fn(job: Job, n: int) -> None:
        shop.runs.append((job.attempt, n))
        if broken:
            raise DeadLetter("no-such-order")

    charge = shop.worker(fn, once={"retention": 60})
    old = datetime.now(UTC) - timedelta(minutes=2)
    await shop.send(Message(id="old", body=b"1", type="charge", created_at=old))
    await charge.enqueue(2)
    first = await shop.drain()
    broken = False
    letters = DeadLetters(await shop.app.broker().driver(), "q")
    await letters.redrive()
    second = await shop.drain()

    assert first.dead == {"older-than-dedup-window": 1, "no-such-order": 1}
    assert (second.done, second.dead) == (1, {"older-than-dedup-window": 1})
    assert shop.runs == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (None, "null"),
        ({"a": "é"}, '{"a":"é"}'),
        ("x" * 4094, '"' + "x" * 4094 + '"'),
        ("x" * 5000, None),
        (math.nan, None),
        (object(), None),
    ],
    ids=["nothing", "text", "4 KiB", "huge", "nan", "object"],
)
async def test_a_result_is_kept_or_the_work_is_marked_without_it(
    shop: Shop, answer: object, kept: str | None
) -> None:
    async def fn(job: Job, n: int) -> object:
        shop.runs.append((job.attempt, n))
        return answer

    charge = shop.worker(fn, once={"keep_result": True})
    await charge.enqueue(1)
    await charge.enqueue(1)

    report = await shop.drain(slots=1)

    assert (report.done, report.duplicates, len(shop.runs)) == (1, 1, 1)
    assert (await shop.record()).result == kept
    problems = [event.problem for event in shop.place.events.of(MarkerTrouble)]
    assert problems == ([] if kept else ["no-result"])


async def test_a_damaged_record_keeps_its_work_from_running(shop: Shop) -> None:
    charge = shop.worker()
    await charge.enqueue(1)
    await shop.drain()
    assert shop.bench.damage is not None
    await shop.bench.damage((await shop.record()).key)
    await charge.enqueue(1)
    await charge.enqueue(2)

    report = await shop.drain()

    assert (report.done, report.dead) == (1, {"failed": 1})
    (letter,) = await dead_letters(shop.app, "q")
    assert letter.dead is not None
    assert "damaged" in letter.dead.error
    assert len(shop.runs) == 2


async def test_two_applications_share_a_store_and_no_keys(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "bank").mkdir()
    place = sqlite(tmp_path / "bank")
    bank = Shop(place, shop.bench, place.app(store=shop.bench.again(), name="bank", retry=RETRY))
    done: list[int] = []
    for each in (shop, bank):
        charge = each.worker()
        await charge.enqueue(1)
        done.append((await each.drain()).done)
    await place.aclose()

    workers = [record.worker for record in await shop.bench.store.list(10, state=None, worker=None)]
    assert done == [1, 1]
    assert sorted(workers) == ["bank/charge", "shop/charge"]


async def test_a_stop_lets_another_runner_begin_at_once(shop: Shop) -> None:
    async def fn(job: Job, n: int) -> None:
        shop.runs.append((job.attempt, n))
        if len(shop.runs) == 1:
            await asyncio.sleep(60)

    charge = shop.worker(fn, lease=30, retry=RetryPolicy(max_attempts=1))
    await charge.enqueue(1)
    async with shop.place.running(shop.app, grace=0.05) as running:
        await shop.place.until(lambda: shop.runs)
        first = await running.stop()
    record = await shop.record()

    second = await shop.drain()

    assert (record.state, record.owner) == (State.IN_PROGRESS, b"")
    assert (first.put_back, first.dead_count) == (1, 0)
    assert (second.done, second.dead_count) == (1, 0)
    assert shop.runs == [(1, 1), (1, 1)]


@pytest.mark.parametrize("strategy", ["transactional", "lease_tx"])
async def test_work_in_a_transaction_is_refused_and_told_where_it_is_possible(
    shop: Shop, strategy: Any
) -> None:
    async def fn(job: Job, tx: Tx, n: int) -> None: ...

    with pytest.raises(ConfigError, match=r"SQLite or PostgreSQL.*marker"):
        shop.app.worker("q", once=strategy)(fn)

"""What ``once`` means on a queue, on every store; ``test_jobs`` has the finer points."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from brokerwq import DeadLetter, Job, Message, RetryPolicy, Runner
from brokerwq.dead_letters import DeadLetters
from brokerwq.errors import ConfigError, LeaseLostError, StoreError
from brokerwq.events import MarkerTrouble, StoreReached, StoreUnreachable
from brokerwq.idempotency import State
from brokerwq.once import Strategy
from tests.cases.lab import counts, dead_letters
from tests.idempotency.lab import RETRY
from tests.idempotency.store_shop import StoreShop, open_shop, same
from tests.idempotency.stores import MARKER_ONLY, STORES, TRANSACTIONAL

STRATEGIES: tuple[Strategy, ...] = ("marker", "transactional", "lease_tx")
IN_TX: tuple[Strategy, ...] = ("transactional", "lease_tx")


EVERYWHERE = [
    *((store, strategy) for store in TRANSACTIONAL for strategy in STRATEGIES),
    *((store, "marker") for store in MARKER_ONLY),
]
with_each_strategy = pytest.mark.parametrize(("shop", "strategy"), EVERYWHERE, indirect=["shop"])
on_every_store = pytest.mark.parametrize("shop", STORES, indirect=True)


@pytest.fixture(params=TRANSACTIONAL)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[StoreShop]:
    async with open_shop(request.param, tmp_path) as shop:
        yield shop


def needs(shop: StoreShop, hook: str) -> Any:
    found = getattr(shop.bench, hook, None) or getattr(shop.bench.work, hook, None)
    if found is None:
        pytest.skip(f"this store has no {hook}")
    return found


async def until_counts(shop: StoreShop, condition: Callable[[tuple[int, ...]], bool]) -> None:
    """Wait for the counts of ``q``: ready, leased, delayed, dead."""
    async with asyncio.timeout(20):
        while not condition(await counts(shop.app, "q")):
            await asyncio.sleep(0.02)


# -- duplicates ----------------------------------------------------------------------------


@pytest.mark.slow
@with_each_strategy
async def test_two_messages_with_one_key_are_done_once(shop: StoreShop, strategy: Strategy) -> None:
    charge = shop.worker(strategy)
    for n in (1, 1, 2):
        await charge.enqueue(n)

    report = await shop.drain(slots=1)

    assert (report.done, report.duplicates, report.failed) == (2, 1, 0)
    assert sorted(shop.runs) == [1, 2]
    assert await counts(shop.app, "q") == (0, 0, 0, 0)
    assert await shop.effects() == ([] if strategy == "marker" else [1, 2])
    assert {record.state for record in await shop.records()} == {State.COMPLETED}


@pytest.mark.slow
@with_each_strategy
async def test_a_copy_waits_while_its_work_is_under_way_and_spends_no_attempt(
    shop: StoreShop, strategy: Strategy
) -> None:
    """BQ-20 b: it never runs, is not acked as done, and is tried again later."""
    may_end = asyncio.Event()

    async def wait(job: Job, _tx: Any, _n: Any) -> None:
        assert job.attempt == 1
        await may_end.wait()

    charge = shop.worker(strategy, wait)
    await charge.enqueue(1)
    await charge.enqueue(1)

    async with shop.place.running(shop.app, slots=2) as running:
        await shop.place.until(lambda: shop.runs)
        if strategy != "transactional":  # where a copy may wait for the transaction to end
            await until_counts(shop, lambda found: found[2] == 1)  # delayed
        may_end.set()
        await until_counts(shop, lambda found: not any(found))
        report = await running.stop()

    assert shop.runs == [1]
    assert (report.done, report.duplicates, report.failed, report.dead_count) == (1, 1, 0, 0)


@pytest.mark.slow
@with_each_strategy
async def test_another_payload_under_a_known_key_is_a_dead_letter(
    shop: StoreShop, strategy: Strategy
) -> None:
    charge = shop.worker(strategy, key=same)
    await charge.enqueue(1)
    before = await shop.drain(slots=1)
    record = await shop.record()
    await charge.enqueue(2)

    report = await shop.drain(slots=1)

    assert (before.done, report.done, report.dead) == (1, 0, {"payload-mismatch": 1})
    (letter,) = await dead_letters(shop.app, "q")
    assert letter.dead is not None
    assert record.payload.hex() in letter.dead.error
    after = await shop.record()
    assert (after.owner, after.state, after.expires_at) == (
        record.owner,
        record.state,
        record.expires_at,
    )


@pytest.mark.slow
@on_every_store
async def test_two_applications_share_a_store_and_no_keys(shop: StoreShop) -> None:
    other = shop.place.app(store=shop.bench.again(), name="bank", retry=RETRY)
    charge = shop.worker("marker")
    shop_app, shop.app = shop.app, other
    refund = shop.worker("marker")
    await charge.enqueue(1)
    first = await shop.place.drain(shop_app)
    await refund.enqueue(1)
    second = await shop.place.drain(other)

    assert (first.done, second.done, second.duplicates) == (1, 1, 0)
    assert sorted(record.worker for record in await shop.records()) == [
        "bank/charge",
        "shop/charge",
    ]


@pytest.mark.slow
@with_each_strategy
async def test_a_new_key_version_is_other_work_but_knows_what_was_on_its_way(
    shop: StoreShop, strategy: Strategy
) -> None:
    await shop.worker(strategy).enqueue(1, id="under-way")
    await shop.drain()
    shop.app = shop.place.app(store=shop.bench.store, name="shop", retry=RETRY)
    charge = shop.worker(strategy, key_version=2, writes=False)

    await charge.enqueue(1, id="under-way")  # as a redelivery whose ack was lost
    await charge.enqueue(1, id="new")
    report = await shop.drain(slots=1)

    assert (report.done, report.duplicates) == (1, 1)


# -- keys ----------------------------------------------------------------------------------


@pytest.mark.slow
@on_every_store
async def test_without_a_key_nothing_runs_and_nothing_is_stored(shop: StoreShop) -> None:
    """BQ-21: no shared key for those who have none; what is merely false is a key."""
    bad: list[Any] = [None, "", [None, None], 1.5, [1, math.nan]]
    good: list[Any] = [0, False, "0"]
    values = [*bad, *good]

    def key_of(index: int) -> Any:
        return values[index]

    shop.worker("marker", key=key_of)
    await shop.send(
        *[Message(id=str(i), body=b"%d" % i, type="charge") for i in range(len(values))]
    )

    report = await shop.drain()

    assert (report.done, report.dead) == (len(good), {"no-key": len(bad)})
    assert len(await shop.records()) == len(good)


@pytest.mark.slow
@with_each_strategy
async def test_what_the_handler_does_to_its_payload_changes_no_key(
    shop: StoreShop, strategy: Strategy
) -> None:
    async def spoil(_job: Job, _tx: Any, ids: list[int]) -> None:
        ids.clear()
        ids.append(99)

    charge = shop.worker(strategy, spoil, writes=False)
    await charge.enqueue([1, 2])
    await charge.enqueue([1, 2])

    report = await shop.drain(slots=1)

    assert (report.done, report.duplicates) == (1, 1)


# -- given up on, and too old --------------------------------------------------------------


@pytest.mark.slow
@with_each_strategy
async def test_a_message_older_than_the_retention_is_parked(
    shop: StoreShop, strategy: Strategy
) -> None:
    shop.worker(strategy, once={"retention": 60})
    old = datetime.now(UTC) - timedelta(minutes=2)
    young = datetime.now(UTC) + timedelta(minutes=10)  # of a machine whose clock is ahead
    await shop.send(
        Message(id="a", body=b"1", type="charge", created_at=old),
        Message(id="b", body=b"2", type="charge", created_at=young),
    )

    report = await shop.drain()

    assert (report.done, report.dead) == (1, {"older-than-dedup-window": 1})
    assert shop.runs == [2]


@pytest.mark.slow
@with_each_strategy
async def test_a_redrive_runs_again_after_failure_and_is_skipped_after_success(
    shop: StoreShop, strategy: Strategy
) -> None:
    broken = True

    async def fail(_job: Job, _tx: Any, n: int) -> None:
        if broken and n == 1:
            raise DeadLetter("no-such-order")

    charge = shop.worker(strategy, fail)
    await charge.enqueue(1)
    await charge.enqueue(2)
    assert (await shop.drain()).dead == {"no-such-order": 1}

    broken = False
    await DeadLetters(await shop.app.broker().driver(), "q").redrive()
    again = await shop.drain()
    # One that had succeeded, dead by mistake: a lost ack, a hand at the console.
    await shop.send(Message(id="x", body=b"2", type="charge", redrives=1))
    last = await shop.drain()

    assert (again.done, again.dead_count) == (1, 0)
    assert (last.done, last.duplicates) == (0, 1)
    assert sorted(shop.runs) == [1, 1, 2]
    assert await shop.effects() == ([] if strategy == "marker" else [1, 2])


@pytest.mark.slow
@with_each_strategy
async def test_a_stop_lets_another_runner_begin_at_once(
    shop: StoreShop, strategy: Strategy
) -> None:
    """BQ-04: a deploy interrupts the job, spends no attempt and leaves no record behind."""

    async def slow(job: Job, _tx: Any, _n: int) -> None:
        assert job.attempt == 1
        if len(shop.runs) == 1:
            await asyncio.sleep(60)

    once = RetryPolicy(max_attempts=1)
    charge = shop.worker(strategy, slow, lease=30, retry=once, key=None)
    await charge.enqueue(1)
    async with shop.place.running(shop.app, grace=0.05) as running:
        await shop.place.until(lambda: shop.runs)
        first = await running.stop()
    left = [record for record in await shop.records() if record.owner and record.lease_left > 0]

    second = await shop.drain()

    assert (first.put_back, first.dead_count, first.exit_code) == (1, 0, 0)
    assert left == []
    assert (second.done, second.dead_count, shop.runs) == (1, 0, [1, 1])
    assert await shop.effects() == ([] if strategy == "marker" else [1])


# -- owners that are too late --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shop", "strategy"),
    [(store, strategy) for store, strategy in EVERYWHERE if strategy != "transactional"],
    indirect=["shop"],
)
@pytest.mark.parametrize("raises", [False, True])
async def test_an_owner_that_was_taken_over_changes_nothing(
    shop: StoreShop, strategy: Strategy, *, raises: bool
) -> None:
    """BQ-16, and a freeze that outlasts the lease: neither its end nor its failure counts."""

    async def late(_job: Job, tx: Any, n: int) -> None:
        await shop.taken_over(completes=True)
        if raises:
            msg = "after resuming"
            raise ValueError(msg)
        if tx is not None:
            await tx.begin()
            await shop.db.write(tx, n)

    charge = shop.worker(strategy, late, writes=False)
    await charge.enqueue(1)

    report = await shop.drain()

    record = await shop.record()
    assert (record.owner, record.result, record.state) == (b"B" * 16, '"of B"', State.COMPLETED)
    assert (len(shop.runs), report.duplicates) == (1, 1)
    assert await shop.effects() == []


@pytest.mark.slow
async def test_a_fenced_owner_puts_its_message_back_while_the_other_one_works(
    shop: StoreShop,
) -> None:
    takeovers: list[bool] = []

    async def late(job: Job, tx: Any, n: int) -> None:
        takeovers.append(job.takeover)
        if len(takeovers) == 1:
            await shop.taken_over(completes=False)
            with pytest.raises(LeaseLostError):
                await tx.begin()
            await shop.bench.over()
        else:
            await tx.begin()
            await shop.db.write(tx, n)

    charge = shop.worker("lease_tx", late, writes=False)
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.put_back, report.failed, report.done) == (1, 0, 1)
    assert takeovers == [False, True]
    assert await shop.effects() == [1]


@pytest.mark.slow
@on_every_store
async def test_an_owner_hears_from_the_heartbeat_that_it_was_taken_over(shop: StoreShop) -> None:
    lost: list[bool] = []

    async def wait(job: Job, _tx: Any, _n: int) -> None:
        await shop.taken_over(completes=True)
        try:
            await asyncio.sleep(30)
        finally:
            lost.append(job.lease.lost)

    charge = shop.worker("marker", wait, lease=0.9)
    await charge.enqueue(1)

    report = await shop.drain()

    assert lost == [True]
    assert report.duplicates == 1


@pytest.mark.slow
async def test_an_open_transaction_keeps_the_record_beyond_its_lease(shop: StoreShop) -> None:
    """Its own heartbeat must not wait for the row that it has locked."""

    async def slow(job: Job, _tx: Any, _n: int) -> None:
        await asyncio.sleep(2.5)
        assert not job.lease.lost

    charge = shop.worker("lease_tx", slow, lease=1.0)
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.done, report.lost, report.failed, len(shop.runs)) == (1, 0, 0, 1)
    assert await shop.effects() == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shop", "strategy"),
    [
        *((store, "lease_tx") for store in TRANSACTIONAL),
        *((store, "marker") for store in ("sqlite", *MARKER_ONLY)),
    ],
    indirect=["shop"],
)
async def test_a_handler_that_blocks_the_loop_keeps_message_and_record(
    shop: StoreShop, strategy: Strategy
) -> None:
    async def block(_job: Job, _tx: Any, _n: int) -> None:
        time.sleep(2.5)  # noqa: ASYNC251 -- the fault under test

    charge = shop.worker(strategy, block, writes=False, lease=2.0)
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.done, report.lost, len(shop.runs)) == (1, 0, 1)


# -- the store -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shop", "strategy"),
    [
        *((store, "transactional") for store in TRANSACTIONAL if store != "sqlite"),
        *((store, "marker") for store in MARKER_ONLY),
    ],
    indirect=["shop"],
)
async def test_an_outage_stops_the_work_and_its_end_resumes_it(
    shop: StoreShop, strategy: Strategy
) -> None:
    """BQ-22 f: nothing runs unprotected, and no attempt is spent."""
    outage = needs(shop, "outage")

    async def check(job: Job, _tx: Any, _n: int) -> None:
        assert job.attempt == 1

    charge = shop.worker(strategy, check)
    async with shop.place.running(shop.app) as running:
        await shop.place.until(lambda: running.runner.state == "ready")
        async with outage():
            await charge.enqueue_many(range(50))
            await shop.place.until(lambda: running.runner.state == "degraded")
            assert any("store" in reason for reason in running.runner.reasons)
            await asyncio.sleep(0.3)
            assert shop.runs == []
        await shop.place.until(lambda: len(shop.runs) == 50)
        await shop.place.until(lambda: running.runner.state == "ready")
        report = await running.stop()

    assert (report.dead_count, report.failed) == (0, 0)
    assert len(await shop.effects()) == (0 if strategy == "marker" else 50)
    assert shop.place.events.of(StoreUnreachable)
    assert shop.place.events.of(StoreReached)


@pytest.mark.parametrize("shop", [store for store in STORES if store != "sqlite"], indirect=True)
@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_marker_is_written_when_the_store_is_back_while_the_lease_lasts(
    shop: StoreShop, *, comes_back: bool
) -> None:
    """BQ-22 e: done work is never run again for the sake of its record."""
    outage = needs(shop, "outage")()
    tasks: list[asyncio.Task[None]] = []

    async def cut(_job: Job, _tx: Any, _n: int) -> None:
        await outage.__aenter__()
        if comes_back:
            tasks.append(asyncio.create_task(back_later()))

    async def back_later() -> None:
        await asyncio.sleep(0.4)
        await outage.__aexit__(None, None, None)

    charge = shop.worker("marker", cut, lease=5.0 if comes_back else 2.0)
    await charge.enqueue(1)
    async with shop.place.running(shop.app) as running:
        await shop.place.until(lambda: shop.runs)
        await until_counts(shop, lambda found: not any(found))
        if not comes_back:
            await outage.__aexit__(None, None, None)
        report = await running.stop()

    problems = [event.problem for event in shop.place.events.of(MarkerTrouble)]
    assert (report.done, len(shop.runs)) == (1, 1)
    assert problems == ([] if comes_back else ["unmarked"])
    state = State.COMPLETED if comes_back else State.IN_PROGRESS
    assert (await shop.record()).state is state


@pytest.mark.slow
async def test_a_lost_answer_to_commit_is_no_failure_and_no_second_effect(shop: StoreShop) -> None:
    lose_commit = needs(shop, "lose_commit")
    losing = lose_commit()

    async def lose(_job: Job, _tx: Any, _n: int) -> None:
        # The guard's answer must come: only the commit's is lost.
        transaction: Any = _tx._port._transaction
        commit = transaction.link.commit

        async def lost() -> None:
            async with losing:
                await commit()

        transaction.link.commit = lost

    charge = shop.worker("transactional", lose)
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.done, report.duplicates, report.failed, report.dead_count) == (0, 1, 0, 0)
    assert report.put_back >= 1
    assert await shop.effects() == [1]
    assert shop.runs == [1]


@pytest.mark.slow
@with_each_strategy
async def test_a_damaged_record_keeps_its_work_from_running(
    shop: StoreShop, strategy: Strategy
) -> None:
    damage = needs(shop, "damage")
    charge = shop.worker(strategy)
    await charge.enqueue(1)
    await shop.drain()
    await damage((await shop.record()).key)
    await charge.enqueue(1)
    await charge.enqueue(2)

    report = await shop.drain()

    assert (report.done, report.dead) == (1, {"failed": 1})
    (letter,) = await dead_letters(shop.app, "q")
    assert letter.dead is not None
    assert "damaged" in letter.dead.error
    assert shop.runs == [1, 2]


@pytest.mark.slow
async def test_tables_that_are_gone_end_the_runner_and_no_message(shop: StoreShop) -> None:
    charge = shop.worker("transactional")
    await charge.enqueue(1)
    with pytest.raises(StoreError, match=r"keys init"):
        await drop_while_running(shop, charge)

    assert shop.runs == [1]
    ready, leased, delayed, dead = await counts(shop.app, "q")
    assert (ready + delayed, leased, dead) == (1, 0, 0)


async def drop_while_running(shop: StoreShop, charge: Any) -> None:
    async with shop.place.running(shop.app) as running:
        await shop.place.until(lambda: shop.runs)
        await until_counts(shop, lambda found: not any(found))
        async with shop.db.own() as own:
            await own.begin()
            await own.run("DROP TABLE brokerwq_key")
            await own.end("COMMIT")
        await charge.enqueue(2)
        await running.ended()


@pytest.mark.slow
@on_every_store
async def test_records_of_another_version_end_the_runner(shop: StoreShop) -> None:
    charge = shop.worker("marker")
    await charge.enqueue(1)
    await needs(shop, "outdate")()
    await shop.bench.store.aclose()

    with pytest.raises(StoreError, match="version 99"):
        await Runner(shop.app, log=False).run(handle_signals=False)

    assert shop.runs == []


# -- results -------------------------------------------------------------------------------


@pytest.mark.slow
@with_each_strategy
async def test_a_result_is_kept_or_the_work_is_marked_without_it(
    shop: StoreShop, strategy: Strategy
) -> None:
    """BQ-22 a to d: a result that cannot be kept never makes the work run again."""
    answers: dict[int, tuple[Any, str | None]] = {
        0: ("x" * 2**20, None),
        1: (open(__file__, "rb"), None),  # noqa: SIM115, PTH123, ASYNC230 -- what no JSON holds
        2: (Decimal("1.50"), '"1.50"'),
        3: (datetime(2026, 1, 1, tzinfo=UTC), '"2026-01-01T00:00:00Z"'),
        4: (b"bytes", '"bytes"'),
        5: (math.nan, None),
        6: ({"a": [math.inf]}, None),
        7: (None, "null"),
        8: ({"é": "\x00"}, '{"é":"\\u0000"}'),
        9: ("x" * 4094, '"' + "x" * 4094 + '"'),
        10: (object(), None),
        11: (threading.Lock(), None),
    }

    async def answer(_job: Job, _tx: Any, n: int) -> Any:
        return answers[n][0]

    charge = shop.worker(strategy, answer, once={"keep_result": True})
    for n in answers:
        await charge.enqueue(n, id=f"m{n}")
        await charge.enqueue(n, id=f"copy of {n}")

    report = await shop.drain(slots=1)
    answers[1][0].close()

    assert (report.done, report.duplicates, report.failed) == (12, 12, 0)
    assert sorted(shop.runs) == sorted(answers)
    kept = {record.message_id: record.result for record in await shop.records()}
    assert kept == {f"m{n}": text for n, (_, text) in answers.items()}
    problems = [event.problem for event in shop.place.events.of(MarkerTrouble)]
    assert problems == ["no-result"] * 6


# -- transactions --------------------------------------------------------------------------


@pytest.mark.parametrize("shop", MARKER_ONLY, indirect=True)
@pytest.mark.parametrize("strategy", IN_TX)
async def test_work_in_a_transaction_is_refused_where_there_is_none(
    shop: StoreShop, strategy: Strategy
) -> None:
    with pytest.raises(ConfigError, match=r"SQLite or PostgreSQL.*marker"):
        shop.worker(strategy)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", IN_TX)
async def test_a_swallowed_error_is_no_success_where_it_spoils_the_transaction(
    shop: StoreShop, strategy: Strategy
) -> None:
    async def swallow(_job: Job, tx: Any, _n: int) -> None:
        with pytest.raises(Exception, match=r"(?i)check|constraint"):
            await shop.db.write(tx, 5000)

    charge = shop.worker(strategy, swallow)
    await charge.enqueue(1)

    report = await shop.drain()

    if shop.db.aborts:
        assert (report.done, report.dead) == (0, {"failed": 1})
        assert len(shop.runs) == RETRY.max_attempts
        assert await shop.effects() == []
        assert all(record.state is State.FAILED for record in await shop.records())
    else:
        assert (report.done, report.dead_count) == (1, 0)
        assert await shop.effects() == [1]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", IN_TX)
@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_a_handler_that_ends_its_transaction_is_found_out(
    shop: StoreShop, strategy: Strategy, statement: str
) -> None:
    charge = shop.worker(strategy, lambda _job, tx, _n: shop.db.run(tx, statement), key=None)
    await charge.enqueue(1)

    report = await shop.drain()

    assert report.done == 0
    assert report.dead == {"transaction-escaped" if statement == "COMMIT" else "failed": 1}
    assert len(shop.runs) == (1 if statement == "COMMIT" else RETRY.max_attempts)
    assert await shop.effects() == ([1] if statement == "COMMIT" else [])


@pytest.mark.slow
async def test_an_error_in_a_savepoint_may_be_handled(shop: StoreShop) -> None:
    async def bear(_job: Job, tx: Any, _n: int) -> None:
        with pytest.raises(Exception, match=r"(?i)check|constraint"):
            await part(tx)

    async def part(tx: Any) -> None:
        async with tx.savepoint():
            await shop.db.write(tx, 2)
            await shop.db.write(tx, 5000)

    charge = shop.worker("transactional", bear)
    await charge.enqueue(1)

    assert (await shop.drain()).done == 1
    assert await shop.effects() == [1]


@pytest.mark.slow
async def test_a_failed_block_of_the_librarys_own_takes_back_only_itself(shop: StoreShop) -> None:
    async def bear(_job: Job, tx: Any, _n: int) -> None:
        for n, fails in ((2, True), (3, False)):
            with suppress(ValueError):
                await part(tx, n, fails=fails)

    async def part(tx: Any, n: int, *, fails: bool) -> None:
        async with library_block(tx.conn):
            await shop.db.write(tx, n)
            if fails:
                raise ValueError

    charge = shop.worker("transactional", bear)
    await charge.enqueue(1)

    assert (await shop.drain()).done == 1
    assert sorted(await shop.effects()) == [1, 3]


@asynccontextmanager
async def library_block(conn: Any) -> AsyncGenerator[None]:
    """What the connection's library has for a part of a transaction."""
    if isinstance(conn, sqlite3.Connection):
        with conn:
            yield
        return
    async with conn.begin_nested() if hasattr(conn, "begin_nested") else conn.transaction():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("strategy", IN_TX)
async def test_a_commit_that_is_refused_is_a_failed_attempt(
    shop: StoreShop, strategy: Strategy
) -> None:
    charge = shop.worker(strategy, lambda _job, tx, _n: needs(shop, "defer")(tx))
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.done, report.dead, report.put_back) == (0, {"failed": 1}, 0)
    assert len(shop.runs) == RETRY.max_attempts
    assert await shop.effects() == []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", IN_TX)
async def test_a_conflict_is_tried_again_within_the_attempt(
    shop: StoreShop, strategy: Strategy
) -> None:
    conflict = needs(shop, "conflict")
    attempts: list[int] = []

    async def clash(job: Job, tx: Any, n: list[int]) -> None:
        attempts.append(job.attempt)
        job.enqueue(mail, len(attempts))
        await tx.enqueue(mail, 100)
        await tx.begin()
        await shop.db.write(tx, n[0])
        n.clear()
        if len(attempts) < 3:
            await conflict(tx)

    @shop.app.worker("q")
    async def mail(n: int) -> None:
        shop.runs.append(n)

    charge = shop.worker(strategy, clash, writes=False)
    await charge.enqueue([1])

    report = await shop.drain(slots=1)

    assert attempts == [1, 1, 1]
    assert (report.done, report.failed, report.dead_count) == (3, 0, 0)
    assert await shop.effects() == [1]
    assert sorted(n for n in shop.runs if isinstance(n, int)) == [3, 100]


@pytest.mark.parametrize("strategy", IN_TX)
async def test_a_conflict_without_end_is_a_failure(shop: StoreShop, strategy: Strategy) -> None:
    conflict = needs(shop, "conflict")
    charge = shop.worker(
        strategy, lambda _job, tx, _n: conflict(tx), retry=RetryPolicy(max_attempts=2, base=0.01)
    )
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.done, report.dead) == (0, {"failed": 1})
    assert len(shop.runs) == 8  # two attempts of four calls
    assert await shop.effects() == []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", IN_TX)
@pytest.mark.parametrize("fails", [False, True])
async def test_children_go_with_the_transaction(
    shop: StoreShop, strategy: Strategy, *, fails: bool
) -> None:
    ids: list[str] = []
    mailed: list[Any] = []

    @shop.app.worker("q")
    async def mail(job: Job, n: int) -> None:
        mailed.append((job.id, n))

    async def enqueue(job: Job, tx: Any, _n: int) -> None:
        ids.append(await tx.enqueue(mail, 1))
        ids.append(job.enqueue(mail, 2))
        if fails:
            raise DeadLetter("no")

    charge = shop.worker(strategy, enqueue)
    await charge.enqueue(1)
    await charge.enqueue(1)

    report = await shop.drain(slots=1)

    assert await shop.app.relay_outbox() == 0
    assert sorted(mailed) == ([] if fails else sorted([(ids[0], 1), (ids[1], 2)]))
    assert report.done == (0 if fails else 3)


@pytest.mark.slow
async def test_a_message_can_be_sent_with_a_transaction_of_ones_own(shop: StoreShop) -> None:
    charge = shop.worker("transactional")
    async with shop.db.own() as own:
        for n, end in ((1, "COMMIT"), (2, "ROLLBACK")):
            await own.begin()
            await own.write(n + 100)
            await charge.enqueue(n, tx=own.tx)
            await own.end(end)

    report = await shop.drain()

    assert (report.done, shop.runs) == (1, [1])
    assert await shop.effects() == [1, 101]


@pytest.mark.slow
async def test_many_jobs_at_once_take_turns_with_the_connections(shop: StoreShop) -> None:
    async def pause(_job: Job, _tx: Any, _n: int) -> None:
        await asyncio.sleep(0.002)

    charge = shop.worker("transactional", pause)
    await charge.enqueue_many(range(60))

    report = await shop.drain(slots=30)

    assert (report.done, report.failed) == (60, 0)
    assert len(await shop.effects()) == 60

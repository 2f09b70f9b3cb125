"""What ``once`` means on a queue, in detail, on SQLite; for all stores: ``test_jobs_on_stores``."""
# ruff: noqa: ARG001 -- a worker takes what its shape says, whether it needs it or not

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from brokerwq import (
    App,
    DeadLetter,
    Discard,
    Job,
    Message,
    Once,
    Snooze,
    Tx,
)
from brokerwq.errors import ConfigError, PayloadError
from brokerwq.events import JobStarted, MarkerTrouble, StoreReached, StoreUnreachable
from brokerwq.idempotency import State
from brokerwq.idempotency.keys import payload_digest
from brokerwq.once import Strategy
from tests.cases.lab import counts, dead_letters, reasons
from tests.idempotency.lab import Shop, open_shop
from tests.idempotency.stores import a_claim

STRATEGIES: tuple[Strategy, ...] = ("marker", "transactional", "lease_tx")


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncGenerator[Shop]:
    shop = await open_shop(tmp_path)
    yield shop
    await shop.place.aclose()
    await shop.store.aclose()


def itself(payload: object) -> object:
    return payload


def constant(value: object) -> Callable[[object], object]:
    return lambda _payload: value


def worker(shop: Shop, strategy: Strategy, **options: Any) -> Any:
    """A worker that notes its runs, and in a transaction writes its effect."""
    once = Once(strategy=strategy, **options.pop("once", {}))

    async def marked(job: Job, n: int) -> int:
        shop.runs.append(job)
        return n

    async def in_tx(job: Job, tx: Tx, n: int) -> int:
        shop.runs.append(job)
        conn = await tx.begin()
        conn.execute("INSERT INTO effects VALUES (?)", (n,))
        return n

    fn = marked if strategy == "marker" else in_tx
    keywords: dict[str, Any] = {"key": itself, "name": "charge", **options}
    worker_on: Any = shop.app.worker
    return worker_on("q", once=once, **keywords)(fn)


# -- duplicates ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_without_a_key_the_messages_id_is_it(shop: Shop, strategy: Strategy) -> None:
    charge = worker(shop, strategy, key=None)
    await charge.enqueue(1, id="a")
    await charge.enqueue(1, id="a")
    await charge.enqueue(1, id="b")

    report = await shop.drain(slots=1)

    assert (report.done, report.duplicates) == (2, 1)


@pytest.mark.slow
async def test_a_duplicate_announces_no_start(shop: Shop) -> None:
    charge = worker(shop, "marker")
    await charge.enqueue(1)
    await charge.enqueue(1)

    await shop.drain(slots=1)

    assert len(shop.place.events.of(JobStarted)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["marker", "lease_tx"])
async def test_a_copy_that_comes_back_too_early_waits_again(shop: Shop, strategy: Strategy) -> None:
    may_end = asyncio.Event()

    async def slow(job: Job, n: int) -> None:
        shop.runs.append(job.attempt)
        await may_end.wait()

    async def slow_tx(job: Job, tx: Tx, n: int) -> None:
        await slow(job, n)

    charge: Any = shop.app.worker("q", once=strategy, key=itself, name="charge")(
        slow if strategy == "marker" else slow_tx
    )
    await charge.enqueue(1)
    await charge.enqueue(1)

    async with shop.place.running(shop.app, slots=2) as running:
        await shop.until(lambda: shop.runs)
        while (await counts(shop.app, "q"))[2] != 1:
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.5)  # long enough for the copy to come back, and to wait again
        may_end.set()
        while any(await counts(shop.app, "q")):
            await asyncio.sleep(0.05)
        report = await running.stop()

    assert shop.runs == [1]
    assert (report.done, report.duplicates, report.failed, report.dead_count) == (1, 1, 0, 0)
    assert report.put_back >= 1


@pytest.mark.slow
async def test_a_second_worker_has_keys_of_its_own(shop: Shop) -> None:
    charge = worker(shop, "marker")
    refund = worker(shop, "marker", name="refund")
    await charge.enqueue(1)
    await refund.enqueue(1)

    report = await shop.drain()

    assert (report.done, report.duplicates) == (2, 0)


# -- what is given up on -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_another_payload_may_be_all_the_same(shop: Shop, strategy: Strategy) -> None:
    charge = worker(shop, strategy, key=constant("same"), once={"on_mismatch": "ack"})
    await charge.enqueue(1)
    await charge.enqueue(2)

    report = await shop.drain(slots=1)

    assert (report.done, report.duplicates, report.dead_count) == (1, 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, "", [], [1, None], 1.5, math.nan, {1}, object()])
async def test_a_message_without_a_key_is_a_dead_letter(shop: Shop, value: object) -> None:
    worker(shop, "marker", key=constant(value))
    await shop.send(Message(id="a", body=b"1", type="charge"))

    report = await shop.drain()

    assert report.dead == {"no-key": 1}
    assert await shop.records() == []


@pytest.mark.slow
@pytest.mark.parametrize("value", [0, False, "0", Decimal(0), b"\0", [0]])
async def test_what_is_merely_false_is_a_key(shop: Shop, value: object) -> None:
    worker(shop, "marker", key=constant(value))
    await shop.send(*[Message(id=i, body=b"1", type="charge") for i in "ab"])

    report = await shop.drain(slots=1)

    assert (report.done, report.duplicates) == (1, 1)


@pytest.mark.parametrize("value", [1.5, [1, 0.1]])
async def test_a_float_in_a_key_is_refused_by_the_sender(shop: Shop, value: object) -> None:
    charge = worker(shop, "marker", key=constant(value))

    with pytest.raises(PayloadError, match="float"):
        await charge.enqueue(1)


@pytest.mark.slow
async def test_a_foreign_message_without_an_id_has_no_default_key_and_says_so(
    shop: Shop,
) -> None:
    @shop.app.worker("q", once="marker", codec="json", foreign=True)
    async def take(n: int) -> None:
        shop.runs.append(n)

    await shop.send(Message(id="", body=b"1"), Message(id="", body=b"2"))

    report = await shop.drain()

    assert report.dead == {"no-key": 2}
    (letter, _) = await dead_letters(shop.app, "q")
    assert letter.dead is not None
    assert "key=" in letter.dead.error
    assert shop.runs == []


@pytest.mark.slow
async def test_a_message_older_than_the_retention_may_be_run(shop: Shop) -> None:
    worker(shop, "marker", once={"retention": 60, "stale": "run"})
    old = datetime.now(UTC) - timedelta(minutes=2)
    await shop.send(Message(id="a", body=b"1", type="charge", created_at=old))

    assert (await shop.drain()).done == 1


@pytest.mark.slow
async def test_ten_minutes_between_two_clocks_are_nothing(shop: Shop) -> None:
    worker(shop, "marker")
    for minutes, id_ in ((10, "a"), (-10, "b")):
        sent = datetime.now(UTC) + timedelta(minutes=minutes)
        message = Message(id=id_, body=b"%d" % minutes, type="charge", created_at=sent)
        await shop.send(message)

    assert (await shop.drain()).done == 2


@pytest.mark.slow
async def test_a_crash_between_the_record_and_the_dead_letter_does_not_run_the_job_again(
    shop: Shop,
) -> None:
    charge = worker(shop, "marker", key=None)
    await charge.enqueue(1, id="a")

    @shop.app.worker("q", once="marker", name="bad")
    async def bad(n: int) -> None:
        shop.runs.append(n)
        raise DeadLetter("no-such-order")

    await bad.enqueue(1, id="b")
    await shop.drain()
    runs = len(shop.runs)
    await bad.enqueue(1, id="b")  # the redelivery of the one whose move was interrupted
    report = await shop.drain()

    assert report.dead == {"no-such-order": 1}
    assert len(shop.runs) == runs


# -- attempts that do not succeed ----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("failure", [ValueError("x"), Snooze(0.01)])
async def test_an_attempt_that_failed_is_followed_by_another_at_once(
    shop: Shop, strategy: Strategy, failure: Exception
) -> None:
    async def fn(job: Job, n: int) -> None:
        shop.runs.append(job.attempt)
        if len(shop.runs) == 1:
            raise failure

    async def fn_tx(job: Job, tx: Tx, n: int) -> None:
        (await tx.begin()).execute("INSERT INTO effects VALUES (?)", (n,))
        await fn(job, n)

    charge: Any = shop.app.worker("q", once=strategy, name="charge", lease=30)(
        fn if strategy == "marker" else fn_tx
    )
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.done, report.put_back, report.dead_count) == (1, 0, 0)
    assert shop.effects() == ([] if strategy == "marker" else [1])


@pytest.mark.slow
async def test_a_discarded_message_is_finished(shop: Shop) -> None:
    @shop.app.worker("q", once="marker", key=itself)
    async def charge(n: int) -> None:
        shop.runs.append(n)
        raise Discard("not wanted")

    await charge.enqueue(1)
    await charge.enqueue(1)
    report = await shop.drain(slots=1)

    assert (report.discarded, report.duplicates) == (1, 1)


@pytest.mark.slow
async def test_a_time_limit_releases_the_record(shop: Shop) -> None:
    async def fn(job: Job, tx: Tx, n: int) -> None:
        shop.runs.append(job.attempt)
        (await tx.begin()).execute("INSERT INTO effects VALUES (?)", (n,))
        if len(shop.runs) == 1:
            await asyncio.sleep(60)

    charge: Any = shop.app.worker("q", once="transactional", name="charge", timeout=0.1)(fn)
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.timeouts, report.done) == (1, 1)
    assert shop.effects() == [1]


# -- owners that are too late --------------------------------------------------------------


@pytest.mark.slow
async def test_what_a_vanished_owner_left_may_be_parked(shop: Shop) -> None:
    charge = worker(shop, "marker", once={"on_owner_lost": "park"})
    await charge.enqueue(1, id="a")
    guard: Any = charge.route().guard
    claim = a_claim(lease=0.01, message_id="a")
    key, payload = guard.digest(1), payload_digest(b"1")
    await shop.store.claim(replace(claim, key=key, payload=payload))
    await asyncio.sleep(0.05)

    report = await shop.drain()

    assert report.dead == {"owner-lost": 1}
    assert shop.runs == []


# -- the store -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_while_the_store_is_down_nothing_runs_and_nothing_is_claimed(
    shop: Shop, strategy: Strategy
) -> None:
    charge = worker(shop, strategy)
    async with shop.place.running(shop.app) as running:
        await shop.until(lambda: running.runner.state == "ready")
        shop.store.down = {"claim", "check"}
        for n in range(20):
            await charge.enqueue(n)
        await shop.until(lambda: running.runner.state == "degraded")
        assert any("store" in reason for reason in running.runner.reasons)
        await asyncio.sleep(0.7)
        refused = shop.store.refused.count("claim")
        assert shop.runs == []

        shop.store.down = set()
        await shop.until(lambda: len(shop.runs) == 20)
        await shop.until(lambda: running.runner.state == "ready")
        report = await running.stop()

    assert report.dead_count == 0
    assert {job.attempt for job in shop.runs} == {1}
    assert refused <= 20
    assert shop.place.events.of(StoreUnreachable)
    assert shop.place.events.of(StoreReached)


@pytest.mark.slow
async def test_at_the_start_a_store_is_waited_for(shop: Shop) -> None:
    charge = worker(shop, "marker")
    await charge.enqueue(1)
    shop.store.down = {"check"}
    async with shop.place.running(shop.app):
        await shop.until(lambda: "check" in shop.store.refused)
        assert shop.runs == []
        shop.store.down = set()
        await shop.until(lambda: shop.runs)


@pytest.mark.slow
async def test_done_work_is_acked_though_its_record_could_not_be_written(shop: Shop) -> None:
    async def fn(n: int) -> None:
        shop.runs.append(n)
        shop.store.down = {"complete"}

    charge: Any = shop.app.worker("q", once="marker", name="charge", lease=1.0)(fn)
    await charge.enqueue(1)

    report = await shop.drain()

    (event,) = shop.place.events.of(MarkerTrouble)
    assert event.problem == "unmarked"
    assert (report.done, len(shop.runs)) == (1, 1)


@pytest.mark.slow
async def test_a_record_is_written_once_the_store_is_back(shop: Shop) -> None:
    async def fn(n: int) -> None:
        shop.runs.append(n)
        shop.store.down = {"complete"}
        asyncio.get_running_loop().call_later(0.5, shop.store.down.clear)

    charge: Any = shop.app.worker("q", once="marker", name="charge")(fn)
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.done, len(shop.runs)) == (1, 1)
    assert shop.place.events.of(MarkerTrouble) == []
    assert (await shop.record()).state is State.COMPLETED


@pytest.mark.slow
async def test_done_work_may_be_left_where_its_record_could_not_be_written(shop: Shop) -> None:
    async def fn(n: int) -> None:
        shop.runs.append(n)
        shop.store.down = {"complete"} if len(shop.runs) == 1 else set()

    once = Once(strategy="marker", on_store_lost="leave")
    charge: Any = shop.app.worker("q", once=once, name="charge", lease=0.5)(fn)
    await charge.enqueue(1)

    report = await shop.drain()

    assert report.done == 1
    assert len(shop.runs) == 2


@pytest.mark.slow
async def test_a_lost_answer_to_commit_is_no_failure_and_no_second_effect(shop: Shop) -> None:
    charge = worker(shop, "transactional")
    shop.store.lost_commits = 1
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.done, report.duplicates, report.failed) == (0, 1, 0)
    assert report.put_back == 1
    assert shop.effects() == [1]


# -- transactions --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("habit", ["commit", "rollback", "executescript"])
async def test_habits_that_would_end_the_transaction_are_refused(shop: Shop, habit: str) -> None:
    async def fn(job: Job, tx: Tx, n: int) -> None:
        with tx.conn:
            tx.conn.execute("INSERT INTO effects VALUES (?)", (n,))
        getattr(tx.conn, habit)(*([""] if habit == "executescript" else []))

    charge: Any = shop.app.worker("q", once="transactional", name="charge")(fn)
    await charge.enqueue(1)

    report = await shop.drain()

    assert report.dead == {"failed": 1}
    assert shop.effects() == []


@pytest.mark.slow
async def test_a_block_that_fails_takes_back_its_own_part(shop: Shop) -> None:
    async def fn(job: Job, tx: Tx, n: int) -> None:
        tx.conn.execute("INSERT INTO effects VALUES (?)", (n,))
        with suppress(ValueError), tx.conn:
            tx.conn.execute("INSERT INTO effects VALUES (2)")
            with tx.conn:
                tx.conn.execute("INSERT INTO effects VALUES (3)")
            raise ValueError
        with tx.conn:
            tx.conn.execute("INSERT INTO effects VALUES (4)")
            with suppress(ValueError), tx.conn:
                tx.conn.execute("INSERT INTO effects VALUES (5)")
                raise ValueError

    charge: Any = shop.app.worker("q", once="transactional", name="charge")(fn)
    await charge.enqueue(1)

    assert (await shop.drain()).done == 1
    assert shop.effects() == [1, 4]


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_a_block_that_ends_the_transaction_is_found_out(shop: Shop, statement: str) -> None:
    async def fn(job: Job, tx: Tx, n: int) -> None:
        with tx.conn:
            tx.conn.execute(statement)

    charge: Any = shop.app.worker("q", once="transactional", name="charge")(fn)
    await charge.enqueue(1)

    report = await shop.drain()

    assert report.dead == {"transaction-escaped" if statement == "COMMIT" else "failed": 1}


@pytest.mark.slow
async def test_a_transaction_may_be_aborted(shop: Shop) -> None:
    async def fn(job: Job, tx: Tx, n: int) -> None:
        shop.runs.append(n)
        tx.conn.execute("INSERT INTO effects VALUES (?)", (n,))
        if len(shop.runs) == 1:
            tx.abort("not yet")

    charge: Any = shop.app.worker("q", once="transactional", name="charge")(fn)
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.failed, report.done) == (1, 1)
    assert shop.effects() == [1]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["transactional", "lease_tx"])
async def test_an_abort_that_the_handler_swallows_is_one_all_the_same(
    shop: Shop, strategy: Strategy
) -> None:
    async def fn(job: Job, tx: Tx, n: int) -> None:
        conn = await tx.begin()
        conn.execute("INSERT INTO effects VALUES (?)", (n,))
        with suppress(Exception):
            tx.abort("never")

    charge: Any = shop.app.worker("q", once=strategy, name="charge")(fn)
    await charge.enqueue(1)

    report = await shop.drain()

    assert (report.dead, report.done) == ({"failed": 1}, 0)
    assert shop.effects() == []


@pytest.mark.slow
async def test_a_plain_function_works_in_its_thread(shop: Shop) -> None:
    def fn(job: Job, tx: Tx, n: int) -> None:
        shop.runs.append(threading.current_thread() is threading.main_thread())
        tx.conn.execute("INSERT INTO effects VALUES (?)", (n,))

    charge: Any = shop.app.worker("q", once="transactional", name="charge")(fn)
    await charge.enqueue(1)

    assert (await shop.drain()).done == 1
    assert shop.runs == [False]
    assert shop.effects() == [1]


@pytest.mark.slow
async def test_a_child_has_the_same_id_whichever_attempt_sends_it(shop: Shop) -> None:
    @shop.app.worker("q")
    async def mail(n: int) -> None: ...

    async def fn(job: Job, tx: Tx, n: int) -> None:
        shop.runs.append(await tx.enqueue(mail, 1))
        if len(shop.runs) == 1:
            raise ValueError

    charge: Any = shop.app.worker("q", once="transactional", name="charge")(fn)
    await charge.enqueue(1)
    await shop.drain()

    first, second = shop.runs
    assert first == second


async def test_a_transaction_of_ones_own_must_be_open(shop: Shop) -> None:
    charge = worker(shop, "marker")
    db = sqlite3.connect(shop.store.name.removeprefix("sqlite:///"), isolation_level=None)

    with closing(db), pytest.raises(ConfigError, match="no transaction is open"):
        await charge.enqueue(0, tx=db)


async def test_a_transaction_of_another_kind_is_refused(shop: Shop) -> None:
    charge = worker(shop, "marker")

    with pytest.raises(ConfigError, match=r"not builtins\.object"):
        await charge.enqueue(1, tx=object())
    with pytest.raises(ConfigError, match="await enqueue"):
        charge.enqueue_sync(1, tx=object())


# -- decoration ----------------------------------------------------------------------------


async def test_what_does_not_fit_is_refused_at_decoration(shop: Shop) -> None:
    def at(app: App, **options: Any) -> Any:
        worker_on: Any = app.worker
        return worker_on("q", **options)

    async def plain(n: int) -> None: ...
    async def with_tx(job: Job, tx: Tx, n: int) -> None: ...
    async def batch(ns: list[int]) -> None: ...
    async def tx_first(tx: Tx, n: int) -> None: ...

    with pytest.raises(ConfigError, match="needs a store"):
        at(App("memory://"), once="marker")(plain)
    with pytest.raises(ConfigError, match="App\\(name="):
        at(App("memory://", store=shop.store), once="marker")(plain)
    with pytest.raises(ConfigError, match="once must be one of"):
        at(shop.app, once="twice")(plain)
    with pytest.raises(ConfigError, match="take it"):
        at(shop.app, once="transactional")(plain)
    with pytest.raises(ConfigError, match="alone"):
        at(shop.app, once="marker")(with_tx)
    with pytest.raises(ConfigError, match="alone"):
        at(shop.app)(with_tx)
    with pytest.raises(ConfigError, match="comes second"):
        at(shop.app, once="transactional")(tx_first)
    with pytest.raises(ConfigError, match="batch"):
        at(shop.app, once="marker", batch=3)(batch)
    with pytest.raises(ConfigError, match="key_version"):
        at(shop.app, key_version=0)(plain)
    with pytest.raises(ConfigError, match="retention"):
        Once(strategy="marker", retention=0)
    with pytest.raises(ConfigError, match="no store is known"):
        App("memory://", store="mysql://x")


@pytest.mark.slow
async def test_a_store_alone_changes_nothing(shop: Shop) -> None:
    @shop.app.worker("q", key=itself)
    async def charge(n: int) -> None:
        shop.runs.append(n)

    await charge.enqueue(1)
    await charge.enqueue(1)

    assert (await shop.drain()).done == 2
    assert await shop.records() == []
    assert await reasons(shop.app, "q") == []

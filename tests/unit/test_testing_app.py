"""An app in a test: time passes when the test says so, and what happened can be asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from brokerwq import App, DeadLetter, Job, RetryPolicy, Snooze
from brokerwq.errors import ConfigError, ConnectionLostError, PayloadError
from brokerwq.testing import TestApp
from brokerwq.testing.faults import Faults, FaultyDriver, LoseAnswer
from brokerwq.testing.watch import LONG_PATIENCE


@dataclass
class Order:
    number: int
    express: bool = False


class Shop:
    def __init__(self) -> None:
        self.app = app = App("amqp://nobody@nowhere.invalid/")
        self.log: list[tuple[str, float]] = []
        self.trouble: list[BaseException] = []
        log, trouble = self.log, self.trouble

        @app.lifespan
        async def resources() -> AsyncGenerator[str]:  # pyright: ignore[reportUnusedFunction]
            yield "real"

        @app.worker("mails", retry=RetryPolicy(max_attempts=3, base=10, jitter="none"))
        async def mail(*, to: str, text: str = "hello") -> None:
            log.append((f"{text} {to}", app.clock.now() - 1000))
            if trouble:
                raise trouble.pop(0)

        @app.worker("orders")
        async def ship(job: Job, order: Order) -> None:
            log.append((f"{job.state} {order.number}", app.clock.now() - 1000))
            job.enqueue(mail, to=f"buyer of {order.number}")

        @app.worker("slow", timeout=60)
        def count(number: int) -> None:
            time.sleep(0.05)
            log.append((f"counted {number}", 0.0))

        self.mail, self.ship, self.count = mail, ship, count


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def test_a_module_level_app_works_in_memory_and_is_given_back(shop: Shop) -> None:
    async with TestApp(shop.app) as tested:
        await shop.ship.enqueue(Order(7))
        report = await tested.drain()

        assert (report.done, report.dead_count) == (2, 0)
        assert tested.enqueued(shop.mail, to="buyer of 7")
    assert shop.app.url.startswith("amqp:")
    assert [text for text, _ in shop.log] == ["real 7", "hello buyer of 7"]


async def test_what_was_enqueued_is_found_by_fields_payload_and_default(shop: Shop) -> None:
    with TestApp(shop.app) as tested:
        await shop.ship.enqueue(Order(7, express=True), delay=60)
        await shop.ship.enqueue(Order(8))
        await shop.mail.enqueue(to="Ada")

        (seven,) = tested.enqueued(shop.ship, express=True)
        assert (seven.payload, seven.delay, seven.queue) == (Order(7, express=True), 60.0, "orders")
        assert len(tested.enqueued(shop.ship)) == 2
        assert len(tested.enqueued(shop.ship, Order(8))) == 1
        assert tested.enqueued(shop.mail, text="hello")
        assert not tested.enqueued(shop.mail, text="hello", to="Grace")


async def test_a_misspelt_field_is_an_error_and_no_empty_answer(shop: Shop) -> None:
    with TestApp(shop.app) as tested:
        with pytest.raises(ConfigError, match="recipient"):
            tested.enqueued(shop.mail, recipient="Ada")
        await shop.ship.enqueue(Order(7))
        with pytest.raises(ConfigError, match="fast"):
            tested.enqueued(shop.ship, fast=True)


async def test_what_was_refused_was_not_enqueued(shop: Shop) -> None:
    seven: Any = "seven"

    with TestApp(shop.app) as tested:
        with pytest.raises(PayloadError):
            await shop.ship.enqueue(seven)
        assert not tested.enqueued(shop.ship)


async def test_drain_runs_retries_in_no_time_at_their_times(shop: Shop) -> None:
    shop.trouble += [OSError("away"), OSError("away")]

    with TestApp(shop.app) as tested:
        await shop.mail.enqueue(to="Ada")
        started = time.perf_counter()
        report = await tested.drain()

        assert (report.done, report.failed) == (1, 2)
        assert [str(error) for error in tested.errors] == ["away", "away"]
    assert [round(at) for _, at in shop.log] == [0, 10, 30]
    assert time.perf_counter() - started < 5


async def test_advance_runs_what_is_due_in_that_time_and_no_more(shop: Shop) -> None:
    shop.trouble += [OSError("away")]

    with TestApp(shop.app) as tested:
        await shop.mail.enqueue(to="Ada")
        await shop.mail.options(delay=3600).enqueue(to="Grace")

        report = await tested.advance()
        assert (report.done, report.failed) == (0, 1)
        assert (await tested.advance(9)).failed == 0
        assert (await tested.advance(1.5)).done == 1
        assert tested.clock.now() == 1010.5
        assert (await tested.advance(3589)).done == 0
        assert (await tested.advance(0.5)).done == 1
        assert tested.clock.now() == 4600.0


async def test_the_dead_are_told_until_they_are_sent_back(shop: Shop) -> None:
    shop.trouble += [DeadLetter("no-such-address")]

    with TestApp(shop.app) as tested:
        await shop.mail.enqueue(to="nobody")
        await tested.drain()

        (dead,) = tested.dead
        assert (dead.reason, dead.attempts, dead.payload) == (
            "no-such-address",
            1,
            {"to": "nobody"},
        )
        async with shop.app.broker().claimer("mails-dead") as claimer:
            (delivery,) = await claimer.claim()
            await claimer.ack(delivery)
        assert tested.dead == []


async def test_a_dead_letter_that_cannot_be_read_has_no_payload(shop: Shop) -> None:
    with TestApp(shop.app) as tested:
        await shop.app.broker().declare(shop.app.queue_specs()[0])
        await shop.app.broker().send("mails", b"{", type="mail", content_type="application/json")
        report = await tested.drain()

        assert report.dead == {"decode": 1}
        assert [(dead.reason, dead.payload) for dead in tested.dead] == [("decode", None)]


@pytest.mark.slow
async def test_time_stands_still_while_a_plain_function_runs(shop: Shop) -> None:
    with TestApp(shop.app) as tested:
        await shop.count.enqueue(1)
        report = await tested.drain()

        assert (report.done, report.timeouts) == (1, 0)
        assert tested.clock.now() < 1060


@pytest.mark.slow
async def test_a_coroutine_may_really_wait_for_a_while(shop: Shop) -> None:
    @shop.app.worker("io", timeout=30)
    async def fetch(number: int) -> None:
        await asyncio.sleep(0.05)
        shop.log.append((f"fetched {number}", 0.0))

    with TestApp(shop.app) as tested:
        tested.patience = 5.0
        await fetch.enqueue(1)
        assert (await tested.advance(3)).done == 1
        assert tested.clock.now() == 1003.0


@pytest.mark.slow
async def test_a_worker_that_never_ends_meets_its_time_limit(shop: Shop) -> None:
    @shop.app.worker("stuck", timeout=5, retry=RetryPolicy(max_attempts=1))
    async def wait(number: int) -> None:
        shop.log.append((f"waits for {number}", 0.0))
        await asyncio.get_running_loop().create_future()

    with TestApp(shop.app) as tested:
        tested.patience = 0.01
        await wait.enqueue(1)
        assert (await tested.drain()).dead == {"timeout": 1}


async def test_another_lifespan_takes_the_place_of_the_apps_own(shop: Shop) -> None:
    async def fake() -> AsyncGenerator[str]:
        yield "fake"

    with TestApp(shop.app, lifespan=fake) as tested:
        await shop.ship.enqueue(Order(7))
        await tested.drain()

    assert shop.log[0][0] == "fake 7"


@pytest.mark.parametrize("like", ["", "?like=rabbitmq", "?like=sqs", "?like=sqs-fifo"])
async def test_days_of_snoozing_take_no_time_on_any_broker(shop: Shop, like: str) -> None:
    @shop.app.worker("reminders")
    async def remind(number: int) -> None:
        shop.log.append((f"asked {number}", shop.app.clock.now() - 1000))
        if len(shop.log) < 4:
            raise Snooze(43200)

    with TestApp(shop.app, f"memory://{like}") as tested:
        await remind.enqueue(1)
        assert (await tested.drain()).left_delayed == 1
        report = await tested.drain(include_delayed=True)

    assert (report.done, report.snoozed) == (1, 2)
    assert [round(at / 43200) for _, at in shop.log] == [0, 1, 2, 3]


def test_a_program_without_a_loop_is_tested_too(shop: Shop) -> None:
    with TestApp(shop.app) as tested:
        shop.mail.enqueue_sync(to="Ada")
        report = asyncio.run(tested.drain())

    assert report.done == 1


@pytest.mark.slow
async def test_what_nobody_will_run_is_left_alone(shop: Shop) -> None:
    async with TestApp(shop.app) as tested:
        await shop.app.broker().declare(shop.app.queue_specs()[0])
        await shop.app.broker().send("mails", b"", type="unheard-of")
        report = await tested.advance(600)

        assert (report.done, tested.clock.now()) == (0, 1600.0)
        assert (await tested.drain(include_delayed=True)).dead == {"unknown-type": 1}


@pytest.mark.slow
async def test_an_ack_that_is_repeated_keeps_no_test_from_ending(shop: Shop) -> None:
    faults = Faults(seed=7)
    faults.add("ack", LoseAnswer(ConnectionLostError("cut")))
    started = time.monotonic()

    async with TestApp(shop.app, driver=lambda driver: FaultyDriver(driver, faults)) as tested:
        await shop.mail.enqueue(to="ann")
        await tested.drain()

    assert time.monotonic() - started < LONG_PATIENCE

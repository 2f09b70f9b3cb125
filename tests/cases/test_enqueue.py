"""Sending: confirmed when it returns, bounded in memory, and honest about what failed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from brokerwq import App, EnqueueError, QueueSpec
from brokerwq.driver import Difference, Driver
from brokerwq.errors import (
    AuthenticationError,
    ConfigError,
    ConnectionLostError,
    DriverError,
    MessageTooLargeError,
    PayloadError,
    QueueNotFoundError,
    TransientError,
)
from brokerwq.testing import FakeClock
from brokerwq.testing.faults import Fail, Faults, Hang, LoseAnswer, Partly
from tests.cases.lab import Place, counts, declare


class Item(BaseModel):
    n: int
    text: str = ""


@pytest.fixture
def faults(place: Place) -> Faults:
    return Faults(clock=place.clock)


async def test_a_message_is_stored_when_enqueue_returns(both: Place) -> None:
    app, other = both.app(), both.app()

    @app.worker("q")
    async def work(item: Item) -> None:
        raise AssertionError(item)

    message_id = await work.enqueue(Item(n=1))
    assert message_id
    assert await counts(other, "q") == (1, 0, 0, 0)


@pytest.mark.slow
async def test_each_of_many_is_sent_once(both: Place) -> None:
    app = both.app()
    seen: list[int] = []

    @app.worker("q")
    async def work(item: Item) -> None:
        seen.append(item.n)

    report = await work.enqueue_many(Item(n=n) for n in range(1300))
    assert (report.sent, report.failed_count, report.failed) == (1300, 0, ())
    await both.drain(app, slots=1)
    assert sorted(seen) == list(range(1300))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_however_many_are_sent_only_a_few_exist_at_a_time(
    both_slowly: Place, kind: str
) -> None:
    app = both_slowly.app()
    alive: weakref.WeakSet[Item] = weakref.WeakSet()
    most = 0

    class Tracked(Item):
        def __hash__(self) -> int:
            return id(self)

    @app.worker("q")
    async def work(item: Item) -> None:
        raise AssertionError(item)

    def make(n: int) -> Item:
        nonlocal most
        item = Tracked(n=n)
        alive.add(item)
        most = max(most, len(alive))
        return item

    def items() -> Generator[Item]:
        for n in range(6000):
            yield make(n)

    async def items_async() -> AsyncGenerator[Item]:
        for n in range(6000):
            yield make(n)

    gc.collect()
    report = await work.enqueue_many(items() if kind == "sync" else items_async())
    assert report.sent == 6000
    assert most < 3500
    assert (await counts(app, "q"))[0] == 6000


@pytest.mark.slow
async def test_a_slow_broker_holds_back_the_generator(place: Place, faults: Faults) -> None:
    app = place.faulty_app(faults)
    made = 0

    @app.worker("q")
    async def work(item: Item) -> None:
        raise AssertionError(item)

    def items() -> Generator[Item]:
        nonlocal made
        for made in range(1, 100_001):
            yield Item(n=made)

    await declare(app.well, "q", lease=60.0)
    faults.add("send", Hang(), times=None)
    sending = asyncio.create_task(work.enqueue_many(items()))
    await place.passes(1)
    assert 0 < made < 10_000
    sending.cancel()
    await asyncio.wait({sending})
    assert sending.cancelled()


# -- what fails -------------------------------------------------------------------------------


async def test_the_report_names_each_item_that_failed(place: Place, faults: Faults) -> None:
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work(item: Item) -> None:
        pass

    await declare(app.well, "q", lease=60.0)
    faults.add("send", Partly(MessageTooLargeError("too large"), items=(1, 3)), times=1)
    items: list[Any] = [Item(n=0), Item(n=1), "no item", Item(n=3), Item(n=4), Item(n=5)]
    with pytest.raises(EnqueueError) as caught:
        await work.enqueue_many(items)
    report = caught.value.report
    assert (report.sent, report.failed_count) == (3, 3)
    found = [(failed.index, type(failed.error), bool(failed.id)) for failed in report.failed]
    assert found == [
        (1, MessageTooLargeError, True),
        (2, PayloadError, False),
        (4, MessageTooLargeError, True),
    ]
    assert str(caught.value).startswith("3 sent, 3 failed; first: item 1, MessageTooLargeError")
    drained = await place.drain(app)
    assert drained.done == 3

    again = await work.enqueue_many(items, errors="return")
    assert (again.sent, again.failed_count) == (5, 1)


async def test_what_fails_in_passing_is_sent_again_under_its_id(
    place: Place, faults: Faults
) -> None:
    app = place.faulty_app(faults)
    seen: list[str] = []

    @app.worker("q")
    async def work(item: Item) -> None:
        seen.append(f"{item.n}")

    await declare(app.well, "q", lease=60.0)
    faults.add("send", Fail(ConnectionLostError("cut")), times=2)
    faults.add("send", LoseAnswer(TransientError("busy")), times=1)
    faults.add("send", Partly(TransientError("busy"), items=(0,)), times=1)
    ids = [
        await place.drive(work.enqueue(Item(n=1))),
        *[f.id for f in (await place.drive(work.enqueue_many([Item(n=2)]))).failed],
    ]
    assert len(ids) == 1
    await place.drain(app)
    # The answer that got lost made a second copy of one message, under the same id.
    assert sorted(seen) == ["1", "1", "2"]


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (ConnectionLostError("cut"), 10),
        (AuthenticationError("no"), 0),
        (QueueNotFoundError("no such queue"), 0),
    ],
)
async def test_a_broker_that_fails_is_an_error_in_bounded_time(
    place: Place, faults: Faults, error: DriverError, seconds: float
) -> None:
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work(item: Item) -> None:
        pass

    await declare(app.well, "q", lease=60.0)
    faults.add("send", Fail(error), times=None)
    started = place.clock.now()
    with pytest.raises(type(error)):
        await place.drive(work.enqueue(Item(n=1)))
    assert place.clock.now() - started == pytest.approx(seconds, abs=3)
    with pytest.raises(EnqueueError) as caught:
        await place.drive(work.enqueue_many([Item(n=n) for n in range(3)]))
    assert caught.value.report.failed_count == 3


async def test_a_broker_that_hangs_is_an_error_in_bounded_time(
    place: Place, faults: Faults
) -> None:
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work(item: Item) -> None:
        pass

    for operation in ("open", "send"):
        faults.clear()
        faults.add(operation, Hang(), times=None)
        started = place.clock.now()
        with pytest.raises(TransientError, match="answer"):
            await place.drive(work.enqueue(Item(n=1)))
        assert place.clock.now() - started <= 25


async def test_an_adapters_bug_is_one_error_of_ours(place: Place, faults: Faults) -> None:
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work(item: Item) -> None:
        pass

    await declare(app.well, "q", lease=60.0)
    faults.add("send", Fail(ZeroDivisionError("a bug")), times=None)
    with pytest.raises(DriverError, match="a bug"):
        await place.drive(work.enqueue(Item(n=1)))
    with pytest.raises(EnqueueError, match="a bug"):
        await place.drive(work.enqueue_many([Item(n=1)]))


class BrokenError(Exception):
    pass


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_iterable_that_raises_says_so_and_what_came_before_is_sent(
    both: Place, kind: str
) -> None:
    app = both.app()

    @app.worker("q")
    async def work(item: Item) -> None:
        pass

    def items() -> Generator[Item]:
        for n in range(1200):
            yield Item(n=n)
        raise BrokenError

    async def items_async() -> AsyncGenerator[Item]:
        for n in range(1200):
            yield Item(n=n)
        raise BrokenError

    await declare(app, "q", lease=60.0)
    with pytest.raises(BrokenError):
        await work.enqueue_many(items() if kind == "sync" else items_async())
    stored = (await counts(app, "q"))[0]
    assert stored in (1000, 1200)


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"a": 1}, 7, None, Item(n=1)])
async def test_what_is_no_iterable_of_items_is_refused(place: Place, wrong: Any) -> None:
    app = place.app()

    @app.worker("q")
    async def work(item: Item) -> None:
        pass

    with pytest.raises((ConfigError, EnqueueError)):
        await work.enqueue_many(wrong)


async def test_an_empty_iterable_sends_nothing(both: Place) -> None:
    app = both.app()

    @app.worker("q")
    async def work(item: Item) -> None:
        pass

    assert (await work.enqueue_many([])).sent == 0


# -- the low level ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"headers": {"bwq-attempts": "2"}},
        {"headers": {"BWQ-id": "x"}},
        {"headers": {"content-type": "x"}},
        {"headers": {"": "x"}},
        {"headers": {"a": 1}},
        {"headers": {"a": "\ud800"}},
        {"headers": {"x" * 300: "x"}},
    ],
)
async def test_a_header_that_cannot_travel_is_refused_before_anything_is_sent(
    both: Place, wrong: Any
) -> None:
    app = both.app()
    await declare(app, "q")
    with pytest.raises(ConfigError, match="header"):
        await app.broker().send("q", b"x", **wrong)
    assert await counts(app, "q") == (0, 0, 0, 0)


async def test_a_queue_that_nobody_declared_is_an_error_not_a_loss(both: Place) -> None:
    app = both.app()
    with pytest.raises(QueueNotFoundError, match="nope"):
        await app.broker().send("nope", b"x")
    with pytest.raises(QueueNotFoundError, match="nope"):
        await app.broker().inspect("nope")


async def test_a_producer_that_only_declares_its_queue_needs_no_worker(both: Place) -> None:
    app = both.app(queues=[QueueSpec(name="q")])
    await app.broker().send("q", b"x")
    assert await counts(app, "q") == (1, 0, 0, 0)


async def test_a_worker_that_is_added_to_an_open_app_has_its_queue_made(both: Place) -> None:
    async with both.app() as app:

        @app.worker("late")
        async def late(n: int) -> None: ...

        await late.enqueue(1)

        assert await counts(app, "late") == (1, 0, 0, 0)


async def test_many_first_senders_have_their_queue_made_once() -> None:
    app = App("memory://")
    declared: list[str] = []

    def watched(driver: Driver) -> Driver:
        declare = driver.declare

        async def noting(spec: QueueSpec, /, *, check_only: bool = False) -> Sequence[Difference]:
            declared.append(spec.name)
            await asyncio.sleep(0)
            return await declare(spec, check_only=check_only)

        driver.declare = noting  # type: ignore[method-assign]
        return driver

    @app.worker("q")
    async def work(n: int) -> None: ...

    async with app.on("memory://many-first-senders", driver=watched):
        await asyncio.gather(*(work.enqueue(n) for n in range(100)))
        assert await counts(app, "q") == (100, 0, 0, 0)
    assert declared == ["q"]


async def test_all_who_wait_for_a_broker_that_is_away_hear_of_it_together() -> None:
    app, clock = App("memory://"), FakeClock()

    def away(driver: Driver) -> Driver:
        async def refuse() -> None:
            raise ConnectionLostError("nobody there")

        driver.open = refuse  # type: ignore[method-assign]
        return driver

    @app.worker("q")
    async def work(n: int) -> None: ...

    started = clock.now()
    async with app.on("memory://away", driver=away, clock=clock):
        sending = asyncio.gather(*(work.enqueue(n) for n in range(50)), return_exceptions=True)
        answers = await clock.drive(_answer(sending))
        assert [type(answer) for answer in answers] == [ConnectionLostError] * 50
    assert clock.now() - started <= app.settings.connect_timeout


async def _answer(sending: asyncio.Future[list[Any]]) -> list[Any]:
    return await sending

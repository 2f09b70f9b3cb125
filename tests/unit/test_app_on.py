"""An app is put on another broker for the length of a block, and comes back whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from brokerwq import App, Job, Tx
from brokerwq.clock import SystemClock
from brokerwq.driver import Driver
from brokerwq.errors import ConfigError, QueueNotFoundError
from brokerwq.events import Event, JobEnded
from brokerwq.testing import FakeClock
from brokerwq.testing.faults import FaultyDriver


class Greeter:
    def __init__(self, folder: Path) -> None:
        self.app = app = App(f"sqlite:///{folder / 'jobs.db'}")

        @app.lifespan
        async def resources() -> AsyncGenerator[list[str]]:  # pyright: ignore[reportUnusedFunction]
            yield []

        @app.worker("greetings")
        async def greet(job: Job, *, name: str) -> None:
            job.state.append(name)

        self.greet = greet


def new_app(folder: Path) -> App:
    return Greeter(folder).app


async def test_what_is_sent_within_the_block_goes_to_the_other_broker(tmp_path: Path) -> None:
    app = new_app(tmp_path)

    async with app.on("memory://there") as moved:
        assert moved is app
        assert app.url == "memory://there"
        await app.broker().declare(app.queue_specs()[0])
        await app.broker().send("greetings", b"{}", type="greet")
        assert (await app.broker().inspect("greetings")).ready.value == 1

    assert app.url.startswith("sqlite:")
    with pytest.raises(QueueNotFoundError):
        await app.broker().inspect("greetings")
    await app.aclose()


@pytest.mark.slow
async def test_a_worker_that_was_decorated_before_runs_there_on_the_other_clock(
    tmp_path: Path,
) -> None:
    greeter = Greeter(tmp_path)
    app = greeter.app
    clock = FakeClock()
    state: list[str] = []
    seen: list[Event] = []

    async def other() -> AsyncGenerator[list[str]]:
        yield state

    async with app.on("memory://", clock=clock, lifespan=other, telemetry=seen.append):
        assert app.clock is clock
        await greeter.greet.options(delay=300).enqueue(name="Ada")
        report = await clock.drive(app.drain())

    assert (report.done, state) == (1, ["Ada"])
    assert 300 <= report.seconds < 310
    assert [event.outcome for event in seen if isinstance(event, JobEnded)] == ["done"]
    assert isinstance(app.clock, SystemClock)


def test_a_program_without_a_loop_sends_there_too(tmp_path: Path) -> None:
    greeter = Greeter(tmp_path)
    drivers: list[Driver] = []

    def wrapped(driver: Driver) -> Driver:
        drivers.append(FaultyDriver(driver))
        return drivers[-1]

    with greeter.app.on("memory://", driver=wrapped):
        greeter.greet.enqueue_sync(name="Ada")

    assert len(drivers) == 1


async def test_what_a_thread_has_opened_there_is_closed_at_the_end(tmp_path: Path) -> None:
    greeter = Greeter(tmp_path)
    app = greeter.app

    async with app.on("memory://"):
        await asyncio.to_thread(greeter.greet.enqueue_sync, name="Ada")
        place = app.place
        assert place.is_connected

    assert not place.is_connected


async def test_blocks_within_blocks_end_in_their_order(tmp_path: Path) -> None:
    app = new_app(tmp_path)

    async with app.on("memory://one"):
        async with app.on("memory://two"):
            assert app.url == "memory://two"
        assert app.url == "memory://one"


async def test_the_app_comes_back_though_the_block_fails(tmp_path: Path) -> None:
    app = new_app(tmp_path)

    with pytest.raises(LookupError):
        async with app.on("memory://"):
            raise LookupError

    assert app.url.startswith("sqlite:")


async def test_a_block_is_entered_once(tmp_path: Path) -> None:
    there = new_app(tmp_path).on("memory://")

    with there:
        pass
    with pytest.raises(ConfigError, match="once"):
        there.__enter__()


async def test_a_wrong_url_leaves_the_app_where_it_is(tmp_path: Path) -> None:
    app = new_app(tmp_path)

    with pytest.raises(ConfigError, match="nowhere"):
        app.on("nowhere://").__enter__()

    assert app.url.startswith("sqlite:")


@pytest.mark.slow
async def test_keys_are_kept_in_the_other_store(tmp_path: Path) -> None:
    app = App("memory://", store=f"sqlite:///{tmp_path / 'keys.db'}", name="shop")
    done: list[str] = []

    @app.worker("orders", once="transactional")
    async def ship(job: Job, tx: Tx, order: str) -> None:
        assert job.tx is tx
        done.append(order)

    store = app.store
    async with app.on("memory://", clock=FakeClock(), store=f"sqlite:///{tmp_path / 'other.db'}"):
        assert app.store is not store
        await ship.enqueue("7")
        assert isinstance(app.clock, FakeClock)
        assert (await app.clock.drive(app.drain(), threshold=0.05)).done == 1

    assert app.store is store
    assert (tmp_path / "other.db").exists()
    assert not (tmp_path / "keys.db").exists()


async def test_a_store_for_an_app_without_one_is_refused(tmp_path: Path) -> None:
    app = new_app(tmp_path)

    with pytest.raises(ConfigError, match="store"):
        app.on("memory://", store=f"sqlite:///{tmp_path / 'keys.db'}").__enter__()

    assert app.url.startswith("sqlite:")

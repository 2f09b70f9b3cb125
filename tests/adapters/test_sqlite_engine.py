"""Group commit, and lives of drivers: loops, threads, ends, forks."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from brokerwq_sqlite.engine import Engine

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import QueueSpec
from brokerwq.errors import ClosedError, DriverError, ProtocolError, QueueNotFoundError
from tests.adapters.sqlite_lab import QUEUE, Lab, ids, is_parked, messages, send, until_parked

forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class Blocked:
    """An engine whose thread is kept busy, so that what is submitted meanwhile is one group."""

    def __init__(self, lab: Lab) -> None:
        self.engine = Engine(lab.build()._settings, SYSTEM_CLOCK)  # type: ignore[attr-defined]
        self._go_on = threading.Event()

    async def __aenter__(self) -> Engine:
        self.engine.start()
        is_busy = threading.Event()

        def block(_: object, __: object) -> None:
            is_busy.set()
            self._go_on.wait(10)

        self._blocking = asyncio.ensure_future(self.engine.call(block))
        await asyncio.to_thread(is_busy.wait, 10)
        return self.engine

    def let_go(self) -> None:
        self._go_on.set()

    async def __aexit__(self, *_: object) -> None:
        self._go_on.set()
        await self._blocking
        await self.engine.stop()


def do(engine: Engine, statement: str, *parameters: str) -> asyncio.Task[int]:
    return asyncio.ensure_future(
        engine.call(lambda db, _: db.execute(statement, parameters).rowcount, writes=True)
    )


@pytest.mark.slow
async def test_what_waits_together_is_committed_together(lab: Lab) -> None:
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name=QUEUE))
    lab.sql("CREATE TABLE note (text TEXT)")
    seen: list[list[tuple[object, ...]]] = []

    blocked = Blocked(lab)
    async with blocked as engine:

        def add(text: str) -> asyncio.Task[int]:
            return do(engine, "INSERT INTO note VALUES (?)", text)

        def peek(*_: object) -> None:
            seen.append(lab.sql("SELECT text FROM note"))

        first = add("first")
        looking = asyncio.ensure_future(engine.call(peek, writes=True))
        last = add("last")
        await asyncio.sleep(0)
        blocked.let_go()
        await asyncio.gather(first, looking, last)

    assert seen == [[]]
    assert lab.sql("SELECT text FROM note") == [("first",), ("last",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("INSERT INTO nowhere VALUES (1)", ProtocolError),
        ("INSERT INTO message (seq) VALUES (NULL)", ProtocolError),
        ("PRAGMA max_page_count = 1; INSERT INTO note VALUES ('x')", DriverError),
    ],
)
async def test_one_that_fails_does_not_spoil_the_others_of_its_group(
    lab: Lab, statement: str, error: type[DriverError]
) -> None:
    lab.sql("SELECT 1")
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name=QUEUE))
    lab.sql("CREATE TABLE note (text TEXT)")

    blocked = Blocked(lab)
    async with blocked as engine:
        tasks = [
            do(engine, "INSERT INTO note VALUES ('before')"),
            do(engine, statement),
            do(engine, "INSERT INTO note VALUES ('after')"),
        ]
        await asyncio.sleep(0)
        blocked.let_go()
        results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [isinstance(result, error) for result in results] == [False, True, False]
    assert sorted(lab.sql("SELECT text FROM note")) == [("after",), ("before",)]


async def test_a_bug_in_one_operation_is_an_answer_and_not_the_end_of_the_thread(lab: Lab) -> None:
    blocked = Blocked(lab)
    async with blocked as engine:
        blocked.let_go()

        with pytest.raises(DriverError) as caught:
            await engine.call(lambda _, __: 1 // 0, writes=True)

        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert not caught.value.retryable
        assert await engine.call(lambda _, __: "alive") == "alive"


async def test_sends_to_a_missing_queue_fail_beside_those_that_succeed(lab: Lab) -> None:
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name=QUEUE))

        results = await asyncio.gather(
            *(driver.send(queue, messages("1"), [0.0]) for queue in [QUEUE, "nowhere"] * 20),
            return_exceptions=True,
        )

        assert [isinstance(result, QueueNotFoundError) for result in results] == [False, True] * 20
        assert (await driver.inspect(QUEUE)).ready.value == 20


@pytest.mark.slow
async def test_a_send_of_its_own_or_a_neighbours_driver_wakes_a_claim_without_polling(
    lab: Lab,
) -> None:
    async with lab.driver("?poll=1") as driver, lab.driver() as neighbour:
        await driver.declare(QueueSpec(name=QUEUE))
        consumer = await driver.consume(QUEUE, lease=30, prefetch=1)
        for sender in (driver, neighbour):
            waiting = asyncio.ensure_future(consumer.claim(1, 10))
            await until_parked(driver)
            # Just after a look, so that the next one is far away.
            await asyncio.sleep(0.05)
            await send(sender, "1")
            sent_at = time.monotonic()
            await waiting

            assert time.monotonic() - sent_at < 0.5


async def test_a_cancelled_claim_waits_no_longer(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        waiting = asyncio.ensure_future(consumer.claim(1, 60))
        await until_parked(driver)
        waiting.cancel()

        await until(lambda: not is_parked(driver))


def test_one_driver_serves_two_loops_one_after_the_other(lab: Lab) -> None:
    driver = lab.build()

    async def first() -> None:
        await driver.open()
        await driver.declare(QueueSpec(name=QUEUE))
        await send(driver, "1")

    async def second() -> list[str]:
        consumer = await driver.consume(QUEUE, lease=30, prefetch=1)
        found = await consumer.claim(1, 5)
        await driver.aclose()
        return ids(found)

    asyncio.run(first())

    assert asyncio.run(second()) == ["1"]


def test_what_a_closed_loop_claimed_is_given_back(lab: Lab) -> None:
    driver = lab.build()

    async def leave_a_claim_behind() -> None:
        await driver.open()
        await driver.declare(QueueSpec(name=QUEUE))
        consumer = await driver.consume(QUEUE, lease=3600, prefetch=1)
        waiting = asyncio.ensure_future(consumer.claim(1, 3600))
        await until_parked(driver)
        assert not waiting.done()

    async def claim() -> list[str]:
        await send(driver, "1")
        consumer = await driver.consume(QUEUE, lease=3600, prefetch=1)
        found = await consumer.claim(1, 10)
        await driver.aclose()
        return ids(found)

    asyncio.run(leave_a_claim_behind())

    assert asyncio.run(claim()) == ["1"]


async def test_a_second_thread_may_use_the_driver_from_its_own_loop(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        waiting = asyncio.ensure_future(consumer.claim(1, 10))
        await until_parked(driver)

        await asyncio.to_thread(asyncio.run, send(driver, "1"))

        assert ids(await waiting) == ["1"]


async def test_opening_twice_is_opening_once(lab: Lab) -> None:
    before = threading.active_count()
    async with lab.driver() as driver:
        await driver.open()

        assert threading.active_count() == before + 1


async def test_a_closed_driver_refuses_work_and_leaves_no_thread(lab: Lab) -> None:
    others = engine_threads()
    async with lab.consumer() as (driver, consumer):
        waiting = asyncio.ensure_future(consumer.claim(1, 60))
        await until_parked(driver)
        await driver.aclose()
        await driver.aclose()

        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await driver.queues()
        with pytest.raises(ClosedError):
            await consumer.claim(1, 0)
        await until(lambda: not set(engine_threads()) - set(others))


@pytest.mark.slow
async def test_a_forgotten_driver_ends_its_thread(lab: Lab) -> None:
    others = engine_threads()
    driver = lab.build()
    await driver.open()
    assert set(engine_threads()) - set(others)

    del driver
    gc.collect()

    await until(lambda: not set(engine_threads()) - set(others))


@pytest.mark.slow
async def test_a_consumer_keeps_its_driver_alive(lab: Lab) -> None:
    async def consume() -> object:
        driver = lab.build()
        await driver.open()
        await driver.declare(QueueSpec(name=QUEUE))
        await send(driver, "1")
        return await driver.consume(QUEUE, lease=30, prefetch=1)

    consumer = await consume()
    gc.collect()

    assert ids(await consumer.claim(1, 0)) == ["1"]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_process_that_closes_nothing_still_ends_and_folds_its_log_in(lab: Lab) -> None:
    output = lab.run(
        """
        async def main():
            global driver
            driver = await opened(sys.argv[1])
            await driver.declare(QueueSpec(name="q"))
            await driver.send("q", [Message(id="1", body=b"")], [0.0])
            consumer = await driver.consume("q", lease=30, prefetch=1)
            await consumer.claim(1, 0)
            asyncio.ensure_future(consumer.claim(1, 3600))
            await asyncio.sleep(0.05)
        asyncio.run(main())
        print("end")
        """
    )

    assert output == "end\n"
    assert not lab.path.with_name("jobs.db-wal").exists()


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a forked child that does ``work``."""
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            code = 0 if work() in {None, True} else 2
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@forks
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="cannot look at open files")
async def test_a_forked_child_inherits_no_connection(lab: Lab) -> None:
    async with lab.consumer() as (driver, _):
        await send(driver, "1")
        assert files_open_in(lab.path.parent)

        assert await asyncio.to_thread(in_child, lambda: not files_open_in(lab.path.parent)) == 0


def files_open_in(folder: Path) -> list[str]:
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(descriptor.readlink()))
    return [target for target in found if target.startswith(str(folder))]


@forks
async def test_a_forked_child_is_told_to_open_its_own_driver(lab: Lab) -> None:
    async with lab.consumer() as (driver, _):

        def use() -> bool:
            try:
                asyncio.run(send(driver, "from the child"))
            except ClosedError as exc:
                return "fork" in str(exc)
            return False

        # A child forked beside a running loop would inherit its being "running".
        assert await asyncio.to_thread(in_child, use) == 0


@forks
async def test_a_forked_child_may_open_the_same_driver_again(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        waiting = asyncio.ensure_future(consumer.claim(1, 10))
        await until_parked(driver)

        def use() -> None:
            async def main() -> None:
                await driver.open()
                await send(driver, "from the child")
                await driver.aclose()

            asyncio.run(main())

        code = await asyncio.to_thread(in_child, use)

        assert code == 0
        assert ids(await waiting) == ["from the child"]
        await send(driver, "from the parent")
        assert ids(await consumer.claim(1, 0)) == ["from the parent"]


@pytest.mark.slow
@forks
async def test_forking_under_load_harms_neither_side(lab: Lab) -> None:
    children, each = 5, 20
    async with lab.consumer() as (driver, consumer):
        is_over = False

        async def keep_busy() -> int:
            sent = 0
            while not is_over:
                await send(driver, *(f"parent-{sent}-{nth}" for nth in range(10)))
                sent += 10
            return sent

        def use() -> None:
            async def main() -> None:
                async with lab.driver() as own:
                    for nth in range(each):
                        await send(own, f"child-{os.getpid()}-{nth}")

            asyncio.run(main())

        busy = asyncio.ensure_future(keep_busy())
        codes = [await asyncio.to_thread(in_child, use) for _ in range(children)]
        is_over = True
        expected = await busy + children * each
        found: list[str] = []
        while deliveries := await consumer.claim(500, 0):
            found += ids(deliveries)

        assert codes == [0] * children
        assert len(found) == len(set(found)) == expected
    assert lab.is_sound()


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "brokerwq-sqlite"]


async def until(condition: Callable[[], bool], patience: float = 10.0) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)

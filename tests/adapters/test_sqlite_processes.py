"""Several processes on one file: nothing twice, nothing lost, nothing broken, nothing burnt."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from brokerwq.driver import QueueSpec
from tests.adapters.sqlite_lab import QUEUE, Lab, ids, send, until_parked

CLAIMER = """
async def drain(driver):
    consumer = await driver.consume("q", lease=60, prefetch=1)
    while deliveries := await consumer.claim(5, 0):
        for delivery in deliveries:
            print(delivery.message.id, delivery.receives)
        assert await consumer.ack(deliveries) == [None] * len(deliveries)

async def main():
    driver = await opened(sys.argv[1])
    await driver.declare(QueueSpec(name="q"))
    input()
    await asyncio.gather(*(drain(driver) for _ in range(4)))
    await driver.aclose()

asyncio.run(main())
"""

WORKER = """
log = os.open(sys.argv[2], os.O_APPEND | os.O_CREAT | os.O_WRONLY)

def note(word, messages):
    os.write(log, "".join(f"{word} {message.id}\\n" for message in messages).encode())

async def main():
    driver = await opened(sys.argv[1])
    await driver.declare(QueueSpec(name="q"))
    consumer = await driver.consume("q", lease=60, prefetch=1)
    for turn in range(1_000_000):
        some = [
            Message(id=f"{os.getpid()}-{turn}-{nth}", body=os.urandom(7000 if nth == 3 else 50))
            for nth in range(10)
        ]
        await driver.send("q", some, [0.0] * 10)
        note("sent", some)
        deliveries = await consumer.claim(9, 0)
        note("acking", [delivery.message for delivery in deliveries])
        await consumer.ack(deliveries)
        note("acked", [delivery.message for delivery in deliveries])

asyncio.run(main())
"""


@contextmanager
def disturbed(lab: Lab) -> Generator[None]:
    """A foreign writer, a reader that holds its transaction, and a backup, all at once."""
    is_over = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(lab.path, isolation_level=None, timeout=30)) as connection:
            connection.execute("CREATE TABLE foreign_note (text TEXT)")
            while not is_over.wait(0.005):
                connection.execute("INSERT INTO foreign_note VALUES ('x')")

    def read() -> None:
        with closing(sqlite3.connect(lab.path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM message").fetchone()
            is_over.wait()

    def back_up() -> None:
        while not is_over.wait(0.1):
            with (
                closing(sqlite3.connect(lab.path, timeout=30)) as source,
                closing(sqlite3.connect(lab.path.with_suffix(".copy"))) as target,
            ):
                source.backup(target, pages=50)

    threads = [threading.Thread(target=each) for each in (write, read, back_up)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
def test_eight_processes_claim_every_message_once_whatever_else_goes_on(lab: Lab) -> None:
    count = 1500
    with ExitStack() as stack:
        # They make the file together: that, too, must go well.
        claimers = [
            stack.enter_context(lab.start(CLAIMER, stdin=subprocess.PIPE)) for _ in range(8)
        ]
        asyncio.run(fill(lab, count))
        with disturbed(lab):
            answers = [claimer.communicate("\n", timeout=60) for claimer in start_all(claimers)]

    assert [errors for _, errors in answers if errors] == []
    claimed = [line for output, _ in answers for line in output.splitlines()]
    assert sorted(claimed) == sorted(f"{nth} 1" for nth in range(count))
    assert lab.is_sound()


def start_all(claimers: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    for claimer in claimers:
        assert claimer.stdin is not None
        claimer.stdin.write("\n")
        claimer.stdin.flush()
    return claimers


async def fill(lab: Lab, count: int) -> None:
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        for start in range(0, count, 500):
            await send(driver, *map(str, range(start, start + 500)))


@pytest.mark.slow
def test_a_kill_at_any_instant_leaves_a_sound_file_and_loses_nothing(
    lab: Lab, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    chance = random.Random(7)  # noqa: S311
    workers = [lab.start(WORKER, str(log)) for _ in range(3)]
    try:
        wait_for_work(lab)
        for _ in range(6):
            time.sleep(chance.uniform(0.02, 0.15))
            nth = chance.randrange(len(workers))
            kill(workers[nth])
            assert lab.is_sound()
            workers[nth] = lab.start(WORKER, str(log))
    finally:
        for worker in workers:
            kill(worker)

    assert lab.is_sound()
    notes: dict[str, set[str]] = {"sent": set(), "acking": set(), "acked": set()}
    for line in log.read_text().splitlines():
        word, identifier = line.split()
        notes[word].add(identifier)
    present = {str(identifier) for (identifier,) in lab.sql("SELECT id FROM message")}
    assert notes["sent"]
    assert notes["acked"]
    assert notes["sent"] - notes["acking"] <= present
    assert not notes["acked"] & present
    assert lab.sql("SELECT count(*) FROM large_body") == lab.sql(
        "SELECT count(*) FROM message WHERE body IS NULL"
    )


def wait_for_work(lab: Lab) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with suppress(sqlite3.OperationalError):  # not made yet
            if lab.sql("SELECT max(seq) > 50 FROM message") == [(1,)]:
                return
        time.sleep(0.01)
    raise TimeoutError


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert not errors


@pytest.mark.slow
async def test_a_kill_while_a_database_is_made_leaves_one_that_can_be_made(lab: Lab) -> None:
    for turn in range(4):
        process = lab.start("asyncio.run(opened(sys.argv[1]))")
        end = time.monotonic() + 30
        while not lab.path.exists() and time.monotonic() < end:
            await asyncio.sleep(0)
        await asyncio.sleep(turn * 0.001)
        kill(process)

        async with lab.driver() as driver:
            assert await driver.queues() == []
        for path in lab.path.parent.iterdir():
            path.unlink()


@pytest.mark.slow
async def test_a_send_by_another_process_wakes_a_waiting_claim_soon(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        claim = asyncio.ensure_future(consumer.claim(1, 60))
        await until_parked(driver)
        sender = lab.start(
            """
            async def main():
                driver = await opened(sys.argv[1])
                input()
                await driver.send("q", [Message(id="1", body=b"")], [0.0])
                print(time.monotonic(), flush=True)
                await driver.aclose()
            asyncio.run(main())
            """,
            stdin=subprocess.PIPE,
        )
        communicating = asyncio.create_task(asyncio.to_thread(sender.communicate, "\n"))

        assert ids(await claim) == ["1"]
        woken_at = time.monotonic()

        output, _ = await communicating
        # 50 ms are promised, and measured by benchmarks/sqlite_driver.py; a busy machine
        # that runs tests needs more.
        assert woken_at - float(output) < 1.0


@pytest.mark.slow
async def test_a_waiting_claim_burns_next_to_nothing(lab: Lab) -> None:
    async with lab.consumer() as (_, consumer):
        before = cpu_seconds()

        assert not await consumer.claim(1, 1.0)

        # Well below 1 % is promised, and measured by the benchmark; see above.
        assert cpu_seconds() - before < 0.2


@pytest.mark.slow
async def test_an_open_driver_that_does_nothing_sleeps(lab: Lab) -> None:
    async with lab.consumer():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        await asyncio.sleep(0.3)

        assert resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before < 10


def cpu_seconds() -> float:
    return time.process_time()


@pytest.mark.slow
def test_a_backlog_of_a_million_costs_a_claim_no_more(lab: Lab) -> None:
    async def cost(count: int) -> float:
        async with lab.consumer(lease=600) as (driver, consumer):
            batch = [str(nth) for nth in range(500)]
            for _ in range(count // 500):
                await send(driver, *batch)
            for _ in range(20):
                await consumer.claim(500, 0)
            start = cpu_seconds()
            for _ in range(60):
                await consumer.ack(await consumer.claim(100, 0))
            used = cpu_seconds() - start
            await driver.purge(QUEUE)
            return used

    small = min(asyncio.run(cost(20_000)) for _ in range(3))
    large = asyncio.run(cost(1_000_000))

    assert large < small * 1.5

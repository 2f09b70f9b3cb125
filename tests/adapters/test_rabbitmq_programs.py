"""``brokerwq run`` on RabbitMQ: what it says, how it stops, and with which exit code."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from brokerwq.testing.servers.node import RabbitNode
from tests.adapters.producers import check_silence
from tests.adapters.rabbit import RELEASES, Lab, opened, server_or_skip
from tests.adapters.rabbit_runs import RabbitSite, is_free
from tests.adapters.test_rabbitmq_topology import make
from tests.cases.lab import PATIENCE
from tests.cases.site import supervised

pytestmark = pytest.mark.slow

TERM = signal.SIGTERM


@pytest.fixture(params=RELEASES)
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(server_or_skip(request.param))


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Generator[RabbitSite]:
    site = RabbitSite(tmp_path, broker=lab.url, queue=lab.name())
    yield site
    site.close()


async def test_a_job_that_outlives_its_grace_is_free_at_once_and_uncounted(
    site: RabbitSite,
) -> None:
    site.attempts = 1
    await site.fill({"n": 1, "seconds": 60})
    process = site.start("run", site.queue, "--grace", "0.5")
    site.until_started()

    process.send_signal(TERM)
    asked = time.monotonic()
    code, said = site.finish(process)

    assert code == 0, said
    assert time.monotonic() - asked < 3
    assert await site.left() == (1, 0, 0)
    assert await is_free(site.url, site.queue)
    second = site.start("run", site.queue, "--grace", "0")
    site.until_started(2)
    assert [note.attempt for note in site.notes("start")] == [1, 1]
    second.send_signal(TERM)
    assert site.finish(second)[0] == 0
    assert await site.left() == (1, 0, 0)


async def test_leases_are_kept_for_as_long_as_a_stop_takes(site: RabbitSite) -> None:
    site.lease = 1.0
    await site.fill({"n": 1, "seconds": 2.5})
    first = site.start("run", site.queue, "--grace", "20")
    site.until_started()
    second = site.start("run", site.queue)
    first.send_signal(TERM)
    await site.fill({"n": 2})
    assert site.finish(first)[0] == 0
    site.until(lambda: any(note.n == 2 for note in site.notes("end")))
    second.send_signal(TERM)
    assert site.finish(second)[0] == 0

    mine = [(note.what, note.pid, note.attempt) for note in site.notes() if note.n == 1]
    assert mine == [("start", first.pid, 1), ("end", first.pid, 1)]
    assert {note.pid for note in site.notes() if note.n == 2} == {second.pid}
    assert await site.left() == (0, 0, 0)


async def test_a_second_signal_does_not_wait_and_leaves_nothing_held(site: RabbitSite) -> None:
    await site.fill({"n": 1, "act": "ignore", "seconds": 60}, {"n": 2, "seconds": 60})
    process = site.start("run", site.queue, "--grace", "60")
    site.until_started(2)

    process.send_signal(TERM)
    await asyncio.sleep(0.3)
    assert process.poll() is None
    process.send_signal(TERM)
    asked = time.monotonic()
    code, said = site.finish(process)

    assert time.monotonic() - asked < 2.5
    assert code == 128 + TERM, said
    assert await site.left() == (2, 0, 0)
    assert await is_free(site.url, site.queue)


async def test_a_handler_that_blocks_the_loop_keeps_its_message(site: RabbitSite) -> None:
    site.lease = 1.5
    site.broker += "?heartbeat=1"  # silent for two to three of these, a connection is ended
    await site.fill({"n": 1, "act": "block", "seconds": 4})
    processes = [site.start("run", site.queue) for _ in range(2)]
    site.until(lambda: site.notes("end"))
    for process in processes:
        process.send_signal(TERM)
    said = [site.finish(process) for process in processes]

    assert [code for code, _ in said] == [0, 0], said
    assert [(note.what, note.attempt) for note in site.notes()] == [("start", 1), ("end", 1)]
    assert any("event loop blocked" in text for _, text in said)
    assert await site.left() == (0, 0, 0)


async def test_a_process_that_dies_takes_nobody_with_it(site: RabbitSite) -> None:
    site.attempts = 2
    await site.fill(
        *({"n": n, "act": "exit" if n == 3 else "", "seconds": 0.05} for n in range(12))
    )

    async def is_over() -> bool:
        return len({note.n for note in site.notes("end")}) == 11 and (await site.left())[2] > 0

    with supervised(site, "run", site.queue, "--slots", "8", restarts=4) as look:
        give_up_at = time.monotonic() + PATIENCE
        while not await is_over():
            assert time.monotonic() < give_up_at, site.notes()
            look()
            await asyncio.sleep(0.05)

    assert [note.attempt for note in site.notes("start") if note.n == 3] == [1, 2]
    assert {note.n for note in site.notes("end")} == set(range(12)) - {3}
    assert await site.left() == (0, 0, 1)


async def test_other_arguments_end_the_start_with_every_difference(
    lab: Lab, site: RabbitSite
) -> None:
    await make(lab, site.queue, x_queue_type="quorum", x_delivery_limit=5)

    code, said = site.finish(site.start("run", site.queue))

    assert code == 4
    [line] = [line for line in said.splitlines() if "x-delivery-limit" in line]
    for word in ("is 5, wanted 100", "x-dead-letter-exchange", "x-overflow", "set_policy"):
        assert word in line
    async with opened(lab.url) as driver:
        assert not await driver._control.exists(f"{site.queue}-dead")  # pyright: ignore[reportPrivateUsage]


async def test_a_queue_made_anew_with_other_arguments_ends_the_run(
    lab: Lab, site: RabbitSite
) -> None:
    await site.fill({"n": 1})
    process = site.start("run", site.queue)
    site.until(lambda: site.notes("end"))

    await lab.delete(site.queue)
    await asyncio.sleep(1.0)  # 3.10 moves consumers over to a queue that is back at once
    await make(lab, site.queue, x_queue_type="quorum", x_delivery_limit=7)
    code, said = site.finish(process, within=10)

    assert code == 4
    assert "x-delivery-limit is 7, wanted 100" in said


async def refused(site: RabbitSite, url: str) -> str:
    """The one line that ``run`` says to people about ``url`` before it exits with 3."""
    site.broker = url
    started = time.monotonic()
    code, said = await asyncio.to_thread(site.finish, site.start("run", site.queue))
    assert time.monotonic() - started < 5
    assert code == 3, said
    assert "secret" not in said
    *_, line = said.splitlines()
    assert sum(text.startswith("brokerwq: ") for text in said.splitlines()) <= 2, said
    return line


async def test_what_waiting_cannot_mend_is_one_line_and_an_exit(
    tmp_path: Path, tls_node: tuple[RabbitNode, int, Path]
) -> None:
    node, port, authority = tls_node
    site = RabbitSite(tmp_path, queue="q")
    url = node.url

    lines = [
        await refused(site, url.replace("guest:guest", "guest:secret")),
        await refused(site, f"{url}nowhere"),
        await refused(site, url.replace("amqp:", "amqps:")),
        await refused(site, f"amqp://guest:secret@127.0.0.1:{port}/"),
        await refused(site, f"amqps://guest:secret@127.0.0.1:{port}/?cafile={authority}"),
    ]

    assert "refuses user 'guest' or the password" in lines[0]
    assert "virtual host 'nowhere'" in lines[1]
    assert "write amqp://" in lines[2]
    assert "write amqps://" in lines[3]
    assert "127.0.0.1" in lines[4]
    assert "certificate" in lines[4].lower()


async def test_a_stop_is_heard_while_nobody_answers(tmp_path: Path) -> None:
    site = RabbitSite(tmp_path, broker="amqp://guest:secret@no-such-host.invalid/", queue="q")
    process = site.start("run", site.queue)
    await asyncio.sleep(3.0)
    assert process.poll() is None

    process.send_signal(TERM)
    asked = time.monotonic()
    code, said = site.finish(process)

    assert code == 0
    assert time.monotonic() - asked < 2.5
    assert said.count("broker unreachable") <= 4
    assert "secret" not in said


def test_a_program_that_only_sends_ends_without_a_word(lab: Lab) -> None:
    check_silence(lab.url, lab.name())

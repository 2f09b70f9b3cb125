"""Stopping, as an orchestrator or a person at a terminal sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from brokerwq import QueueSpec, connect
from tests.cases.site import Site

pytestmark = pytest.mark.slow

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.fixture
def site(tmp_path: Path) -> Generator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


async def test_a_job_that_outlives_its_grace_is_free_at_once_and_uncounted(site: Site) -> None:
    site.attempts = 1
    await site.send("q", {"n": 1, "seconds": 60})
    process = site.start("run", "--grace", "1")
    site.until_started()

    process.send_signal(TERM)
    asked = time.monotonic()
    code, said = site.finish(process)

    assert code == 0, said
    assert time.monotonic() - asked < 3
    assert await site.counts() == (1, 0, 0, 0)
    assert [note.what for note in site.notes()] == ["start", "cancelled"]

    second = site.start("run", "--grace", "0")
    site.until_started(2)
    assert site.notes("start")[1].attempt == 1
    second.send_signal(TERM)
    assert site.finish(second)[0] == 0
    assert await site.counts() == (1, 0, 0, 0)


@pytest.mark.parametrize("number", [TERM, INT])
async def test_running_jobs_end_within_the_grace_and_nothing_new_begins(
    site: Site, number: int
) -> None:
    await site.send("q", *({"n": n, "seconds": 0.8} for n in range(10)))
    process = site.start("run", "--slots", "2", "--grace", "20")
    site.until_started(2)

    process.send_signal(number)
    code, said = site.finish(process)

    assert code == 0, said
    assert "2 done" in said
    assert [note.what for note in site.notes()] == ["start", "start", "end", "end"]
    assert await site.counts() == (8, 0, 0, 0)


async def test_leases_are_kept_for_as_long_as_a_stop_takes(site: Site) -> None:
    site.lease = 1.0
    await site.send("q", {"n": 1, "seconds": 4})
    first = site.start("run", "--grace", "20")
    site.until_started()
    second = site.start("run")
    first.send_signal(TERM)
    asked = time.monotonic()
    await site.send("q", {"n": 2})
    assert site.finish(first)[0] == 0
    took = time.monotonic() - asked
    site.until(lambda: any(note.n == 2 for note in site.notes("end")))
    second.send_signal(TERM)
    assert site.finish(second)[0] == 0

    mine = [(note.what, note.pid, note.attempt) for note in site.notes() if note.n == 1]
    assert mine == [("start", first.pid, 1), ("end", first.pid, 1)]
    assert {note.pid for note in site.notes() if note.n == 2} == {second.pid}
    assert took < 5.5
    assert await site.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("signals", [(TERM, TERM), (INT, TERM), (TERM, INT), (INT, INT)])
async def test_a_second_signal_does_not_wait_for_a_handler_that_ignores_it(
    site: Site, signals: tuple[int, int]
) -> None:
    await site.send("q", {"n": 1, "act": "ignore", "seconds": 60}, {"n": 2, "seconds": 60})
    process = site.start("run", "--grace", "60")
    site.until_started(2)

    process.send_signal(signals[0])
    await asyncio.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signals[1])
    asked = time.monotonic()
    code, said = site.finish(process)

    assert time.monotonic() - asked < 2.5
    assert code == 128 + signals[1], said
    assert await site.counts() == (2, 0, 0, 0)


async def test_a_thread_that_does_not_return_does_not_keep_the_process(site: Site) -> None:
    await site.send("plain", {"n": 1, "seconds": 60})
    process = site.start("run", "--grace", "0.2")
    site.until_started()

    process.send_signal(TERM)
    await asyncio.sleep(0.4)
    process.send_signal(TERM)
    asked = time.monotonic()
    code, said = site.finish(process)

    assert time.monotonic() - asked < 3
    assert code == 143, said
    assert await site.counts("plain") == (1, 0, 0, 0)


async def test_a_blocked_loop_hears_of_the_stop_afterwards(site: Site) -> None:
    await site.send("q", {"n": 1, "act": "block", "seconds": 1.5})
    process = site.start("run")
    site.until_started()
    process.send_signal(TERM)
    assert site.finish(process)[0] == 0
    assert [note.what for note in site.notes()] == ["start", "end"]
    assert await site.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.15, 0.3, 0.5])
async def test_a_signal_before_it_is_up_ends_it_all_the_same(site: Site, seconds: float) -> None:
    await site.send("q", *({"n": n, "seconds": 60} for n in range(3)))
    process = site.start("run", "--grace", "0.5")
    await asyncio.sleep(seconds)
    process.send_signal(TERM)
    asked = time.monotonic()
    code, said = site.finish(process)
    assert time.monotonic() - asked < 3
    assert code in (0, -TERM), said
    assert await site.counts() == (3, 0, 0, 0)


async def test_a_handler_may_end_the_process_with_its_own_code(site: Site) -> None:
    await site.send("q", {"n": 1, "act": "quit", "seconds": 5}, {"n": 2, "seconds": 0.5})
    process = site.start("run")
    code, said = site.finish(process)
    assert code == 5, said
    assert any(note.n == 2 and note.what == "end" for note in site.notes())
    assert sum(await site.counts()) == 1


async def test_a_job_may_leave_by_itself_when_it_is_told(site: Site) -> None:
    await site.send("q", {"n": 1, "act": "stop"})
    process = site.start("run", "--grace", "20")
    site.until_started()
    process.send_signal(TERM)
    asked = time.monotonic()
    assert site.finish(process)[0] == 0
    assert time.monotonic() - asked < 2
    ready, leased, delayed, dead = await site.counts()
    assert (ready + delayed, leased, dead) == (1, 0, 0)


async def test_an_idle_runner_stops_at_once(site: Site) -> None:
    await site.send("q", {"n": 1})
    process = site.start("run")
    site.until(lambda: site.notes("end"))
    process.send_signal(TERM)
    asked = time.monotonic()
    assert site.finish(process)[0] == 0
    assert time.monotonic() - asked < 1.5


async def test_a_process_that_is_killed_is_replaced(site: Site) -> None:
    site.lease = 1.0
    await site.send("q", {"n": 1, "seconds": 60}, {"n": 2, "seconds": 60})
    crew = site.start("run", "--processes", "2", "--slots", "1", "--grace", "1")
    site.until_started(2)
    victim = site.notes("start")[0]
    assert victim.pid != crew.pid
    os.kill(victim.pid, signal.SIGKILL)
    site.until(lambda: sum(note.n == victim.n for note in site.notes("start")) == 2)
    assert site.notes("start")[-1].attempt == 2
    crew.send_signal(TERM)
    code, said = site.finish(crew)
    assert code == 0, said
    assert await site.counts() == (2, 0, 0, 0)


async def test_a_drain_says_by_its_code_whether_all_was_done(site: Site) -> None:
    await site.send("q", *({"n": n} for n in range(5)))
    assert site.drain("q") == 0
    await site.send("q", {"n": 6, "act": "hopeless"}, {"n": 7})
    assert site.drain("q") == 1
    assert await site.dead() == {"q-6": "hopeless"}
    assert site.drain("q") == 0


async def test_a_drain_that_is_stopped_says_so(site: Site) -> None:
    await site.send("q", *({"n": n, "seconds": 30} for n in range(3)))
    process = site.start("drain", "q", "--grace", "0.2")
    site.until_started()
    process.send_signal(TERM)
    code, said = site.finish(process)
    assert code != 0, said
    assert await site.counts() == (3, 0, 0, 0)


async def test_a_queue_that_is_otherwise_is_named_with_its_difference(site: Site) -> None:
    async with connect(site.url) as broker:
        await broker.declare(QueueSpec(name="q", dead_letter="elsewhere"))
    process = site.start("run")
    code, said = site.finish(process)
    assert code == 4, said
    assert "elsewhere" in said
    assert "q-dead" in said


async def test_an_idle_runner_costs_next_to_nothing(site: Site) -> None:
    await site.send("q", {"n": 1})
    process = site.start("run")
    site.until(lambda: site.notes("end"))
    await asyncio.sleep(0.5)
    before = _cpu_seconds(process.pid)
    await asyncio.sleep(3)
    spent = _cpu_seconds(process.pid) - before
    process.send_signal(TERM)
    assert site.finish(process)[0] == 0
    assert spent < 0.05 * 3


def _cpu_seconds(pid: int) -> float:
    """User and system time, as proc(5) has it in fields 14 and 15 of stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_url_that_leads_nowhere_is_one_clear_error(site: Site, tmp_path: Path) -> None:
    site.settings = {"BROKERWQ_URL": f"sqlite:///{tmp_path / 'nowhere' / 'queue.db'}"}
    process = site.start("run")
    code, said = site.finish(process)
    assert code == 2, said
    assert "no folder" in said
    assert len(said.strip().splitlines()) <= 3

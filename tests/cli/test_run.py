from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.program import Program, is_alive, wait_until

pytestmark = pytest.mark.slow

JOBS = """
    import asyncio
    import os
    import sys
    import time
    from pathlib import Path

    from brokerwq import App, RetryPolicy

    app = App("sqlite:///jobs.db", retry=RetryPolicy(max_attempts=2, base=0.05, jitter="none"))

    def note(text):
        with open("notes", "a") as notes:
            notes.write(f"{text}\\n")

    @app.worker("naps")
    async def nap(*, seconds: float) -> None:
        note(f"nap {os.getpid()}")
        await asyncio.sleep(seconds)

    @app.worker("naps")
    def stubborn(*, seconds: float) -> None:
        note("stubborn")
        time.sleep(seconds)

    @app.worker("naps")
    async def fail() -> None:
        raise ValueError("no")

    if "DIE_AT_START" in os.environ and "--processes" not in sys.argv:
        os._exit(9)
    if "SLOW_START" in os.environ:
        note("importing")
        time.sleep(30)
"""

Start = Callable[..., Program]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(dedent(JOBS))
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def start(*arguments: str, **environment: str) -> Program:
        programs.append(Program(folder, *arguments, **environment))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()


def enqueue(start: Start, *arguments: str) -> None:
    sent = start("enqueue", "jobs:app", *arguments)
    assert sent.end() == 0, sent.said


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().splitlines() if path.exists() else []


def wait_for_note(folder: Path, text: str) -> None:
    wait_until(lambda: any(text in note for note in notes(folder)), lambda: str(notes(folder)))


def depth(start: Start) -> dict[str, int]:
    shown = start("queues", "show", "naps", "--url", "sqlite:///jobs.db", "--json")
    assert shown.end() == 0, shown.said
    found: dict[str, int] = json.loads(shown.said)
    return found


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_runner_says_what_it_runs_and_stops_cleanly(start: Start, folder: Path) -> None:
    enqueue(start, "nap", "seconds=0")
    runner = start("run", "jobs:app")
    wait_for_note(folder, "nap")

    runner.signal(signal.SIGTERM)

    assert runner.end(5) == 0
    assert "on sqlite:///jobs.db (code), queues: naps; 10 slots" in runner.said
    assert "a stop gives running jobs 15 s, a second one none" in runner.said
    assert "1 done, 0 dead" in runner.said


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait_for_a_job_that_does_not_end(
    start: Start, folder: Path, first: signal.Signals
) -> None:
    enqueue(start, "stubborn", "seconds=60")
    runner = start("run", "jobs:app", "--grace", "60")
    wait_for_note(folder, "stubborn")
    runner.signal(first)
    runner.wait_until_said("state=draining")

    runner.signal(signal.SIGTERM)

    assert runner.end(2) == 128 + signal.SIGTERM
    assert depth(start)["ready"] == 1


def test_a_runner_that_is_still_starting_stops_at_once(start: Start, folder: Path) -> None:
    runner = start("run", "jobs:app", SLOW_START="1")
    wait_for_note(folder, "importing")

    runner.signal(signal.SIGTERM)

    assert runner.end(2) != 0


def test_a_process_that_is_killed_is_replaced(start: Start, folder: Path) -> None:
    crew = start("run", "jobs:app", "--processes", "2")
    crew.wait_until_said("state=ready", 2)
    killed, other = crew.children()

    os.kill(killed, signal.SIGKILL)

    crew.wait_until_said("state=ready", 3)
    assert "was killed by SIGKILL" in crew.said
    assert len(crew.children()) == 2
    assert other in crew.children()
    enqueue(start, "nap", "seconds=0")
    wait_for_note(folder, "nap")
    crew.signal(signal.SIGTERM)
    assert crew.end(10) == 0


def test_a_crew_stops_together_and_lets_jobs_end(start: Start, folder: Path) -> None:
    crew = start("run", "jobs:app", "--processes", "2")
    crew.wait_until_said("state=ready", 2)
    children = crew.children()
    enqueue(start, "nap", "seconds=1")
    wait_for_note(folder, "nap")

    crew.signal(signal.SIGINT)

    assert crew.end(10) == 0
    assert not any(map(is_alive, children))
    counts = depth(start)
    assert (counts["ready"], counts["leased"], counts["dead"]) == (0, 0, 0)


def test_a_second_signal_forces_a_crew(start: Start, folder: Path) -> None:
    enqueue(start, "stubborn", "seconds=60")
    crew = start("run", "jobs:app", "--processes", "2", "--grace", "60")
    crew.wait_until_said("state=ready", 2)
    wait_for_note(folder, "stubborn")
    crew.signal(signal.SIGTERM)
    crew.wait_until_said("state=draining", 2)

    crew.signal(signal.SIGTERM)

    assert crew.end(2.5) == 128 + signal.SIGTERM


def test_no_process_of_a_crew_outlives_its_parent(start: Start) -> None:
    crew = start("run", "jobs:app", "--processes", "2")
    crew.wait_until_said("state=ready", 2)
    children = crew.children()

    crew.kill()

    wait_until(lambda: not any(map(is_alive, children)), lambda: f"{children} live on", 5)


def test_a_crew_whose_processes_die_at_start_gives_up(start: Start) -> None:
    crew = start("run", "jobs:app", "--processes", "2", DIE_AT_START="1")

    assert crew.end(30) == 9
    assert "ended with exit code 9 before it was ready; stopping all" in crew.said


def test_a_crew_is_ready_when_all_its_processes_are(start: Start) -> None:
    port = a_free_port()
    crew = start("run", "jobs:app", "--processes", "2", "--health", f"127.0.0.1:{port}")
    crew.wait_until_said("state=ready", 2)

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
                return bool(json.load(answer) == {"state": "ready", "reasons": []})
        except OSError:
            return False

    wait_until(is_ready, lambda: "not ready")


def test_a_drain_by_several_processes_ends_with_one_report(start: Start, folder: Path) -> None:
    (folder / "naps.jsonl").write_text('{"seconds": 0.01}\n' * 50)
    enqueue(start, "nap", "--file", "naps.jsonl")

    drained = start("drain", "jobs:app", "--processes", "2", "--json")

    assert drained.end() == 0, drained.said
    report = json.loads(drained.said[drained.said.index("{\n") :])
    assert (report["done"], report["dead"], report["drained"]) == (50, {}, True)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_drain_with_dead_letters_ends_with_exit_code_1(start: Start, processes: str) -> None:
    enqueue(start, "fail")

    drained = start("drain", "jobs:app", "--processes", processes)

    assert drained.end() == 1
    assert "0 done, 1 retried, 1 dead (1 failed)" in drained.said


def test_the_report_as_json_tells_the_exit_code_that_the_command_has(start: Start) -> None:
    enqueue(start, "fail")

    drained = start("drain", "jobs:app", "--json")

    assert drained.end() == 1
    assert json.loads(drained.said[drained.said.index("{\n") :])["exit_code"] == 1


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_drain_that_misses_its_deadline_ends_with_exit_code_1(
    start: Start, processes: str
) -> None:
    enqueue(start, "nap", "seconds=60")

    drained = start("drain", "jobs:app", "--by", "1", "--grace", "0", "--processes", processes)

    assert drained.end(15) == 1
    assert "the time was up" in drained.said
    assert depth(start)["ready"] == 1


def test_a_broker_that_refuses_is_exit_code_3(start: Start, folder: Path) -> None:
    (folder / "jobs.db").write_text("this is no database" * 100)

    runner = start("run", "jobs:app")

    assert runner.end() == 3
    assert "Traceback" not in runner.said

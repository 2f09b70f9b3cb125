"""The pytest plugin as a project's own test run meets it: in another process and folder."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import pytest_brokerwq

ROOT = Path(__file__).parent.parent
SHOP = ROOT / "examples" / "shop"

CONFIG = """
[pytest]
filterwarnings = error
addopts = --strict-markers --strict-config -p no:cacheprovider
anyio_mode = auto
"""
JOBS = """
from brokerwq import App

app = App("amqp://nobody@nowhere.invalid/")

@app.worker("greetings")
async def greet(*, name: str) -> None:
    print("hello", name)
"""


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("pytest.ini", CONFIG)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(dedent(text))

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Exit code and output; variables of this run are not handed on, but for the servers."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BROKERWQ_", "PYTEST_", "COV_"))
            or name in ("BROKERWQ_TEST_CACHE", "BROKERWQ_TEST_INSTALL")
        }
        # One at the front of the path that is no installed distribution: named, not found.
        named = [] if _is_installed() else ["-p", "pytest_brokerwq"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *named, *arguments],
            cwd=self.folder,
            env={**inherited, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        return done.returncode, done.stdout + done.stderr


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "pytest_brokerwq" for point in entry_points(group="pytest11"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.slow
def test_a_run_that_does_not_use_it_imports_nothing_of_brokerwq(project: Project) -> None:
    project.write(
        "test_mine.py",
        """
        import sys

        def test_nothing_is_loaded():
            assert "pytest_brokerwq" in sys.modules
            assert [name for name in sys.modules if name.split(".")[0] == "brokerwq"] == []
        """,
    )

    code, output = project.run()

    assert code == 0, output
    assert "1 passed" in output


@pytest.mark.slow
def test_the_app_is_found_by_the_configuration_and_given_back(project: Project) -> None:
    project.write("jobs.py", JOBS)
    project.write("pytest.ini", CONFIG + "bwq_app_path = jobs:app\n")
    project.write(
        "test_mine.py",
        """
        import asyncio
        import jobs
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        async def test_in_a_loop(bwq_app):
            await jobs.greet.enqueue(name="Ada")
            assert bwq_app.enqueued(jobs.greet, name="Ada")
            assert (await bwq_app.drain()).done == 1

        def test_without_a_loop(bwq_app):
            jobs.greet.enqueue_sync(name="Ada")
            assert len(bwq_app.enqueued(jobs.greet)) == 1
            assert asyncio.run(bwq_app.drain()).done == 1

        def test_afterwards(bwq_clock):
            assert jobs.app.url.startswith("amqp:")
            assert jobs.app.clock is not bwq_clock
        """,
    )

    code, output = project.run()

    assert code == 0, output
    assert "3 passed" in output


@pytest.mark.slow
def test_an_app_and_what_is_around_it_can_be_overridden(project: Project) -> None:
    project.write(
        "test_mine.py",
        """
        import asyncio
        from datetime import UTC, datetime
        import pytest
        from brokerwq import App, Job, Tx
        from brokerwq.testing import FakeClock

        @pytest.fixture
        def bwq_app_under_test(tmp_path):
            return App("sqs://eu-west-1/shop", store="sqlite:///never.db", name="shop")

        @pytest.fixture
        def bwq_clock():
            return FakeClock(utcnow=datetime(2030, 1, 1, tzinfo=UTC))

        @pytest.fixture
        def bwq_lifespan():
            async def lifespan():
                yield ["state"]
            return lifespan

        def test_it(bwq_app, tmp_path):
            seen = []

            @bwq_app.app.worker("orders", once="transactional")
            async def ship(job: Job, tx: Tx, number: int) -> None:
                seen.append((job.state, bwq_app.clock.utcnow().year, number))

            async def main():
                await ship.enqueue(7)
                await bwq_app.drain()

            asyncio.run(main())
            assert seen == [(["state"], 2030, 7)]
            assert (tmp_path / "brokerwq-keys.db").exists()
        """,
    )

    code, output = project.run()

    assert code == 0, output
    assert not (project.folder / "never.db").exists()


@pytest.mark.slow
def test_without_an_app_it_is_said_how_to_name_one(project: Project) -> None:
    project.write("test_mine.py", "def test_it(bwq_app): ...")

    code, output = project.run()

    assert code == 1
    assert "bwq_app_path = MODULE:ATTR" in output
    assert "bwq_app_under_test" in output


NEEDS_SQS = "def test_it(bwq_sqs): ..."


@pytest.mark.slow
@pytest.mark.parametrize("required", ["", "rabbitmq, sqs"])
def test_a_server_that_cannot_be_had_is_a_reason_to_skip_or_a_failure(
    project: Project, tmp_path: Path, required: str
) -> None:
    pytest.importorskip("aiobotocore")
    project.write("test_mine.py", NEEDS_SQS)
    nothing = {"BROKERWQ_TEST_CACHE": str(tmp_path / "cache"), "BROKERWQ_TEST_INSTALL": "0"}
    nothing |= {"DOCKER_HOST": "unix:///nowhere", "BROKERWQ_REQUIRE": required}

    code, output = project.run("-rs", **nothing)

    assert "BROKERWQ_TEST_INSTALL=0 forbids it" in output
    assert ("1 error" if required else "1 skipped") in output
    assert code == (1 if required else 0)


@pytest.mark.slow
def test_a_server_that_was_named_and_is_not_there_is_a_failure(project: Project) -> None:
    pytest.importorskip("aiormq")
    project.write("test_mine.py", "def test_it(bwq_rabbitmq): ...")

    code, output = project.run(BROKERWQ_TEST_AMQP_URL="amqp://guest:secret@127.0.0.1:1/")

    assert code == 1
    assert "management interface does not answer at http://127.0.0.1:15672" in output
    assert "secret" not in output.replace("guest:secret@127.0.0.1:1/'", "")


@pytest.mark.slow
def test_what_needs_a_server_can_be_left_out(project: Project) -> None:
    project.write("test_mine.py", f"{NEEDS_SQS}\ndef test_each(bwq_broker): print(bwq_broker.url)")

    code, output = project.run("-m", "not bwq_server", "-v")

    assert code == 0, output
    ran = re.findall(r"::(\S+) PASSED", output)
    assert ran == ["test_each[memory]", "test_each[sqlite]"]


@pytest.mark.slow
def test_the_brokers_are_the_configured_ones(project: Project) -> None:
    project.write("test_mine.py", "def test_each(bwq_broker): print(bwq_broker.url)")
    project.write("pytest.ini", CONFIG + "bwq_brokers = sqlite\n")
    code, output = project.run("-v")
    assert (code, re.findall(r"::(\S+) PASSED", output)) == (0, ["test_each[sqlite]"])

    project.write("pytest.ini", CONFIG + "bwq_brokers = kafka\n")
    code, output = project.run()
    assert code != 0
    assert "'kafka' is none of memory, sqlite, rabbitmq, sqs" in output


def test_no_fixture_depends_on_how_coroutines_are_run() -> None:
    fixtures = [
        inspect.unwrap(getattr(value, "_fixture_function", value))
        for name, value in vars(pytest_brokerwq).items()
        if name.startswith("bwq_")
    ]

    assert len(fixtures) >= 11
    assert [each for each in fixtures if inspect.iscoroutinefunction(each)] == []
    assert [each for each in fixtures if inspect.isasyncgenfunction(each)] == []


@pytest.mark.slow
@pytest.mark.parametrize("order", ["as written", "reversed"])
def test_the_sample_projects_unit_and_behaviour_tests_pass_in_any_order(order: str) -> None:
    files = ["tests/test_unit.py", "tests/test_behaviour.py"]
    if order == "reversed":
        files.reverse()
    code, output = Project.run(_shop(), "-p", "no:cacheprovider", *files)

    assert code == 0, output
    assert "9 passed" in output
    seconds = re.search(r"9 passed.* in ([\d.]+)s", output)
    # Under 2 s on a calm machine; this one may be anything else.
    assert seconds is not None
    assert float(seconds[1]) < 20


def test_the_sample_project_has_twelve_tests_and_none_sleeps() -> None:
    text = "".join(path.read_text() for path in (SHOP / "tests").glob("*.py"))

    assert len(re.findall(r"^(?:async )?def test_", text, re.MULTILINE)) == 12
    assert "sleep" not in text


@pytest.mark.slow
@pytest.mark.server
def test_the_sample_project_passes_on_both_servers_shared_by_two_processes() -> None:
    """On rabbitmq and sqs; each server is started once."""
    code, output = Project.run(
        _shop(), *("-p", "no:cacheprovider"), "tests/test_integration.py", "-n", "2"
    )

    assert code == 0, output
    assert "6 passed" in output


def _shop() -> Project:
    shop = Project.__new__(Project)
    shop.folder = SHOP
    return shop

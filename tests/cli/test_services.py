"""``brokerwq services``: servers that stay, and go when they are told to, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from brokerwq.testing.servers.installation import CACHE_VARIABLE, cache_folder
from tests.cli.program import is_alive, wait_until


class Desk:
    """The command, with a cache of the test's own that has the servers' programs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cache"
        self.folder.mkdir()
        for installed in cache_folder().glob("localstack-*"):
            (self.folder / installed.name).symlink_to(installed)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("BROKERWQ_")
        } | {CACHE_VARIABLE: str(self.folder)}

    def __call__(self, *arguments: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "brokerwq", "services", *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        return done.returncode, done.stdout + done.stderr

    def pid(self, kind: str) -> int:
        return int(json.loads((self.folder / "services" / f"{kind}.json").read_text())["pid"])


@pytest.fixture
def desk(tmp_path: Path) -> Generator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk("down")


@pytest.mark.slow
def test_nothing_runs_before_it_was_started_and_nothing_is_stopped(desk: Desk) -> None:
    assert desk("status") == (
        3,
        "SERVICE   STATE        URL\nrabbitmq  not running\nsqs       not running\n",
    )
    assert desk("down", "rabbitmq") == (0, "rabbitmq was not running\n")


@pytest.mark.slow
def test_what_cannot_be_started_is_said_and_leaves_nothing(desk: Desk, tmp_path: Path) -> None:
    nothing = {"BROKERWQ_TEST_INSTALL": "0", "DOCKER_HOST": "unix:///nowhere"}
    nothing[CACHE_VARIABLE] = str(tmp_path / "empty")

    for _ in range(2):  # the second time it is tried anew
        code, output = desk("up", "sqs", **nothing)
        assert code == 3
        assert "sqs cannot be started: LocalStack is not installed" in output
    assert desk("status", "sqs", **nothing)[0] == 3


@pytest.mark.slow
def test_a_word_that_is_no_service_is_refused(desk: Desk) -> None:
    assert desk("up", "kafka")[0] == 2
    assert desk("up", "--json", "--env")[0] == 2


VARIABLE = "BROKERWQ_TEST_AMQP_URL"


@pytest.mark.slow
@pytest.mark.server
def test_rabbitmq_stays_until_it_is_stopped(desk: Desk) -> None:
    code, output = desk("up", "rabbitmq", "--env")
    assert code == 0, output
    exports = dict(
        line.removeprefix("export ").split("=", 1)
        for line in output.splitlines()
        if line.startswith("export ")
    )
    assert VARIABLE in exports
    pid = desk.pid("rabbitmq")

    code, output = desk("up", "rabbitmq", "--json", **{VARIABLE: exports[VARIABLE]})
    (told,) = json.loads(output)
    assert (told["state"], told["url"]) == ("running", exports["BROKERWQ_URL"].strip("'"))
    assert told["environment"][VARIABLE] == exports[VARIABLE]
    assert desk.pid("rabbitmq") == pid
    assert desk("status", "rabbitmq")[0] == 0
    assert desk("status")[0] == 0  # nobody has started the other one

    assert desk("down", "rabbitmq") == (0, "rabbitmq stopped\n")
    assert not is_alive(pid)
    assert desk("status", "rabbitmq")[0] == 3
    assert list((desk.folder / "services").iterdir()) == []


@pytest.mark.slow
@pytest.mark.server
def test_a_killed_keeper_of_sqs_takes_its_server_along_and_can_be_started_again(
    desk: Desk,
) -> None:
    assert desk("up", "sqs")[0] == 0
    before = desk.pid("sqs")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: not is_alive(before), lambda: "the keeper is still there")

    assert desk("status", "sqs")[0] == 3
    assert desk("up", "sqs")[0] == 0
    assert desk.pid("sqs") != before
    assert desk("status", "sqs")[0] == 0
    assert desk("down") == (0, "rabbitmq was not running\nsqs stopped\n")

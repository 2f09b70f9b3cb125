"""Processes share a server of sqs, and it goes with the last of them, however that ends."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from brokerwq.testing.servers.installation import ServerUnavailableError
from brokerwq.testing.servers.keeper import Files
from brokerwq.testing.servers.shared import finish, is_alive, use

PATIENCE = 60.0
USER = """
import sys
from pathlib import Path
from brokerwq.testing.servers.shared import use
held = use("sqs", Path(sys.argv[1]))
print(held.service.address, held.service.pid, flush=True)
sys.stdin.read()
"""


class User:
    """A process that uses the server until it is told or killed."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def server(self) -> tuple[str, int]:
        assert self.process.stdout is not None
        address, pid = self.process.stdout.readline().split()
        return address, int(pid)

    def end(self) -> None:
        self.process.communicate("")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def listens(address: str) -> bool:
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), 2).close()
    except OSError:
        return False
    return True


def until_gone(files: Files) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while is_alive(files):
        assert time.monotonic() < give_up_at, "the keeper is still there"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.server
def test_a_server_of_sqs_is_started_once_and_goes_with_its_last_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKERWQ_TEST_SQS_ENDPOINT", raising=False)
    folder = tmp_path / "run"
    files = Files("sqs", folder)
    users = [User(folder) for _ in range(3)]
    try:
        servers = {user.server() for user in users}
        assert len(servers) == 1
        ((address, _),) = servers

        users[0].end()
        users[1].kill()
        assert listens(address)
        assert is_alive(files)

        users[2].kill()
        until_gone(files)
        assert not listens(address)

        late = User(folder)
        users.append(late)
        assert late.server() not in servers
        late.end()
        finish(folder)
        assert not folder.exists()
    finally:
        for user in users:
            user.kill()


def test_a_server_that_the_environment_names_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_TEST_SQS_ENDPOINT", "http://127.0.0.1:4566/")
    folder = tmp_path / "run"

    held = use("sqs", folder)

    assert (held.service.address, held.service.pid) == ("http://127.0.0.1:4566", 0)
    held.close()
    assert not folder.exists()


@pytest.mark.slow
def test_what_cannot_be_started_is_found_out_once_and_told_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "BROKERWQ_TEST_CACHE": str(tmp_path / "cache"),
        "BROKERWQ_TEST_INSTALL": "0",
        "DOCKER_HOST": "unix:///nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("BROKERWQ_TEST_SQS_ENDPOINT", raising=False)
    folder = tmp_path / "run"

    with pytest.raises(ServerUnavailableError, match="forbids it"):
        use("sqs", folder)
    stamp = Files("sqs", folder).state.stat().st_mtime_ns
    with pytest.raises(ServerUnavailableError, match="forbids it"):
        use("sqs", folder)

    assert Files("sqs", folder).state.stat().st_mtime_ns == stamp
    finish(folder)

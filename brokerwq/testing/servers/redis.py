"""A Redis server of one's own: a free port, a new folder.

``redis()`` starts the machine's ``redis-server``, which is installed first from Debian's package
where this process is root. It keeps an append-only file and evicts nothing, as a store of keys
wants it.

    with redis() as server:
        store = RedisStore(server.url)
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from brokerwq.testing.servers.installation import ServerUnavailableError, installed_program
from brokerwq.testing.servers.probe import free_port

URL_VARIABLE: Final = "BROKERWQ_TEST_REDIS_URL"
"""A Redis that already runs, which ``shared_redis`` takes; e.g. ``redis://127.0.0.1:6379/15``."""

_PATIENCE: Final = 30.0
_SETTINGS: Final = {
    "appendonly": "yes",
    "maxmemory-policy": "noeviction",
    "save": "",
    "bind": "127.0.0.1",
    "loglevel": "warning",
}


class Redis:
    """A server in a folder of its own.

    Attributes:
        url: ``redis://127.0.0.1:PORT/0``.
    """

    def __init__(self, command: list[str], folder: Path, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._command = command
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of its process; raises ``RuntimeError`` while it does not run."""
        if self._process is None:
            msg = "the server does not run"
            raise RuntimeError(msg)
        return self._process.pid

    def start(self) -> None:
        """Start it, with what it stored before.

        Raises:
            ServerUnavailableError: it did not start.
        """
        process = self._process = subprocess.Popen(  # noqa: S603 -- our own words
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
        )
        until = time.monotonic() + _PATIENCE  # noqa: TID251 -- a real server knows no other clock
        while not self._answers():
            if process.poll() is not None:
                msg = f"redis-server ended with {process.returncode}"
                raise ServerUnavailableError(msg)
            if time.monotonic() > until:  # noqa: TID251 -- as above
                msg = f"redis-server did not answer within {_PATIENCE:g} seconds"
                raise ServerUnavailableError(msg)
            time.sleep(0.02)

    def stop(self, *, by: signal.Signals = signal.SIGTERM) -> None:
        """End it, cutting off whoever is connected; harmless if it does not run.

        Args:
            by: ``SIGKILL`` for a crash: what it has not written to its files is gone.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(by)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def forget(self) -> None:
        """Remove what it has stored; only while it does not run."""
        for entry in self._folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _answers(self) -> bool:
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), 1.0) as connection,
        ):
            connection.sendall(b"PING\r\n")
            return connection.recv(7) == b"+PONG\r\n"
        return False


@contextmanager
def redis(**settings: str) -> Generator[Redis]:
    """Run a server for as long as the block lasts.

    Args:
        **settings: Its directives, with ``_`` for ``-``, for example ``appendonly="no"``.

    Raises:
        ServerUnavailableError: there is no ``redis-server`` and it cannot be installed, or it
            did not start.
    """
    program = installed_program("redis-server", "redis-server")
    folder = Path(tempfile.mkdtemp(prefix="brokerwq-redis-"))
    port = free_port()
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    command = [program]
    for name, value in {**_SETTINGS, "port": str(port), "dir": str(folder), **given}.items():
        command += [f"--{name}", value]
    server = Redis(command, folder, port)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


_shared: list[str | ServerUnavailableError] = []


def shared_redis() -> str:
    """The URL of one server for the whole process: started at the first call, gone at its exit.

    Raises:
        ServerUnavailableError: there is none; told once, then cheap.
    """
    if not _shared:
        given = os.environ.get(URL_VARIABLE)
        _shared.append(given or _started())
    found = _shared[0]
    if isinstance(found, ServerUnavailableError):
        raise found
    return found


def _started() -> str | ServerUnavailableError:
    running = redis()
    try:
        server = running.__enter__()
    except ServerUnavailableError as exc:
        return exc
    atexit.register(running.__exit__, None, None, None)
    return server.url

"""A PostgreSQL server of one's own: the machine's own programs, a free port, a new folder.

Its programs refuse to run as root; then the system user ``postgres`` runs them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from brokerwq.testing.servers.probe import free_port

_PATIENCE: Final = 30.0
_USER: Final = "postgres"
_DEBIAN: Final = Path("/usr/lib/postgresql")


class Postgres:
    """A server in a folder of its own.

    Attributes:
        url: ``postgresql://postgres@127.0.0.1:PORT/postgres``.
    """

    def __init__(self, folder: Path, port: int, command: list[str]) -> None:
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        self._folder = folder
        self._port = port
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, with what it stored before.

        Raises:
            RuntimeError: it did not start.
        """
        process = self._process = subprocess.Popen(  # noqa: S603 -- our own words
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
        )
        _wait(process, self._port)

    def stop(self) -> None:
        """Stop it at once, cutting off whoever is connected; harmless if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def program(name: str) -> str | None:
    """Where a program of PostgreSQL is, the newest version first; None if it is not installed."""
    places = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=_version, reverse=True)
    return str(places[0]) if places else shutil.which(name)


def _version(path: Path) -> float:
    text = path.parent.parent.name
    return float(text) if text.replace(".", "", 1).isdigit() else 0.0


@contextmanager
def postgres(**settings: str) -> Generator[Postgres]:
    """Run a server for as long as the block lasts.

    Args:
        **settings: Parameters of the server, for example ``fsync="off"``.

    Raises:
        FileNotFoundError: PostgreSQL is not installed.
        RuntimeError: it did not start.
    """
    initdb, server = program("initdb"), program("postgres")
    if initdb is None or server is None:
        msg = "PostgreSQL is not installed: there is no initdb"
        raise FileNotFoundError(msg)
    folder = Path(tempfile.mkdtemp(prefix="brokerwq-postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, _USER, _USER)
    try:
        data = folder / "data"
        _run([initdb, "-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "-N"])
        port = free_port()
        options = {"port": str(port), "listen_addresses": "127.0.0.1"}
        options |= {"unix_socket_directories": str(folder), **settings}
        command = [server, "-D", str(data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        running = Postgres(folder, port, _as_user(command))
        try:
            running.start()
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_shared: list[Postgres] = []


def shared_postgres() -> Postgres:
    """One server for the whole process: started at the first call, gone at its exit.

    It is fast, and does not outlive a power cut.

    Raises:
        FileNotFoundError: PostgreSQL is not installed.
    """
    if not _shared:
        running = postgres(fsync="off", full_page_writes="off")
        _shared.append(running.__enter__())
        atexit.register(running.__exit__, None, None, None)
    return _shared[0]


def _as_user(command: list[str]) -> list[str]:
    if os.geteuid() != 0:
        return command
    return ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", *command]


def _run(command: list[str]) -> None:
    done = subprocess.run(  # noqa: S603 -- our own words
        _as_user(command), capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode != 0:
        msg = f"{Path(command[0]).name} failed: {done.stderr[-500:]}"
        raise RuntimeError(msg)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    ready = [program("pg_isready") or "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    end = time.monotonic() + _PATIENCE  # noqa: TID251 -- a real server knows no other clock
    while time.monotonic() < end:  # noqa: TID251 -- as above
        if process.poll() is not None:
            msg = f"the server ended with {process.returncode}"
            raise RuntimeError(msg)
        if subprocess.run(ready, check=False).returncode == 0:  # noqa: S603 -- our own words
            return
        time.sleep(0.05)
    msg = f"the server did not answer within {_PATIENCE:g} seconds"
    raise RuntimeError(msg)

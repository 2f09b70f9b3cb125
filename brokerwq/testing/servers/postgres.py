"""A PostgreSQL server of one's own: the machine's own programs, a free port, a new folder.

Its programs refuse to run as root; then the system user ``postgres`` runs them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PATIENCE: Final = 30.0
_USER: Final = "postgres"
_DEBIAN: Final = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server.

    Attributes:
        url: ``postgresql://postgres@127.0.0.1:PORT/postgres``.
        folder: Its data.
        process: It; killed and started anew by tests of outages.
    """

    url: str
    folder: Path
    process: subprocess.Popen[bytes]


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
        process = subprocess.Popen(  # noqa: S603 -- our own words
            _as_user(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
        )
        try:
            _wait(process, port)
            yield Postgres(f"postgresql://postgres@127.0.0.1:{port}/postgres", folder, process)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
    end = time.monotonic() + _PATIENCE  # noqa: TID251 -- a real server knows no other clock
    while time.monotonic() < end:  # noqa: TID251 -- as above
        if process.poll() is not None:
            msg = f"the server ended with {process.returncode}"
            raise RuntimeError(msg)
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    msg = f"the server did not listen within {_PATIENCE:g} seconds"
    raise RuntimeError(msg)

"""One server for several processes: started by the first that asks, gone with the last.

``use`` is for tests, all processes of one run; ``up`` and ``down`` are for people.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from brokerwq.testing.servers.installation import ServerUnavailableError
from brokerwq.testing.servers.keeper import WHILE_USED, Files, locked
from brokerwq.testing.servers.kinds import STARTERS, Kind, Service, given

_LOOK: Final = 0.05
_STOP_SECONDS: Final = 60.0


class Use:
    """One process's use of one server.

    Attributes:
        service: The server.
    """

    def __init__(self, service: Service, lock: IO[str] | None) -> None:
        self.service: Service = service
        self._lock = lock

    def close(self) -> None:
        """Need it no longer. The end of the process will do as well."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


_CLIENTS: Final[Mapping[Kind, str]] = {"rabbitmq": "aiormq", "sqs": "aiobotocore"}


def require_client(kind: Kind) -> None:
    """Make sure that the adapter's client library is installed.

    Raises:
        ServerUnavailableError: it is not, so that a server would be of no use.
    """
    if importlib.util.find_spec(_CLIENTS[kind]) is None:
        msg = f"{_CLIENTS[kind]} is not installed: pip install 'brokerwq[{kind}]'"
        raise ServerUnavailableError(msg)


def use(kind: Kind, folder: Path) -> Use:
    """Use the server that all who name the same folder share; start it if nobody has.

    Args:
        kind: Which.
        folder: Made if it is missing; the run's own, whoever else may read it.

    Raises:
        ServerUnavailableError: none is there and none can be started; the first to ask finds
            out, the others are told.
    """
    service = given(kind)
    if service is not None:
        return Use(service, None)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = Files(kind, folder)
    lock = files.users.open("a")
    try:
        # Waits while a keeper ends that nobody used any more.
        fcntl.flock(lock, fcntl.LOCK_SH)
        with locked(files.start, fcntl.LOCK_EX):
            if not files.state.exists() or (not is_alive(files) and _error_of(files) is None):
                _await(_start(kind, folder, while_used=True), files)
            return Use(_service_of(files), lock)
    except BaseException:
        lock.close()
        raise


def up(kind: Kind, folder: Path) -> Service:
    """Start the server and leave it running; the one that runs already, if one does.

    Raises:
        ServerUnavailableError: none can be started.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = Files(kind, folder)
    with locked(files.start, fcntl.LOCK_EX):
        if not is_alive(files):
            files.state.unlink(missing_ok=True)
            process = _start(kind, folder, while_used=False)
            try:
                _await(process, files)
            except BaseException:
                process.terminate()
                raise
        try:
            return _service_of(files)
        finally:
            if _error_of(files) is not None:
                files.state.unlink(missing_ok=True)


def running(kind: Kind, folder: Path) -> Service | None:
    """What ``up`` has started and is still there; None for nothing."""
    files = Files(kind, folder)
    if not files.alive.exists() or not is_alive(files):
        return None
    with contextlib.suppress(ServerUnavailableError):
        return _service_of(files)
    return None


def down(kind: Kind, folder: Path) -> bool:
    """Stop what ``up`` has started; False where there is nothing to stop.

    Raises:
        ServerUnavailableError: it does not stop.
    """
    service = running(kind, folder)
    if service is None:
        return False
    files = Files(kind, folder)
    with contextlib.suppress(ProcessLookupError):
        os.kill(service.pid, signal.SIGTERM)
    _await_end(files)
    for path in (files.state, files.alive, files.users, files.start, files.log):
        path.unlink(missing_ok=True)
    return True


def finish(folder: Path) -> None:
    """Wait until the servers of ``use`` are gone, which nobody may use any more, and tidy up."""
    if folder.exists():
        for kind in STARTERS:
            files = Files(kind, folder)
            if files.alive.exists():
                _await_end(files)
        shutil.rmtree(folder, ignore_errors=True)


def _await_end(files: Files) -> None:
    give_up_at = time.monotonic() + _STOP_SECONDS  # noqa: TID251  -- another process
    while is_alive(files):
        if time.monotonic() > give_up_at:  # noqa: TID251
            msg = f"the server does not end within {_STOP_SECONDS:g} s; see {files.log}"
            raise ServerUnavailableError(msg)
        time.sleep(_LOOK)


def is_alive(files: Files) -> bool:
    """Whether a keeper is at work there."""
    try:
        with locked(files.alive, fcntl.LOCK_SH | fcntl.LOCK_NB):
            return False
    except BlockingIOError:
        return True


def _start(kind: Kind, folder: Path, *, while_used: bool) -> subprocess.Popen[bytes]:
    options = [WHILE_USED] if while_used else []
    with Files(kind, folder).log.open("ab") as log:
        return subprocess.Popen(  # noqa: S603  -- ourselves
            [sys.executable, "-m", "brokerwq.testing.servers.keeper", kind, str(folder), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _await(process: subprocess.Popen[bytes], files: Files) -> None:
    """Wait for the keeper's word; installing a server may take it minutes."""
    while not files.state.exists():
        if process.poll() is not None and not files.state.exists():
            log = files.log.read_text(encoding="utf-8", errors="replace")[-3000:]
            msg = f"the keeper ended with {process.returncode}: {log}"
            raise ServerUnavailableError(msg)
        time.sleep(_LOOK)
    # It runs on when this process has ended: nobody waits for it, and nothing is to be warned of.
    process.returncode = process.returncode or 0


def _read(files: Files) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(files.state.read_text(encoding="utf-8"))
    except FileNotFoundError:
        msg = f"the keeper has ended; see {files.log}"
        raise ServerUnavailableError(msg) from None
    return found


def _error_of(files: Files) -> str | None:
    with contextlib.suppress(ServerUnavailableError):
        return _read(files).get("error")
    return None


def _service_of(files: Files) -> Service:
    state = _read(files)
    if "error" in state:
        raise ServerUnavailableError(state["error"])
    return Service(**state)

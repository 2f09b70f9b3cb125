"""The process that keeps one server running for others: for a test run, or until it is told.

``python -m brokerwq.testing.servers.keeper KIND FOLDER [--while-used]``. It writes what the
server's address is, or why there is none, into a file of the folder; see ``shared``. The server
ends with it, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, cast

from brokerwq.testing.servers.installation import ServerUnavailableError
from brokerwq.testing.servers.kinds import AMQP_VARIABLE, STARTERS, Kind
from brokerwq.testing.servers.localstack import ENDPOINT_VARIABLE

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WHILE_USED: Final = "--while-used"
"""End when nobody holds the lock of the users any more."""


class Files:
    """What is in a keeper's folder.

    Attributes:
        state: What the server's address is, or why there is none; absent while none is told.
        alive: Locked by the keeper for as long as it lives.
        users: Locked, shared, by every process that uses the server.
        start: Locked by whoever starts a keeper.
        log: What the keeper and its server have to say.
    """

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.state: Path = folder / f"{kind}.json"
        self.alive: Path = folder / f"{kind}.alive"
        self.users: Path = folder / f"{kind}.users"
        self.start: Path = folder / f"{kind}.start"
        self.log: Path = folder / f"{kind}.log"

    def write_state(self, value: object) -> None:
        """Replace the state, whole."""
        fresh = self.state.with_suffix(".new")
        fresh.write_text(json.dumps(value), encoding="utf-8")
        fresh.chmod(0o600)
        fresh.replace(self.state)


@contextlib.contextmanager
def locked(path: Path, operation: int) -> Generator[None]:
    """Hold a lock of ``fcntl.flock``; the system takes it back from a process that is gone.

    Raises:
        BlockingIOError: ``LOCK_NB`` was asked for and somebody else holds it.
    """
    with path.open("a") as file:
        fcntl.flock(file, operation)
        yield


def keep(kind: Kind, folder: Path, *, while_used: bool) -> None:
    """Start the server and keep it; returns when it is not needed any more, and gone.

    A signal (TERM, INT, HUP) ends it, too.
    """
    # A keeper starts a server of its own, whatever its starter was told to use.
    for variable in (AMQP_VARIABLE, ENDPOINT_VARIABLE):
        os.environ.pop(variable, None)
    files = Files(kind, folder)
    for number in _SIGNALS:
        signal.signal(number, _stop)
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(files.alive, fcntl.LOCK_EX))
        users = stack.enter_context(files.users.open("a"))
        try:
            service = stack.enter_context(STARTERS[kind]())
        except ServerUnavailableError as exc:
            files.write_state({"error": str(exc)})
            return
        stack.callback(files.state.unlink, missing_ok=True)
        files.write_state(asdict(replace(service, pid=os.getpid())))
        if not while_used:
            threading.Event().wait()
        # Kept until the server is gone, so that whoever comes now waits, and starts another.
        fcntl.flock(users, fcntl.LOCK_EX)


def _stop(*_: object) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(0)


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    kind, folder, *options = arguments
    keep(cast("Kind", kind), Path(folder), while_used=WHILE_USED in options)


if __name__ == "__main__":
    main(sys.argv[1:])

"""``/live`` and ``/ready`` over HTTP, on a thread of their own.

A thread, so that a handler that blocks the loop cannot make the process look dead.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from brokerwq.errors import ConfigError

_TIMEOUT = 5.0
_LOOK = 0.1
"""Seconds between two looks whether to stop: the stop of a runner waits for it."""


class Watched(Protocol):
    """What health is asked of: a ``Runner``."""

    @property
    def state(self) -> str: ...  # noqa: D102

    @property
    def reasons(self) -> tuple[str, ...]: ...  # noqa: D102


@contextmanager
def serve_health(runner: Watched, address: str) -> Generator[str]:
    """Answer at ``address`` (``HOST:PORT``; port 0 takes a free one) while the block runs.

    ``/live`` is 200 until the runner has stopped; ``/ready`` is 200 while it is ready and
    503 otherwise. Both tell the state and the reasons as JSON. Yields the address in use.

    Raises:
        ConfigError: the address cannot be used.
    """
    host, _, port = address.rpartition(":")

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT

        def do_GET(self) -> None:
            state = runner.state
            fine = {"/live": state != "stopped", "/ready": state == "ready"}.get(
                self.path.partition("?")[0]
            )
            status = 404 if fine is None else (200 if fine else 503)
            body = json.dumps({"state": state, "reasons": list(runner.reasons)}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing: a probe every second is no news."""

    try:
        server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(port)), Handler)
    except (OSError, ValueError, OverflowError) as exc:
        msg = f"health address {address!r:.100} cannot be used: {exc}; write HOST:PORT"
        raise ConfigError(msg) from exc
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, args=(_LOOK,), name="brokerwq-health", daemon=True
    )
    thread.start()
    try:
        yield f"{server.server_address[0]!s}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_TIMEOUT)

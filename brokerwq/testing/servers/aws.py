"""What stand-ins for AWS have in common: harmless credentials, and moto in this process."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Generator, Mapping
from typing import Any


def harmless_environment() -> Mapping[str, str]:
    """What the AWS SDK needs beside an address: credentials of nobody, and no search for any."""
    return {
        "AWS_ACCESS_KEY_ID": "000000000000",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def moto_endpoint(*, one_at_a_time: bool = False) -> Generator[str]:
    """The address of a moto server on a free port, for as long as the block runs.

    Args:
        one_at_a_time: Requests take turns, since moto looks at a condition and writes in two
            steps. Not for those that wait for messages.

    Raises:
        ImportError: ``moto[server]`` is not installed.
    """
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  -- a test dependency

    # Its web server reports every request at INFO, through a logger that it sets up itself.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    if one_at_a_time:
        web: Any = vars(server)["_server"]
        web.app = _in_turn(web.app)
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def _in_turn(app: Any) -> Any:
    lock = threading.Lock()

    def taking_turns(environ: Any, start_response: Any) -> Any:
        with lock:
            return app(environ, start_response)

    return taking_turns

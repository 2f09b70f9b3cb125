"""moto's SQS in this process: a second opinion beside LocalStack, ready in a second.

Every receive costs it time in proportion to the depth of the queue: keep below about a
hundred messages.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

from brokerwq.testing.servers.localstack import SqsServer


@contextlib.contextmanager
def moto() -> Generator[SqsServer]:
    """A moto server on a free port of this machine, for as long as the block runs.

    Raises:
        ImportError: ``moto[server]`` is not installed.
    """
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  -- a test dependency

    # Its web server reports every request at INFO, through a logger that it sets up itself.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield SqsServer(endpoint=f"http://{host}:{port}")
    finally:
        server.stop()

"""A DynamoDB for tests: one that is there, or moto's in this process.

``dynamodb()`` takes the endpoint that ``BROKERWQ_TEST_DYNAMODB_ENDPOINT`` names, DynamoDB Local's
or LocalStack's, say; else it starts moto, which is ready in a second. ``docs/idempotency.md``
tells what that does otherwise than the service.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

ENDPOINT_VARIABLE: Final = "BROKERWQ_TEST_DYNAMODB_ENDPOINT"
"""A DynamoDB that already runs, e.g. ``http://127.0.0.1:8000``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbServer:
    """A running server that speaks DynamoDB.

    Attributes:
        endpoint: Its address.
        region: A region it serves.
        environment: What the AWS SDK needs beside the address: harmless credentials, and no
            search for a cloud machine's own.
    """

    endpoint: str
    region: str = "us-east-1"
    environment: Mapping[str, str] = field(
        default_factory=lambda: {
            "AWS_ACCESS_KEY_ID": "000000000000",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    )

    def url(self, table: str, **options: object) -> str:
        """The URL of a store in ``table``, with ``options`` in its query."""
        query = "".join(f"&{name}={value}" for name, value in options.items())
        return f"dynamodb://{self.region}/{table}?endpoint_url={self.endpoint}{query}"


@contextmanager
def dynamodb() -> Generator[DynamodbServer]:
    """A server for as long as the block runs.

    Raises:
        ImportError: none is named, and ``moto[server]`` is not installed.
    """
    given = os.environ.get(ENDPOINT_VARIABLE)
    if given:
        yield DynamodbServer(endpoint=given.rstrip("/"))
        return
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  -- a test dependency

    # Its web server reports every request at INFO, through a logger that it sets up itself.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield DynamodbServer(endpoint=f"http://{host}:{port}")
    finally:
        server.stop()


_shared: list[DynamodbServer] = []


def shared_dynamodb() -> DynamodbServer:
    """One server for the whole process: started at the first call, gone at its exit.

    Raises:
        ImportError: as ``dynamodb``.
    """
    if not _shared:
        running = dynamodb()
        _shared.append(running.__enter__())
        atexit.register(running.__exit__, None, None, None)
    return _shared[0]

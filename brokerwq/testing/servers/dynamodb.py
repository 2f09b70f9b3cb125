"""A DynamoDB for tests: one that is there, or moto's in this process.

``dynamodb()`` takes the endpoint that ``BROKERWQ_TEST_DYNAMODB_ENDPOINT`` names, DynamoDB Local's
or LocalStack's, say; else it starts moto, which is ready in a second. ``docs/idempotency.md``
tells what that does otherwise than the service.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from brokerwq.testing.servers.aws import harmless_environment, moto_endpoint

ENDPOINT_VARIABLE: Final = "BROKERWQ_TEST_DYNAMODB_ENDPOINT"
"""A DynamoDB that already runs, e.g. ``http://127.0.0.1:8000``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbServer:
    """A running server that speaks DynamoDB.

    Attributes:
        endpoint: Its address.
        region: A region it serves.
        environment: See ``harmless_environment``.
    """

    endpoint: str
    region: str = "us-east-1"
    environment: Mapping[str, str] = field(default_factory=harmless_environment)

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
    with moto_endpoint(one_at_a_time=True) as endpoint:
        yield DynamodbServer(endpoint=endpoint)


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

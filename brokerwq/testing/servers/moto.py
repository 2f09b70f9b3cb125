"""moto's SQS in this process: a second opinion beside LocalStack, ready in a second.

Every receive costs it time in proportion to the depth of the queue: keep below about a
hundred messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from brokerwq.testing.servers.aws import moto_endpoint
from brokerwq.testing.servers.localstack import SqsServer


@contextlib.contextmanager
def moto() -> Generator[SqsServer]:
    """A moto server on a free port of this machine, for as long as the block runs.

    Raises:
        ImportError: ``moto[server]`` is not installed.
    """
    with moto_endpoint() as endpoint:
        yield SqsServer(endpoint=endpoint)

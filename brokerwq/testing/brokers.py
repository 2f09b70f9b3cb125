"""A broker of a test's own, on a server that it shares with others."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from brokerwq.testing.servers.kinds import Service
from brokerwq.testing.servers.localstack import SqsServer
from brokerwq.testing.servers.management import Management


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnderTest:
    """A broker with nothing on it: ``async with app.on(broker.url): …``.

    Attributes:
        name: ``memory``, ``sqlite``, ``rabbitmq`` or ``sqs``.
        url: For ``App``, ``app.on`` or ``connect``; also in another process.
    """

    name: Literal["memory", "sqlite", "rabbitmq", "sqs"]
    url: str

    def with_options(self, **options: object) -> str:
        """The URL with options of its adapter: ``bwq_sqs.with_options(fifo=True)``."""
        query = urlencode(
            {
                name: str(value).lower() if isinstance(value, bool) else value
                for name, value in options.items()
            }
        )
        return f"{self.url}{'&' if '?' in self.url else '?'}{query}" if query else self.url


def in_memory() -> BrokerUnderTest:
    """A new one in this process, which all who use its URL share."""
    return BrokerUnderTest(name="memory", url=f"memory://bwq-{secrets.token_hex(6)}")


def on_sqlite(folder: Path) -> BrokerUnderTest:
    """A new file in ``folder``."""
    return BrokerUnderTest(name="sqlite", url=f"sqlite:///{folder / 'brokerwq-jobs.db'}")


@contextlib.contextmanager
def on_rabbitmq(server: Service) -> Generator[BrokerUnderTest]:
    """A new virtual host, deleted at the end with all that is in it.

    Raises:
        ServerUnavailableError: the server's management interface does not answer.
    """
    management = Management(amqp_url=server.address, address=server.management)
    with management.vhost() as url:
        yield BrokerUnderTest(name="rabbitmq", url=url)


@contextlib.contextmanager
def on_sqs(server: Service) -> Generator[BrokerUnderTest]:
    """A new prefix of queue names; the queues under it are deleted at the end.

    Where the environment has no credentials for the AWS SDK it has harmless ones meanwhile. Polls
    last a second, so that no test waits long for its last one.
    """
    prefix = f"bwq-{secrets.token_hex(6)}"
    sqs = SqsServer(endpoint=server.address)
    with _environment(sqs):
        try:
            yield BrokerUnderTest(name="sqs", url=sqs.url(prefix, max_wait=1))
        finally:
            _delete_queues(sqs, prefix)


@contextlib.contextmanager
def _environment(sqs: SqsServer) -> Generator[None]:
    missing = {name: text for name, text in sqs.environment.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


_clients: dict[str, Any] = {}


def _delete_queues(sqs: SqsServer, prefix: str) -> None:
    client = _clients.get(sqs.endpoint)
    if client is None:
        import botocore.session  # noqa: PLC0415  -- comes with the extra sqs

        session: Any = botocore.session.Session()
        client = _clients[sqs.endpoint] = session.create_client(
            "sqs", region_name=sqs.region, endpoint_url=sqs.endpoint
        )
    for url in client.list_queues(QueueNamePrefix=prefix).get("QueueUrls", ()):
        with contextlib.suppress(client.exceptions.QueueDoesNotExist):
            client.delete_queue(QueueUrl=url)

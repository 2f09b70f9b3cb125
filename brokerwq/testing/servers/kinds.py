"""The servers that tests and ``brokerwq services`` share, and how each of them is started."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from brokerwq.testing.servers.container import RabbitContainer, engine_answers
from brokerwq.testing.servers.installation import local_installation
from brokerwq.testing.servers.localstack import ENDPOINT_VARIABLE, SqsServer, localstack
from brokerwq.testing.servers.node import RabbitNode
from brokerwq.testing.servers.probe import free_port

Kind: TypeAlias = Literal["rabbitmq", "sqs"]

AMQP_VARIABLE: Final = "BROKERWQ_TEST_AMQP_URL"
"""A RabbitMQ that already runs, with a user who may manage it."""
MANAGEMENT_VARIABLE: Final = "BROKERWQ_TEST_AMQP_MANAGEMENT"
"""Its management interface, where that is not on the usual port."""
IMAGE_VARIABLE: Final = "BROKERWQ_TEST_RABBITMQ_IMAGE"
"""The image of the container; one with the management plugin."""
_IMAGE: Final = "rabbitmq:3.10-management"
_AMQP_PORT: Final = 5672
_HTTP_PORT: Final = 80
_ANSWER_SECONDS: Final = 2.0
_PLUGIN: Final = "rabbitmq_management"
# Only virtual hosts are made through it: what it could tell of queues is not collected.
_CONFIG: Final = """\
management.tcp.ip = 127.0.0.1
management.tcp.port = {port}
management_agent.disable_metrics_collector = true"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server that runs.

    Attributes:
        kind: Which.
        address: An ``amqp://`` URL, or the endpoint of SQS.
        management: RabbitMQ's management interface; empty for the usual port.
        version: What RabbitMQ calls its version.
        pid: The process that keeps it running; 0 for a server that somebody else runs.
    """

    kind: Kind
    address: str
    management: str = ""
    version: str = ""
    pid: int = 0

    @property
    def url(self) -> str:
        """A URL for an ``App``."""
        return self.address if self.kind == "rabbitmq" else SqsServer(endpoint=self.address).url()

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes tests use it, and the AWS SDK work with it."""
        if self.kind == "rabbitmq":
            return {AMQP_VARIABLE: self.address, MANAGEMENT_VARIABLE: self.management}
        return {ENDPOINT_VARIABLE: self.address, **SqsServer(endpoint=self.address).environment}


def given(kind: Kind) -> Service | None:
    """The server that the environment names; None where it names none."""
    if kind == "rabbitmq":
        url = os.environ.get(AMQP_VARIABLE)
        management = os.environ.get(MANAGEMENT_VARIABLE, "")
        return Service(kind=kind, address=url, management=management) if url else None
    endpoint = os.environ.get(ENDPOINT_VARIABLE)
    return Service(kind=kind, address=endpoint.rstrip("/")) if endpoint else None


@contextmanager
def _rabbitmq() -> Generator[Service]:
    port = free_port()
    management = f"http://127.0.0.1:{port}"
    server: RabbitContainer | RabbitNode
    if engine_answers():
        image = os.environ.get(IMAGE_VARIABLE, _IMAGE)
        server = RabbitContainer(image, management_port=port)
    else:
        config = _CONFIG.format(port=port)
        server = RabbitNode(local_installation(), config=config, plugins=[_PLUGIN])
    try:
        server.start()
        yield Service(
            kind="rabbitmq", address=server.url, management=management, version=server.version
        )
    finally:
        server.close()


@contextmanager
def _sqs() -> Generator[Service]:
    with localstack() as server:
        yield Service(kind="sqs", address=server.endpoint)


STARTERS: Final[Mapping[Kind, Callable[[], AbstractContextManager[Service]]]] = {
    "rabbitmq": _rabbitmq,
    "sqs": _sqs,
}
"""Each starts a server for as long as the block lasts, or raises ``ServerUnavailableError``."""


def answers(service: Service) -> bool:
    """Whether it can be reached at this moment."""
    parts = urlsplit(service.address)
    port = parts.port or (_AMQP_PORT if service.kind == "rabbitmq" else _HTTP_PORT)
    try:
        socket.create_connection((parts.hostname or "localhost", port), _ANSWER_SECONDS).close()
    except OSError:
        return False
    return True

"""Real servers to move between, each with a corner of its own for one test."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from urllib.parse import unquote, urlsplit

import pytest

from brokerwq.testing.servers.localstack import SqsServer, localstack
from brokerwq.testing.servers.moto import moto
from brokerwq.testing.servers.rabbitmq import Release, shared_rabbitmq
from tests.adapters.rabbit import NAMES
from tests.required import or_skipped


def sqs_server() -> Generator[SqsServer]:
    """LocalStack, and the credentials for it in the environment."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in SqsServer(endpoint="").environment.items():
            patch.setenv(name, value)
        with or_skipped("sqs"):
            server = stack.enter_context(localstack())
        yield server


@contextmanager
def strict_moto(patch: pytest.MonkeyPatch, prefix: str) -> Generator[str]:
    """Queues at moto, behind a client that refuses what Amazon's own service does."""
    with moto() as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        options = "max_wait=1&clients=brokerwq.testing.sqs_strict:clients"
        yield f"sqs://us-east-1/{prefix}?endpoint_url={server.endpoint}&{options}"


def rabbit(release: Release) -> str:
    """A virtual host of the test's own on a shared server."""
    with or_skipped(NAMES[release]):
        server = shared_rabbitmq(release)
    name = f"move-{secrets.token_hex(4)}"
    user = unquote(urlsplit(server.url).username or "guest")
    server.ctl("add_vhost", name)
    server.ctl("set_permissions", "-p", name, user, ".*", ".*", ".*")
    return f"{server.url.rstrip('/')}/{name}"


def queues_at(server: SqsServer) -> str:
    """Queues with a prefix of the test's own."""
    prefix = f"move-{secrets.token_hex(4)}"
    return f"sqs://{server.region}/{prefix}?endpoint_url={server.endpoint}&max_wait=1"


def throttled(url: str) -> str:
    """The same queues, seen by a mover that is throttled."""
    return f"{url}&clients=tests.migrate.throttled:clients"

"""Private RabbitMQ servers.

``rabbitmq()`` gives one, the first of these that can be had:

1. the server that ``BROKERWQ_TEST_AMQP_URL`` names;
2. a container, where a Docker engine answers and ``testcontainers`` is installed;
3. a child process on free ports with its own data folder: the RabbitMQ of this machine, or of
   Debian's packages, which are installed or unpacked first where this process is root.

    with rabbitmq() as server:
        app = App(server.url)
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from brokerwq.testing.servers.container import RabbitContainer, engine_answers
from brokerwq.testing.servers.installation import (
    Installation,
    ServerUnavailableError,
    local_installation,
    unpacked_installation,
)
from brokerwq.testing.servers.node import RabbitNode
from brokerwq.testing.servers.probe import free_port, server_version

Release: TypeAlias = Literal["3.10", "4.0", "4.3"]
"""The releases that the tests know: Debian's bookworm, trixie and forky have them."""

URL_VARIABLES: dict[Release, str] = {
    "3.10": "BROKERWQ_TEST_AMQP_URL",
    "4.0": "BROKERWQ_TEST_AMQP_URL_4_0",
    "4.3": "BROKERWQ_TEST_AMQP_URL_4_3",
}
"""Environment variables with the URL of a server that is there already; 3.10's takes any."""

_IMAGES: dict[Release, str] = {
    "3.10": "rabbitmq:3.10",
    "4.0": "rabbitmq:4.0",
    "4.3": "rabbitmq:4.3",
}
_SUITES: dict[Release, str] = {"4.0": "trixie", "4.3": "forky"}


class RabbitServer(Protocol):
    """A server that tests may do anything to."""

    @property
    def url(self) -> str:
        """Where it answers, credentials included."""
        ...

    @property
    def version(self) -> str:
        """What it calls its version, such as ``3.10.8``."""
        ...

    def start(self) -> None:
        """Start it, with what it stored before."""
        ...

    def stop(self) -> None:
        """Stop it as an operator would."""
        ...

    def kill(self) -> None:
        """End it as a power cut would."""
        ...

    def restart(self) -> None:
        """Stop and start it."""
        ...

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` and return what it printed."""
        ...

    def close(self) -> None:
        """Remove it and its data."""
        ...


class _ExternalServer:
    """A server that somebody else runs: it can be used, but not stopped."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        self.version = server_version(parts.hostname or "localhost", parts.port or 5672) or ""

    def _refuse(self, what: str) -> ServerUnavailableError:
        return ServerUnavailableError(f"a server given by URL cannot be asked to {what}")

    def start(self) -> None:
        raise self._refuse("start")

    def stop(self) -> None:
        raise self._refuse("stop")

    def kill(self) -> None:
        raise self._refuse("end")

    def restart(self) -> None:
        raise self._refuse("restart")

    def ctl(self, *arguments: str) -> str:
        raise self._refuse(f"run rabbitmqctl {' '.join(arguments)}")

    def close(self) -> None:
        """Leave it alone."""


@contextmanager
def rabbitmq(release: Release = "3.10") -> Generator[RabbitServer]:
    """A running server of that release, gone afterwards.

    Raises:
        ServerUnavailableError: there is no way to one on this machine.
    """
    server = _start(release)
    try:
        yield server
    finally:
        server.close()


def native_node(release: Release = "3.10", *, config: str = "", name: str = "bwq") -> RabbitNode:
    """A node that is not started yet, as a child process; for tests that end it roughly.

    Args:
        release: Which RabbitMQ; 3.10 takes whatever this machine has.
        config: Lines for ``rabbitmq.conf``.
        name: First part of the node's name.

    Raises:
        ServerUnavailableError: there is no way to one on this machine.
    """
    return RabbitNode(_installation(release), name=name, config=config)


@contextmanager
def rabbitmq_cluster(release: Release = "3.10", size: int = 3) -> Generator[list[RabbitNode]]:
    """``size`` nodes of one cluster, running, gone afterwards; takes 15 to 60 s to start.

    Raises:
        ServerUnavailableError: there is no way to one on this machine.
    """
    names = [f"bwq{number}" for number in range(1, size + 1)]
    config = "\n".join(
        [
            "cluster_formation.peer_discovery_backend = classic_config",
            *(
                f"cluster_formation.classic_config.nodes.{number} = {name}@localhost"
                for number, name in enumerate(names, 1)
            ),
        ]
    )
    installation = _installation(release)
    epmd_port = free_port()
    cookie = os.urandom(16).hex()
    with ExitStack() as stack:
        nodes: list[RabbitNode] = []
        for name in names:
            node = RabbitNode(
                installation, name=name, config=config, cookie=cookie, epmd_port=epmd_port
            )
            stack.callback(node.close)
            nodes.append(node)
        for node in nodes:
            node.start(wait=False)
        for node in nodes:
            node.wait_until_ready(timeout=180)
        nodes[0].ctl("await_online_nodes", str(size))
        yield nodes


_shared: dict[Release, RabbitServer | ServerUnavailableError] = {}


def shared_rabbitmq(release: Release = "3.10") -> RabbitServer:
    """One server of that release for the whole process: started at the first call, gone at exit.

    Raises:
        ServerUnavailableError: there is no way to one on this machine; told once, then cheap.
    """
    found = _shared.get(release)
    if found is None:
        try:
            found = _start(release)
        except ServerUnavailableError as exc:
            found = exc
        else:
            atexit.register(found.close)
        _shared[release] = found
    if isinstance(found, ServerUnavailableError):
        raise found
    return found


def _start(release: Release) -> RabbitServer:
    url = os.environ.get(URL_VARIABLES[release])
    if url:
        return _ExternalServer(url)
    server = RabbitContainer(_IMAGES[release]) if engine_answers() else native_node(release)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


def _installation(release: Release) -> Installation:
    suite = _SUITES.get(release)
    return local_installation() if suite is None else unpacked_installation(suite)

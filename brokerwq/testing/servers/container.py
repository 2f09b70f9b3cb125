"""RabbitMQ in a container, where a Docker engine answers and testcontainers is installed."""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from brokerwq.testing.servers.installation import ServerUnavailableError
from brokerwq.testing.servers.probe import free_port, server_version

START_SECONDS = 120.0
_AMQP_PORT = 5672
_MANAGEMENT_PORT = 15672
_ENGINE_PORT = 2375
_ENGINE_SECONDS = 5.0


def engine_answers() -> bool:
    """Whether a Docker engine can be used from here.

    Asked without the client, which leaves its socket open where nobody answers.
    """
    if importlib.util.find_spec("testcontainers") is None:
        return False
    address = urlsplit(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    try:
        if address.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as engine:
                engine.settimeout(_ENGINE_SECONDS)
                engine.connect(address.path)
        else:
            place = (address.hostname or "localhost", address.port or _ENGINE_PORT)
            socket.create_connection(place, _ENGINE_SECONDS).close()
    except OSError:
        return False
    return True


class RabbitContainer:
    """One RabbitMQ container with a fixed port, so that it can be killed and started again.

    Args:
        image: Its image.
        management_port: Where its management interface shall answer, if the image has one.
    """

    def __init__(self, image: str, *, management_port: int | None = None) -> None:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415

        self.host = "127.0.0.1"
        self.port = free_port()
        self.version = ""
        container: Any = DockerContainer(image)
        self._container: Any = container.with_bind_ports(_AMQP_PORT, self.port).with_env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 1:1 +sbwt none"
        )
        if management_port is not None:
            self._container = self._container.with_bind_ports(_MANAGEMENT_PORT, management_port)
        self._was_started = False

    @property
    def url(self) -> str:
        """The default user on the default virtual host."""
        return f"amqp://guest:guest@{self.host}:{self.port}/"

    def start(self) -> None:
        """Start the container, with what it stored before.

        Raises:
            ServerUnavailableError: it did not answer in time.
        """
        if self._was_started:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._was_started = True
        give_up_at = time.monotonic() + START_SECONDS  # noqa: TID251  -- a real server
        while time.monotonic() < give_up_at:  # noqa: TID251
            version = server_version(self.host, self.port)
            if version is not None:
                self.version = version
                return
            time.sleep(0.2)
        msg = f"RabbitMQ in a container did not answer within {START_SECONDS:g} s"
        raise ServerUnavailableError(msg)

    def stop(self) -> None:
        """Stop it as an operator would."""
        self._container.get_wrapped_container().stop()

    def kill(self) -> None:
        """SIGKILL."""
        self._container.get_wrapped_container().kill()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` and return what it printed.

        Raises:
            RuntimeError: it failed.
        """
        code, output = self._container.exec(["rabbitmqctl", "--quiet", *arguments])
        text = bytes(output).decode(errors="replace")
        if code:
            msg = f"rabbitmqctl {arguments[0]} failed with {code}: {text[-1000:]}"
            raise RuntimeError(msg)
        return text

    def close(self) -> None:
        """Remove the container and its data."""
        self._container.stop()

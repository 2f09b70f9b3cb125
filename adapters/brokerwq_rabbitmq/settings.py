"""What an ``amqp://`` or ``amqps://`` URL says."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from brokerwq.driver.rules.rabbitmq import CONSUMER_TIMEOUT, MAX_BODY, max_lease_of
from brokerwq.driver.support import split_url, url_options
from brokerwq.durations import positive_seconds
from brokerwq.errors import ConfigError

__all__ = ["RabbitSettings", "max_lease_of", "parse_url"]

_PORTS = {"amqp": 5672, "amqps": 5671}
_MAX_PORT = 65535
_MAX_HEARTBEAT = 600

_OPTIONS: dict[str, type[Any]] = {
    "auth": str,
    "cafile": str,
    "capath": str,
    "certfile": str,
    "connect_timeout": float,
    "consumer_timeout": float,
    "heartbeat": int,
    "keyfile": str,
    "max_message_bytes": int,
    "name": str,
    "publish_timeout": float,
    "rpc_timeout": float,
    "verify": bool,
}
_TLS_OPTIONS = frozenset({"cafile", "capath", "certfile", "keyfile", "verify"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitSettings:
    """One virtual host of one broker; durations are seconds.

    Attributes:
        hosts: Where its nodes answer, as (host, port); tried in turn.
        vhost: Name of the virtual host.
        user: User name.
        password: Its password.
        tls: Whether to speak TLS.
        verify: Whether the server's certificate must be good and name the host.
        cafile: File of the authorities that are trusted; empty takes the system's.
        capath: Folder of the same.
        certfile: The client's own certificate.
        keyfile: Its key, if it is not in the same file.
        auth: ``plain``, or ``external`` for the certificate's name.
        name: What the broker's console calls the connections.
        heartbeat: Asked of the broker, which ends a silent connection after about two.
        connect_timeout: For one connection to one host, handshake included.
        rpc_timeout: For one question to the broker.
        publish_timeout: For the confirmation of one batch.
        consumer_timeout: The broker's ``consumer_timeout``: how long it leaves a message
            unacked. Cannot be asked for; say it where the operator changed it. From RabbitMQ
            4.3 on it is not only believed but set, for our own consumers.
        max_message_bytes: Longest body that is sent.
    """

    hosts: tuple[tuple[str, int], ...]
    vhost: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    tls: bool = False
    verify: bool = True
    cafile: str = ""
    capath: str = ""
    certfile: str = ""
    keyfile: str = ""
    auth: str = "plain"
    name: str = "brokerwq"
    heartbeat: int = 20
    connect_timeout: float = 10.0
    rpc_timeout: float = 10.0
    publish_timeout: float = 10.0
    consumer_timeout: float = CONSUMER_TIMEOUT
    max_message_bytes: int = MAX_BODY

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "rpc_timeout", "publish_timeout", "consumer_timeout"):
            positive_seconds(getattr(self, name), name)
        if not 1 <= self.heartbeat <= _MAX_HEARTBEAT:
            msg = f"heartbeat must be 1 to {_MAX_HEARTBEAT} seconds, not {self.heartbeat}"
            raise ConfigError(msg)
        if self.max_message_bytes < 1:
            msg = f"max_message_bytes must be 1 or more, not {self.max_message_bytes}"
            raise ConfigError(msg)
        if self.auth not in ("plain", "external"):
            msg = f"auth must be 'plain' or 'external', not {self.auth!r:.100}"
            raise ConfigError(msg)

    @property
    def place(self) -> str:
        """The virtual host, by its nodes since two clusters may have one name."""
        hosts = ",".join(sorted(f"{host.lower()}:{port}" for host, port in self.hosts))
        return f"amqp://{hosts}/{quote(self.vhost, safe='')}"

    @property
    def max_lease(self) -> float:
        """How long a message may be held: shorter than ``consumer_timeout``."""
        return max_lease_of(self.consumer_timeout)

    def tls_context(self) -> ssl.SSLContext | None:
        """What TLS needs; None without it.

        Raises:
            ConfigError: a certificate or key cannot be read.
        """
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(
                cafile=self.cafile or None, capath=self.capath or None
            )
            if self.certfile:
                context.load_cert_chain(self.certfile, self.keyfile or None)
        except OSError as exc:
            files = ", ".join(filter(None, (self.cafile, self.capath, self.certfile, self.keyfile)))
            msg = f"TLS files cannot be used ({files}): {exc}"
            raise ConfigError(msg) from exc
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def parse_url(url: str) -> RabbitSettings:
    """Settings from ``amqp[s]://user:password@host:port,host:port/vhost?option=value``.

    Raises:
        ConfigError: the URL cannot be read, or has an option that is unknown or malformed.
    """
    options = url_options(url, _OPTIONS)
    parts = split_url(url)
    scheme = parts.scheme.lower()
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    identity: dict[str, Any] = {}
    if credentials:
        identity = {"user": unquote(user), "password": unquote(password)}
    misplaced = sorted(_TLS_OPTIONS & options.keys()) if scheme != "amqps" else []
    if misplaced:
        msg = f"{', '.join(misplaced)} in the URL: only amqps:// has TLS"
        raise ConfigError(msg)
    return RabbitSettings(
        hosts=tuple(_host(text, scheme) for text in hosts.split(",")),
        vhost=unquote(parts.path[1:]) or "/",
        tls=scheme == "amqps",
        **identity,
        **options,
    )


def _host(text: str, scheme: str) -> tuple[str, int]:
    name, separator, port = text.rpartition(":")
    if not separator or port.endswith("]"):  # the colon of an IPv6 address
        name, port = text, str(_PORTS[scheme])
    name = unquote(name).removeprefix("[").removesuffix("]")
    if not name or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= _MAX_PORT:
        # Not the port: it is the beginning of a password where that has a bare / ? or #.
        msg = (
            f"{name!r:.200} is no host, or what follows is no port; write for example "
            f"{scheme}://localhost/, and / ? # in a password as %2F %3F %23"
        )
        raise ConfigError(msg)
    return name, int(port)

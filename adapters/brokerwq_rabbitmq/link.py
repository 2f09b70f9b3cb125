"""One connection, made when it is needed and made again when it was lost."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, cast

import aiormq
from aiormq.channel import Channel
from aiormq.exceptions import AMQPError
from yarl import URL

from brokerwq.clock import Clock
from brokerwq.driver.support import bare
from brokerwq.errors import ConnectionLostError
from brokerwq_rabbitmq.errors import (
    closed,
    is_stray_cancellation,
    speaks_tls,
    to_connect_error,
    to_driver_error,
)
from brokerwq_rabbitmq.frames import FrameReader
from brokerwq_rabbitmq.settings import RabbitSettings
from brokerwq_rabbitmq.transport import Transport

_CLOSE_SECONDS = 5.0
_TLS_PROBE_SECONDS = 3.0
_FIRST_MINOR_WITH_CONSUMER_TIMEOUT = (4, 3)

_FORESEEN: Final = (AMQPError, OSError, asyncio.CancelledError)
"""Why there may be no connection. Anything else is an error of a program, and shown whole."""

_is_ours: ContextVar[bool] = ContextVar("brokerwq_rabbitmq_is_ours", default=False)


def _to_debug(record: logging.LogRecord) -> bool:
    # The client logs each lost connection at ERROR, several times. The core reports it once,
    # with what it does about it. Tasks of our connections inherit the variable; what is called
    # from elsewhere names the channel.
    if record.levelno <= logging.DEBUG or not (_is_ours.get() or _names_ours(record.args)):
        return True
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _names_ours(arguments: object) -> bool:
    named = cast("tuple[object, ...]", arguments) if isinstance(arguments, tuple) else ()
    return any(isinstance(getattr(each, "connection", None), _Connection) for each in named)


for _name in ("aiormq.connection", "aiormq.channel", "aiormq.connection.marshall"):
    logging.getLogger(_name).addFilter(_to_debug)


class _Connection(aiormq.Connection):
    # The broker gives our messages away after two silent heartbeat intervals at the earliest,
    # and sends two heartbeats in each. We must have given up before it does.
    HEARTBEAT_GRACE_MULTIPLIER = 1


class Link:
    """See the module.

    Args:
        settings: Where to.
        clock: For the age of what was last heard.
        role: What the broker's console shows behind the name.
    """

    def __init__(self, settings: RabbitSettings, clock: Clock, *, role: str) -> None:
        self._settings = settings
        self._clock = clock
        self._role = role
        self._lock = asyncio.Lock()
        self._host = 0
        self._connection: _Connection | None = None
        self._transport: Transport | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.version: tuple[int, int] = (0, 0)
        self.max_frame = 0
        self.cluster = ""

    @property
    def place(self) -> str:
        """Host and port of the node in use, for texts."""
        host, port = self._settings.hosts[self._host]
        return f"{host}:{port}"

    @property
    def has_consumer_timeout(self) -> bool:
        """Whether a consumer may bring its own timeout, and ``nack`` returns uncounted."""
        return self.version >= _FIRST_MINOR_WITH_CONSUMER_TIMEOUT

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes nothing on this connection for now."""
        reader = self._reader
        return reader is not None and not reader.unblocked.is_set()

    async def wait_until_unblocked(self, within: float) -> bool:
        """Whether the broker takes messages on this connection, at once or ``within`` seconds."""
        reader = self._reader
        if reader is None or reader.unblocked.is_set():
            return True
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.unblocked.wait(), within)
        return reader.unblocked.is_set()

    @property
    def silence(self) -> float:
        """Seconds since the broker last said anything."""
        reader = self._reader
        return 0.0 if reader is None else self._clock.now() - reader.last_read_at

    @property
    def _reader(self) -> FrameReader | None:
        return None if self._transport is None else self._transport.reader

    async def connect(self) -> None:
        """Connect unless there is a live connection; each host is tried once.

        Raises:
            ConfigError, AuthenticationError, PermissionDeniedError, ProtocolError: for good.
            ConnectionLostError: it may work later.
        """
        async with self._lock:
            if self._is_closed:
                raise closed("driver")
            if self._connection is not None and not self._connection.is_closed:
                return
            for tries_left in reversed(range(len(self._settings.hosts))):
                try:
                    await self._connect_once()
                except ConnectionLostError:
                    self._host = (self._host + 1) % len(self._settings.hosts)
                    if not tries_left:
                        raise
                else:
                    return

    async def _connect_once(self) -> None:
        settings = self._settings
        host, port = settings.hosts[self._host]
        transport = Transport(settings.tls_context(), self._clock.now)
        token = _is_ours.set(True)
        try:
            connection = _Connection(
                _client_url(settings, host, port, self._role), transport_factory=transport
            )
            connection.vhost = settings.vhost  # a URL's path cannot carry every name
            async with asyncio.timeout(settings.connect_timeout):
                await connection.connect()  # pyright: ignore[reportUnknownMemberType]
        except (Exception, asyncio.CancelledError) as exc:
            transport.abort()
            if isinstance(exc, asyncio.CancelledError) and not is_stray_cancellation(exc):
                raise
            reader = transport.reader
            error = to_connect_error(
                exc,
                place=self.place,
                user=settings.user,
                vhost=settings.vhost,
                close_reason=None if reader is None else reader.close_reason,
            )
            if (
                isinstance(error, ConnectionLostError)
                and reader is not None
                and not settings.tls
                and not isinstance(exc, TimeoutError)  # a TLS port refuses AMQP at once
                and await _answers_tls(host, port)
            ):
                error = speaks_tls(self.place)
            raise error from (bare(exc) if isinstance(exc, _FORESEEN) else exc)
        finally:
            _is_ours.reset(token)
        self._connection, self._transport = connection, transport
        self.version = _version(connection.server_properties)
        self.max_frame = connection.connection_tune.frame_max
        self.cluster = _cluster(connection.server_properties)

    async def channel(self) -> Channel:
        """A new channel without confirms, on a new connection if the old one is gone.

        Raises:
            DriverError, ConfigError: as ``connect``.
        """
        return (await self.channel_on_wire())[0]

    async def channel_on_wire(self, *, confirms: bool = False) -> tuple[Channel, Transport]:
        """A new channel, with confirms or without, and the stream below it.

        Raises:
            DriverError, ConfigError: as ``connect``.
        """
        await self.connect()
        connection, transport = self._connection, self._transport
        if connection is None or transport is None:
            raise closed("driver")
        token = _is_ours.set(True)
        try:
            channel = await connection.channel(
                publisher_confirms=confirms, timeout=self._settings.rpc_timeout
            )
        except (Exception, asyncio.CancelledError) as exc:
            if isinstance(exc, asyncio.CancelledError) and not is_stray_cancellation(exc):
                raise
            if isinstance(exc, TimeoutError):
                self.give_up()
            raise to_driver_error(exc, queue="", place=self.place) from exc
        finally:
            _is_ours.reset(token)
        assert isinstance(channel, Channel)  # noqa: S101  -- the library's annotation is wider
        return channel, transport

    def give_up(self) -> None:
        """Treat the connection as lost, for nobody answers; the next call makes another."""
        connection, transport = self._connection, self._transport
        self._connection = self._transport = None
        if transport is not None:
            transport.abort()
        if connection is not None:
            task = asyncio.get_running_loop().create_task(_close(connection))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Disconnect for good; what was written before is sent first."""
        self._is_closed = True
        connection, transport = self._connection, self._transport
        self._connection = self._transport = None
        if connection is not None:
            await _close(connection)
        if transport is not None:
            transport.abort()
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSE_SECONDS)


async def _close(connection: _Connection) -> None:
    with suppress(Exception):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await connection.close()


def _client_url(settings: RabbitSettings, host: str, port: int, role: str) -> URL:
    return URL.build(
        scheme="amqps" if settings.tls else "amqp",
        user=settings.user,
        password=settings.password,
        host=host,
        port=port,
        path="/",
        query={
            "heartbeat": str(settings.heartbeat),
            "name": f"{settings.name} {role}",
            "auth": settings.auth,
        },
    )


def _version(properties: Any) -> tuple[int, int]:
    numbers = str(properties.get("version", "")).split(".")
    try:
        return int(numbers[0]), int(numbers[1])
    except (ValueError, IndexError):
        return 0, 0


def _cluster(properties: Any) -> str:
    """What a cluster calls itself, and its version, so that two of one name are fewer."""
    return f"{properties.get('cluster_name', '')} {properties.get('version', '')}"


async def _answers_tls(host: str, port: int) -> bool:
    """Whether a port that hung up on AMQP would have spoken TLS.

    The two look alike from the plain side, and only one of them can get better by waiting.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(_TLS_PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as exc:
        return exc.reason not in (None, "WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING")
    except OSError:
        return False
    writer.transport.abort()
    return True

"""The byte stream below the client library.

aiormq takes a transport factory, and ours does three things to the stream that passes through.
Deliveries are read here and handed to whoever consumes; the library, which makes a task of each
and gives up the connection at a property that it cannot read, never sees them. Acks are written
here, so that they are on their way when the call returns. And what the library keeps to itself
is noticed: whether the broker has blocked the connection, why it closed it, when it last spoke.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from aiormq.connection import TransportFactory
from yarl import URL

from brokerwq_rabbitmq.table import to_text

_HEAD: Final = Struct(">BHI")  # type, channel, size; then the payload and one byte of end
_HEAD_SIZE: Final = 7
_METHOD, _CONTENT_HEADER = 1, 2
_TLS_ALERT: Final = b"\x15\x03"
_HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_CONNECTION_CLOSE: Final = b"\x00\x0a\x00\x32"
_BLOCKED: Final = b"\x00\x0a\x00\x3c"
_UNBLOCKED: Final = b"\x00\x0a\x00\x3d"
_DELIVER: Final = b"\x00\x3c\x00\x3c"
# A whole frame of basic.ack, reject or nack: they have one shape.
_SETTLE: Final = Struct(">BHIHHQBB")
_SETTLE_SIZE, _BASIC, _END = 13, 60, 0xCE
_CHUNK: Final = 2**16
_SIGN_OF_LIFE_SECONDS: Final = 1.0


class Settle(enum.Enum):
    """What is done to a delivery; the method's number and the bits behind the tag."""

    ACK = (80, 0)
    ACK_UP_TO = (80, 1)
    """It and every earlier one of the channel."""
    REJECT = (90, 1)
    """Requeue; counted on every version."""
    NACK = (120, 2)
    """Requeue; not counted from 4.3 on."""
    GIVE_UP = (90, 0)
    """Reject without requeue: the queue's dead-letter exchange takes it, if it has one."""


class NotAmqpError(ConnectionError):
    """What answers does not speak AMQP 0-9-1.

    Attributes:
        speaks_tls: It answered with a TLS alert.
    """

    def __init__(self, first: bytes) -> None:
        super().__init__(f"the first bytes are {first[:8]!r}")
        self.speaks_tls = first.startswith(_TLS_ALERT)


@dataclass(slots=True)
class Arrival:
    """One delivery, as it came.

    Attributes:
        consumer: The consumer's tag.
        tag: The delivery tag.
        redelivered: Whether the broker handed it out before.
        exchange: Where it was published.
        routing_key: With which key.
        properties: Its properties, unread.
        body: Its body.
    """

    consumer: str
    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: bytes = b""
    body: bytes = b""


@dataclass(slots=True)
class _Partial:
    """A delivery of which more frames must come."""

    arrival: Arrival
    missing: int = -1
    parts: list[bytes] = field(default_factory=list[bytes])


class FrameReader(asyncio.StreamReader):
    """Serves aiormq a frame at a time, as it asks for one piece by piece.

    Attributes:
        consumers: Called with each delivery, by consumer tag; must not raise.
        last_read_at: When the broker last said anything, on the clock given.
        unblocked: Not set while the broker takes nothing more on this connection.
        close_reason: Code and text of the broker's Connection.Close; None before one.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(limit=_CHUNK, loop=asyncio.get_running_loop())
        self._now = now
        self._data = b""
        self._at = 0
        self._frame = b""
        self._frame_at = 0
        self._partial: dict[int, _Partial] = {}
        self._passed_at = now()
        self._has_news = False
        self._is_greeted = False
        self.consumers: dict[str, Callable[[Arrival], None]] = {}
        self.last_read_at = now()
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self.close_reason: tuple[int, str] | None = None

    def at_eof(self) -> bool:
        """Whether nothing is left to read; see ``asyncio.StreamReader``."""
        return self._at >= len(self._data) and super().at_eof()

    async def readexactly(self, n: int) -> bytes:
        """The next ``n`` bytes; never beyond the end of a frame."""
        if self._frame_at >= len(self._frame):
            self._frame = await self._next_frame()
            self._frame_at = 0
        part = self._frame[self._frame_at : self._frame_at + n]
        self._frame_at += n
        return part

    async def _next_frame(self) -> bytes:
        while True:
            frame = self._passed_on()
            if frame is None and self._owes_a_sign_of_life():
                frame = _HEARTBEAT
            if frame is not None:
                self._passed_at = self._now()
                self._has_news = False
                return frame
            data = await self.read(_CHUNK)
            if not data:
                raise asyncio.IncompleteReadError(self._data[self._at :], _HEAD_SIZE)
            self.last_read_at = self._now()
            self._has_news = True
            self._data = self._data[self._at :] + data
            self._at = 0
            if not self._is_greeted:
                if data[0] != _METHOD:
                    raise NotAmqpError(data)
                self._is_greeted = True

    def _owes_a_sign_of_life(self) -> bool:
        # A busy broker sends no heartbeats, and the library does not see deliveries.
        return self._has_news and self._now() - self._passed_at >= _SIGN_OF_LIFE_SECONDS

    def _passed_on(self) -> bytes | None:
        """The next whole frame that is not a delivery's; None if more must be read."""
        data, at, end = self._data, self._at, len(self._data)
        while end - at >= _HEAD_SIZE:
            kind, channel, size = _HEAD.unpack_from(data, at)
            stop = at + _HEAD_SIZE + size + 1
            if stop > end:
                break
            self._at = stop
            if not self._is_taken(kind, channel, data, at + _HEAD_SIZE, stop - 1):
                return data[at:stop]
            at = stop
        return None

    def _is_taken(self, kind: int, channel: int, data: bytes, at: int, stop: int) -> bool:
        if kind == _METHOD:
            if data.startswith(_DELIVER, at):
                self._partial[channel] = _Partial(_arrival(data, at + 4))
                return True
            if channel == 0:
                self._notice(data[at:stop])
            return False
        partial = self._partial.get(channel)
        if partial is None:
            return False
        if kind == _CONTENT_HEADER:
            partial.missing = int.from_bytes(data[at + 4 : at + 12])
            partial.arrival.properties = data[at + 12 : stop]
        else:
            partial.missing -= stop - at
            partial.parts.append(data[at:stop])
        if not partial.missing:
            del self._partial[channel]
            arrival = partial.arrival
            arrival.body = b"".join(partial.parts)
            consumer = self.consumers.get(arrival.consumer)
            if consumer is not None:
                consumer(arrival)
        return True

    def _notice(self, method: bytes) -> None:
        kind = method[:4]
        if kind == _BLOCKED:
            self.unblocked.clear()
        elif kind == _UNBLOCKED:
            self.unblocked.set()
        elif kind == _CONNECTION_CLOSE:
            text = to_text(method[7 : 7 + method[6]])
            self.close_reason = int.from_bytes(method[4:6]), text


def _arrival(data: bytes, at: int) -> Arrival:
    tag_at = at + 1 + data[at]
    exchange_at = tag_at + 9
    key_at = exchange_at + 1 + data[exchange_at]
    return Arrival(
        consumer=to_text(data[at + 1 : tag_at]),
        tag=int.from_bytes(data[tag_at : tag_at + 8]),
        redelivered=data[tag_at + 8] & 1 == 1,
        exchange=to_text(data[exchange_at + 1 : key_at]),
        routing_key=to_text(data[key_at + 1 : key_at + 1 + data[key_at]]),
    )


class _Writer(asyncio.StreamWriter):
    # What a lost connection can no longer take, asyncio drops too, but with a warning for each
    # piece after the first few: a sender has hundreds under way.
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_closing():
            super().write(data)


class Transport(TransportFactory):
    """Opens one connection, and gives those who watch it a hand on the stream.

    Args:
        context: For TLS; None without it.
        now: The clock for ``FrameReader.last_read_at``.
    """

    def __init__(self, context: ssl.SSLContext | None, now: Callable[[], float]) -> None:
        self._context = context
        self._now = now
        self._writer: asyncio.StreamWriter | None = None
        self.reader: FrameReader | None = None

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """See ``aiormq.connection.TransportFactory``."""
        loop = asyncio.get_running_loop()
        reader = FrameReader(self._now)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(
            lambda: protocol, url.host or "", url.port or 0, ssl=self._context
        )
        self.reader = reader
        self._writer = _Writer(transport, protocol, reader, loop)
        return reader, self._writer

    def settle(self, channel: int, how: Settle, tags: Iterable[int]) -> None:
        """Write one frame for each of ``tags``.

        The library's own frames cannot be cut by it: each of them is one write too.

        Raises:
            ConnectionError: the connection is closed.
        """
        writer = self._writer
        if writer is None or writer.is_closing():
            msg = "the connection is closed"
            raise ConnectionResetError(msg)
        method, bits = how.value
        writer.write(
            b"".join(
                _SETTLE.pack(_METHOD, channel, _SETTLE_SIZE, _BASIC, method, tag, bits, _END)
                for tag in tags
            )
        )

    def abort(self) -> None:
        """Drop the connection without a word: the other side does not answer."""
        if self._writer is not None:
            self._writer.transport.abort()

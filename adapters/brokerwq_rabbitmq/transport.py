"""The connection's byte stream, and the bytes that go out below the client library.

Acks are written here, so that they are on their way when the call returns, and what is published,
a batch at once: the library makes a task, a lock and a write of each message.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from aiormq.connection import TransportFactory
from yarl import URL

from brokerwq_rabbitmq.frames import FrameReader
from brokerwq_rabbitmq.table import to_bytes

_HEAD: Final = Struct(">BHI")  # type, channel, size
_METHOD, _CONTENT_HEADER, _BODY = 1, 2, 3
# A whole frame of basic.ack, reject or nack: they have one shape.
_SETTLE: Final = Struct(">BHIHHQBB")
_SETTLE_SIZE, _BASIC, _END = 13, 60, 0xCE
# basic.publish up to the routing key, and a content header up to the properties.
_PUBLISH: Final = Struct(">BHIHHHBB")
_PUBLISH_SIZE, _PUBLISH_METHOD, _MANDATORY = 9, 40, b"\x01\xce"
_CONTENT: Final = Struct(">BHIHHQ")
_CONTENT_SIZE: Final = 12
_FRAME_END: Final = b"\xce"
_FRAME_OVERHEAD: Final = 8


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


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What to publish.

    Attributes:
        queue: Its name, which is the routing key.
        properties: As they stand in a content header frame.
        body: The body.
        id: Its message id, as the properties say it.
    """

    queue: str
    properties: bytes
    body: bytes
    id: str


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
        method, bits = how.value
        self._opened().write(
            b"".join(
                _SETTLE.pack(_METHOD, channel, _SETTLE_SIZE, _BASIC, method, tag, bits, _END)
                for tag in tags
            )
        )

    def publish(self, channel: int, outgoing: Iterable[Outgoing], max_frame: int) -> None:
        """Write messages to the default exchange, to be returned if they reach no queue.

        Args:
            channel: Its number; one whose answers somebody reads, see ``FrameReader``.
            outgoing: What to publish.
            max_frame: Bytes of the longest frame that the broker takes; 0 for any.

        Raises:
            ConnectionError: the connection is closed.
        """
        parts: list[bytes] = []
        for one in outgoing:
            key, body = to_bytes(one.queue), one.body
            size = _PUBLISH_SIZE + len(key)
            parts += (
                _PUBLISH.pack(_METHOD, channel, size, _BASIC, _PUBLISH_METHOD, 0, 0, len(key)),
                key,
                _MANDATORY,
                _CONTENT.pack(
                    _CONTENT_HEADER,
                    channel,
                    _CONTENT_SIZE + len(one.properties),
                    _BASIC,
                    0,
                    len(body),
                ),
                one.properties,
                _FRAME_END,
            )
            step = max_frame - _FRAME_OVERHEAD if max_frame else len(body)
            for at in range(0, len(body), step or 1):
                piece = body[at : at + step]
                parts += (_HEAD.pack(_BODY, channel, len(piece)), piece, _FRAME_END)
        self._opened().write(b"".join(parts))

    def _opened(self) -> asyncio.StreamWriter:
        writer = self._writer
        if writer is None or writer.is_closing():
            msg = "the connection is closed"
            raise ConnectionResetError(msg)
        return writer

    def abort(self) -> None:
        """Drop the connection without a word: the other side does not answer."""
        if self._writer is not None:
            self._writer.transport.abort()

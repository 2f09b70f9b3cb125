"""The byte stream below the client library, with an eye on it.

aiormq takes a transport factory; ours reads whole frames. Where that is asked for it packs the
properties of each message into one opaque header, so that the library passes them on unread
(see ``table``), and it notices what the library keeps to itself: whether the broker has
blocked the connection, why it closed it, and when it last said anything.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from aiormq.connection import TransportFactory
from yarl import URL

from brokerwq_rabbitmq.table import to_text

_METHOD, _CONTENT_HEADER = 1, 2
_FRAME_TYPES = frozenset((1, 2, 3, 8))
_CONNECTION_CLOSE = b"\x00\x0a\x00\x32"
_BLOCKED = b"\x00\x0a\x00\x3c"
_UNBLOCKED = b"\x00\x0a\x00\x3d"
_HEADERS_ONLY = b"\x20\x00"
_END = b"\xce"
_LIMIT = 2**16


_TLS_ALERT = b"\x15\x03"


class NotAmqpError(ConnectionError):
    """What answers does not speak AMQP 0-9-1.

    Attributes:
        speaks_tls: It answered with a TLS alert.
    """

    def __init__(self, first: bytes) -> None:
        super().__init__(f"the first bytes are {first!r}")
        self.speaks_tls = first.startswith(_TLS_ALERT)


class FrameReader(asyncio.StreamReader):
    """Serves a frame at a time, as aiormq asks for it piece by piece.

    Attributes:
        last_read_at: When the last frame came, on the clock given.
        unblocked: Not set while the broker takes nothing more on this connection.
        close_reason: Code and text of the broker's Connection.Close; None before one.
    """

    def __init__(self, *, packs_properties: bool, now: Callable[[], float]) -> None:
        super().__init__(limit=_LIMIT, loop=asyncio.get_running_loop())
        self._packs_properties = packs_properties
        self._now = now
        self._frame = b""
        self._at = 0
        self._is_greeted = False
        self.last_read_at = now()
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self.close_reason: tuple[int, str] | None = None

    async def readexactly(self, n: int) -> bytes:
        """The next ``n`` bytes; never beyond the end of a frame."""
        if self._at >= len(self._frame):
            self._frame = await self._next_frame()
            self._at = 0
        part = self._frame[self._at : self._at + n]
        self._at += n
        return part

    async def _next_frame(self) -> bytes:
        head = await super().readexactly(7)
        if not self._is_greeted:
            if head[0] != _METHOD and not head.startswith(b"AMQP"):
                raise NotAmqpError(head)
            self._is_greeted = True
        if head[0] not in _FRAME_TYPES:
            return head
        rest = await super().readexactly(int.from_bytes(head[3:7]) + 1)
        self.last_read_at = self._now()
        if head[0] == _CONTENT_HEADER and self._packs_properties:
            return _packed(head, rest)
        if head[0] == _METHOD and head[1:3] == b"\0\0":
            self._notice(rest)
        return head + rest

    def _notice(self, method: bytes) -> None:
        kind = method[:4]
        if kind == _BLOCKED:
            self.unblocked.clear()
        elif kind == _UNBLOCKED:
            self.unblocked.set()
        elif kind == _CONNECTION_CLOSE:
            text = to_text(method[7 : 7 + method[6]])
            self.close_reason = int.from_bytes(method[4:6]), text


def _packed(head: bytes, rest: bytes) -> bytes:
    properties = rest[12:-1]
    # One entry: an empty name, type x, the bytes.
    table = b"\0x" + len(properties).to_bytes(4) + properties
    payload = rest[:12] + _HEADERS_ONLY + len(table).to_bytes(4) + table
    return head[:3] + len(payload).to_bytes(4) + payload + _END


class Transport(TransportFactory):
    """Opens one connection; ``reader`` and ``abort`` are for whoever watches it."""

    def __init__(
        self, *, context: ssl.SSLContext | None, packs_properties: bool, now: Callable[[], float]
    ) -> None:
        self._context = context
        self._packs_properties = packs_properties
        self._now = now
        self._writer: asyncio.StreamWriter | None = None
        self.reader: FrameReader | None = None

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """See ``aiormq.connection.TransportFactory``."""
        loop = asyncio.get_running_loop()
        reader = FrameReader(packs_properties=self._packs_properties, now=self._now)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(
            lambda: protocol, url.host or "", url.port or 0, ssl=self._context
        )
        self.reader = reader
        self._writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return reader, self._writer

    def abort(self) -> None:
        """Drop the connection without a word: the other side does not answer."""
        if self._writer is not None:
            self._writer.transport.abort()

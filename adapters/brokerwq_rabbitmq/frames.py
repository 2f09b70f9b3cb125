"""The bytes that come in, below the client library.

aiormq takes a transport factory, and ours gives it this reader for a stream. Deliveries are taken
out here and handed to whoever consumes; the library, which makes a task of each and gives up the
connection at a property that it cannot read, never sees them. So are the broker's words on what
was published: the library looks through all that is under way at each of them. And what it keeps
to itself is noticed: whether the broker has blocked the connection, why it closed it, when it
last spoke.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, Protocol

from brokerwq_rabbitmq.table import to_text

_HEAD: Final = Struct(">BHI")  # type, channel, size; then the payload and one byte of end
_HEAD_SIZE: Final = 7
_METHOD, _CONTENT_HEADER = 1, 2
_TLS_ALERT: Final = b"\x15\x03"
_HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_CHANNEL_CLOSE: Final = b"\x00\x14\x00\x28"
_CONNECTION_CLOSE: Final = b"\x00\x0a\x00\x32"
_BLOCKED: Final = b"\x00\x0a\x00\x3c"
_UNBLOCKED: Final = b"\x00\x0a\x00\x3d"
_DELIVER: Final = b"\x00\x3c\x00\x3c"
_RETURN: Final = b"\x00\x3c\x00\x32"
_CONFIRMS: Final = {b"\x00\x3c\x00\x50": True, b"\x00\x3c\x00\x78": False}
"""basic.ack and basic.nack, as a broker sends them: whether the message is stored."""
_CHUNK: Final = 2**16
_SIGN_OF_LIFE_SECONDS: Final = 1.0


class NotAmqpError(ConnectionError):
    """What answers does not speak AMQP 0-9-1.

    Attributes:
        speaks_tls: It answered with a TLS alert.
    """

    def __init__(self, first: bytes) -> None:
        super().__init__(f"the first bytes are {first[:8]!r}")
        self.speaks_tls = first.startswith(_TLS_ALERT)


class Answers(Protocol):
    """Told what the broker says of messages that were published on a channel."""

    def confirmed(self, tag: int, *, multiple: bool, is_stored: bool) -> None:
        """The message of this number, or all up to it, is stored, or refused."""
        ...

    def returned(self, arrival: Arrival) -> None:
        """This message, which will be confirmed all the same, has reached no queue."""
        ...

    def ended(self) -> None:
        """The broker closes the channel: what is written from now on is one error more."""
        ...


@dataclass(slots=True)
class Arrival:
    """One delivery, or one message that the broker returns, as it came.

    Attributes:
        consumer: The consumer's tag; empty for what is returned.
        tag: The delivery tag; 0 for what is returned.
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
    """A message of which more frames must come."""

    arrival: Arrival
    missing: int = -1
    parts: list[bytes] = field(default_factory=list[bytes])


class FrameReader(asyncio.StreamReader):
    """Serves aiormq a frame at a time, as it asks for one piece by piece.

    Attributes:
        consumers: Called with each delivery, by consumer tag; must not raise.
        publishers: Told of each confirm and return, by channel; must not raise.
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
        self.publishers: dict[int, Answers] = {}
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
        """The next whole frame that is the library's; None if more must be read."""
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
            answers = self.publishers.get(channel)
            return answers is not None and self._is_answer(answers, channel, data, at)
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
            if arrival.consumer:
                taker = self.consumers.get(arrival.consumer)
            else:
                answers = self.publishers.get(channel)
                taker = None if answers is None else answers.returned
            if taker is not None:
                taker(arrival)
        return True

    def _is_answer(self, answers: Answers, channel: int, data: bytes, at: int) -> bool:
        method = data[at : at + 4]
        is_stored = _CONFIRMS.get(method)
        if is_stored is not None:
            tag = int.from_bytes(data[at + 4 : at + 12])
            answers.confirmed(tag, multiple=data[at + 12] & 1 == 1, is_stored=is_stored)
            return True
        if method == _RETURN:
            self._partial[channel] = _Partial(_returned(data, at + 6))
            return True
        if method == _CHANNEL_CLOSE:
            answers.ended()
        return False

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


def _returned(data: bytes, at: int) -> Arrival:
    exchange_at = at + 1 + data[at]  # behind the reason's text
    key_at = exchange_at + 1 + data[exchange_at]
    return Arrival(
        consumer="",
        tag=0,
        redelivered=False,
        exchange=to_text(data[exchange_at + 1 : key_at]),
        routing_key=to_text(data[key_at + 1 : key_at + 1 + data[key_at]]),
    )

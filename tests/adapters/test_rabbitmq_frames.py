"""The stream below the client library, without a server."""

from __future__ import annotations

import asyncio
import struct

import pytest
from brokerwq_rabbitmq.frames import Arrival, FrameReader, NotAmqpError
from brokerwq_rabbitmq.transport import Outgoing, Settle, Transport
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header
from yarl import URL

START = frame.marshal(commands.Connection.Start(mechanisms="PLAIN", locales="en"), 0)
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def delivery(tag: int, payload: bytes, *, channel: int = 1, piece: int = 5) -> bytes:
    pieces = [payload[at : at + piece] for at in range(0, len(payload), piece)]
    frames: list[frame.FrameTypes] = [
        commands.Basic.Deliver("me", tag, tag % 2 == 0, "", "queue"),
        header.ContentHeader(
            body_size=len(payload), properties=commands.Basic.Properties(message_id=f"m{tag}")
        ),
        *(body.ContentBody(part) for part in pieces),
    ]
    return b"".join(frame.marshal(each, channel) for each in frames)


async def passed_on(reader: FrameReader) -> bytes:
    """One frame, asked for as aiormq does."""
    first = await reader.readexactly(1) + await reader.readexactly(6)
    size = struct.unpack(">I", first[3:7])[0]
    return first + await reader.readexactly(size + 1)


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 50))
def test_deliveries_go_to_their_consumer_and_all_else_to_the_library(
    bodies: list[bytes], cut: int
) -> None:
    ok = frame.marshal(commands.Basic.QosOk(), 1)
    stream = START + b"".join(delivery(nth, payload) + ok for nth, payload in enumerate(bodies, 1))

    async def read() -> tuple[list[Arrival], list[bytes]]:
        reader = FrameReader(Time())
        found: list[Arrival] = []
        reader.consumers["me"] = found.append
        for at in range(0, len(stream), cut):
            reader.feed_data(stream[at : at + cut])
        reader.feed_eof()
        others = [await passed_on(reader) for _ in range(1 + len(bodies))]
        assert reader.at_eof()
        return found, others

    found, others = asyncio.run(read())

    assert [each.body for each in found] == bodies
    assert [each.tag for each in found] == list(range(1, len(bodies) + 1))
    assert [each.redelivered for each in found] == [n % 2 == 0 for n in range(1, len(bodies) + 1)]
    assert all((each.exchange, each.routing_key) == ("", "queue") for each in found)
    assert others == [START, *[ok] * len(bodies)]


async def test_deliveries_of_two_channels_may_come_in_between_each_other() -> None:
    reader = FrameReader(Time())
    found: list[Arrival] = []
    reader.consumers["me"] = found.append
    one, two = delivery(1, b"a" * 12, channel=1), delivery(2, b"b" * 12, channel=2)
    reader.feed_data(START + one[:-10] + two + one[-10:] + HEARTBEAT)

    assert await passed_on(reader) == START
    assert await passed_on(reader) == HEARTBEAT
    assert [(each.tag, each.body) for each in found] == [(2, b"b" * 12), (1, b"a" * 12)]


class Heard:
    """An ``Answers`` that takes notes."""

    def __init__(self) -> None:
        self.words: list[object] = []

    def confirmed(self, tag: int, *, multiple: bool, is_stored: bool) -> None:
        self.words.append((tag, multiple, is_stored))

    def returned(self, arrival: Arrival) -> None:
        self.words.append((arrival.routing_key, arrival.properties, arrival.body))

    def ended(self) -> None:
        self.words.append("ended")


@given(st.integers(1, 60))
def test_words_on_what_was_published_go_to_the_publisher(cut: int) -> None:
    properties = commands.Basic.Properties(message_id="m1")
    close = frame.marshal(commands.Channel.Close(406, "no", 60, 40), 1)
    others = frame.marshal(commands.Basic.Ack(9), 2)
    stream = START + b"".join(
        [
            frame.marshal(commands.Basic.Return(312, "NO_ROUTE", "", "nowhere"), 1),
            frame.marshal(header.ContentHeader(body_size=4, properties=properties), 1),
            frame.marshal(body.ContentBody(b"bo"), 1),
            frame.marshal(body.ContentBody(b"dy"), 1),
            frame.marshal(commands.Basic.Ack(3, multiple=True), 1),
            frame.marshal(commands.Basic.Nack(4), 1),
            others,
            close,
        ]
    )

    async def read() -> tuple[list[object], list[bytes]]:
        reader, heard = FrameReader(Time()), Heard()
        reader.publishers[1] = heard
        for at in range(0, len(stream), cut):
            reader.feed_data(stream[at : at + cut])
        reader.feed_eof()
        return heard.words, [await passed_on(reader) for _ in range(3)]

    words, passed = asyncio.run(read())

    assert words == [
        ("nowhere", properties.marshal(), b"body"),
        (3, True, True),
        (4, False, False),
        "ended",
    ]
    assert passed == [START, others, close]


async def test_the_library_hears_of_a_broker_that_only_delivers() -> None:
    clock = Time()
    reader = FrameReader(clock)
    reader.consumers["me"] = lambda _: None
    reader.feed_data(START)
    await passed_on(reader)
    clock.now = 5.0
    reader.feed_data(delivery(1, b"x"))

    assert await passed_on(reader) == HEARTBEAT
    assert reader.last_read_at == 5.0


async def test_a_silent_broker_is_not_said_to_live() -> None:
    clock = Time()
    reader = FrameReader(clock)
    reader.feed_data(START)
    await passed_on(reader)
    clock.now = 60.0

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(passed_on(reader), 0.05)


async def test_a_delivery_for_nobody_is_dropped() -> None:
    reader = FrameReader(Time())
    reader.feed_data(START + delivery(1, b"x") + HEARTBEAT)

    assert [await passed_on(reader), await passed_on(reader)] == [START, HEARTBEAT]


async def test_what_the_library_keeps_to_itself_is_noticed() -> None:
    reader = FrameReader(Time())
    blocked = frame.marshal(commands.Connection.Blocked("low on memory"), 0)
    unblocked = frame.marshal(commands.Connection.Unblocked(), 0)
    close = frame.marshal(commands.Connection.Close(530, "NOT_ALLOWED - no", 10, 40), 0)
    reader.feed_data(START + blocked)
    assert [await passed_on(reader), await passed_on(reader)] == [START, blocked]
    assert not reader.unblocked.is_set()
    reader.feed_data(unblocked + close)

    assert [await passed_on(reader), await passed_on(reader)] == [unblocked, close]
    assert reader.unblocked.is_set()
    assert reader.close_reason == (530, "NOT_ALLOWED - no")


@pytest.mark.parametrize(
    ("first", "wanted"), [(b"HTTP/1.1 400", "another"), (b"\x15\x03\x01\x00\x02\x02\x0a", "TLS")]
)
async def test_another_protocol_is_recognised(first: bytes, wanted: str) -> None:
    reader = FrameReader(Time())
    reader.feed_data(first)

    with pytest.raises(NotAmqpError) as caught:
        await passed_on(reader)
    assert caught.value.speaks_tls == (wanted == "TLS")


async def test_the_end_in_the_middle_of_a_frame_is_an_error() -> None:
    reader = FrameReader(Time())
    reader.feed_data(START[:-3])
    reader.feed_eof()

    with pytest.raises(asyncio.IncompleteReadError):
        await passed_on(reader)


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        (Settle.ACK, commands.Basic.Ack(7, multiple=False)),
        (Settle.ACK_UP_TO, commands.Basic.Ack(7, multiple=True)),
        (Settle.REJECT, commands.Basic.Reject(7, requeue=True)),
        (Settle.NACK, commands.Basic.Nack(7, multiple=False, requeue=True)),
        (Settle.GIVE_UP, commands.Basic.Reject(7, requeue=False)),
    ],
)
async def test_settles_are_written_as_the_library_would(
    how: Settle, wanted: commands.Basic.Ack
) -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.readexactly(2 * len(frame.marshal(wanted, 3))))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        transport = Transport(None, Time())
        port = server.sockets[0].getsockname()[1]
        _, writer = await transport.create(URL(f"amqp://127.0.0.1:{port}"))
        transport.settle(3, how, [7, 7])

        assert await received == 2 * frame.marshal(wanted, 3)
        writer.close()
        with pytest.raises(ConnectionError):
            transport.settle(3, how, [7])


@pytest.mark.parametrize("size", [0, 1, 92, 93, 500])
async def test_messages_are_written_as_the_library_would(size: int) -> None:
    properties = commands.Basic.Properties(message_id="é1", delivery_mode=2)
    payload = bytes(size)
    frames: list[frame.FrameTypes] = [
        commands.Basic.Publish(routing_key="prüfen", mandatory=True),
        header.ContentHeader(body_size=size, properties=properties),
        *(body.ContentBody(payload[at : at + 92]) for at in range(0, size, 92)),
    ]
    wanted = b"".join(frame.marshal(each, 3) for each in frames) * 2
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.readexactly(len(wanted)))
        writer.close()

    outgoing = Outgoing("prüfen", properties.marshal(), payload, "é1")
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        transport = Transport(None, Time())
        port = server.sockets[0].getsockname()[1]
        _, writer = await transport.create(URL(f"amqp://127.0.0.1:{port}"))
        transport.publish(3, [outgoing, outgoing], max_frame=100)

        assert await received == wanted
        writer.close()
        with pytest.raises(ConnectionError):
            transport.publish(3, [outgoing], max_frame=100)


async def test_what_a_lost_connection_cannot_take_is_dropped_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await Transport(None, Time()).create(URL(f"amqp://127.0.0.1:{port}"))
        while not writer.is_closing():
            writer.write(HEARTBEAT)
            await asyncio.sleep(0.01)
        for _ in range(100):
            writer.write(HEARTBEAT)

    assert not caplog.records

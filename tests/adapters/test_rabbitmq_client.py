"""What the driver takes for granted of its client library; see docs/adr/0008."""

from __future__ import annotations

import asyncio
import inspect
from importlib.metadata import requires, version
from typing import Any

import aiormq
import pytest
from aiormq.channel import Channel
from aiormq.connection import FrameReceiver
from brokerwq_rabbitmq.frames import FrameReader
from packaging.requirements import Requirement
from pamqp import commands, frame
from pamqp.heartbeat import Heartbeat

HEARTBEAT = Heartbeat().marshal()


def parameters(call: Any) -> set[str]:
    return set(inspect.signature(call).parameters)


def test_the_releases_are_the_ones_that_were_tried() -> None:
    ours, *_ = (each for each in _requirements("brokerwq") if each.name == "aio-pika")
    theirs, *_ = (each for each in _requirements("aio-pika") if each.name == "aiormq")

    assert version("aio-pika") in ours.specifier
    assert "11.0" not in ours.specifier
    assert version("aiormq") in theirs.specifier
    assert "8.0" not in theirs.specifier


def _requirements(package: str) -> list[Requirement]:
    return [Requirement(text) for text in requires(package) or ()]


@pytest.mark.parametrize("name", ["Connection", "TransportFactory", "Channel"])
def test_what_the_driver_subclasses_and_annotates_is_public(name: str) -> None:
    assert name in aiormq.__all__


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("basic_qos", {"prefetch_count", "timeout"}),
        ("basic_consume", {"queue", "consumer_callback", "consumer_tag", "arguments", "timeout"}),
        ("basic_cancel", {"consumer_tag", "timeout"}),
        ("queue_declare", {"queue", "passive", "durable", "arguments", "timeout"}),
        ("queue_purge", {"queue", "timeout"}),
        ("exchange_declare", {"exchange", "passive", "timeout"}),
        ("close", {"timeout"}),
    ],
)
def test_a_channel_has_the_methods_that_are_called(method: str, wanted: set[str]) -> None:
    assert wanted <= parameters(getattr(Channel, method))


async def test_a_connection_takes_our_stream_and_shows_what_was_agreed() -> None:
    connection = aiormq.Connection("amqp://localhost/", transport_factory=_Never())

    assert "publisher_confirms" in parameters(connection.channel)
    assert aiormq.Connection.HEARTBEAT_GRACE_MULTIPLIER > 0
    assert {"connection_tune", "server_properties"} <= set(_attributes(aiormq.Connection))
    connection.vhost = "a/b"
    with pytest.raises(ConnectionRefusedError):  # what the stream raises, we get
        await connection.connect()  # pyright: ignore[reportUnknownMemberType]


class _Never(aiormq.TransportFactory):
    async def create(
        self, url: Any, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise ConnectionRefusedError(str(url))


def _attributes(kind: type[Any]) -> set[str]:
    return {
        *dir(kind),
        *(name for each in kind.__mro__ for name in getattr(each, "__annotations__", {})),
    }


async def test_the_library_reads_our_stream_frame_by_frame() -> None:
    reader = FrameReader(asyncio.get_running_loop().time)
    ok = frame.marshal(commands.Channel.OpenOk(), 1)
    received = FrameReceiver(reader)

    reader.feed_data(ok[:3])
    waiting = asyncio.ensure_future(received.get_frame())
    await asyncio.sleep(0)
    reader.feed_data(ok[3:] + HEARTBEAT)

    first, second = await waiting, await received.get_frame()
    assert isinstance(first[2], commands.Channel.OpenOk)
    assert isinstance(second[2], Heartbeat)
    reader.feed_eof()
    with pytest.raises(StopAsyncIteration):
        await received.get_frame()


def test_a_channel_says_when_it_ends_and_when_it_is_cancelled() -> None:
    assert "on_consumer_cancel_callbacks" in inspect.getsource(Channel)
    assert "closing" in _attributes(Channel)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from brokerwq._runtime.bulk_sending import send_in_chunks
from brokerwq.errors import ConfigError, DriverError, MessageTooLargeError
from brokerwq.message import Message


class Broker:
    """Accepts everything but what a test refuses; knows how much was under way at once."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.refused: set[str] = set()
        self.error: Exception | None = None
        self.under_way = 0
        self.most_under_way = 0

    async def send_batch(
        self, _queue: str, outgoing: Sequence[tuple[Message, float]], /
    ) -> Sequence[DriverError | None]:
        self.under_way += len(outgoing)
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= len(outgoing)
        if self.error is not None:
            raise self.error
        answers: list[DriverError | None] = []
        for message, _ in outgoing:
            refused = message.id in self.refused
            answers.append(MessageTooLargeError("too large") if refused else None)
            if not refused:
                self.stored.append(message.id)
        return answers


def outgoing(count: int) -> Iterator[tuple[Message, float]]:
    for n in range(count):
        yield Message(id=str(n), body=b"x"), 0.0


async def outgoing_async(count: int) -> AsyncIterator[tuple[Message, float]]:
    for each in outgoing(count):
        yield each


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 3000])
async def test_everything_is_sent_once(count: int) -> None:
    for items in (outgoing(count), outgoing_async(count)):
        broker = Broker()

        report = await send_in_chunks(broker, "q", items)

        assert report.sent == count
        assert sorted(broker.stored, key=int) == [str(n) for n in range(count)]


@pytest.mark.slow
async def test_few_messages_exist_at_a_time_however_many_are_sent() -> None:
    broker = Broker()

    await send_in_chunks(broker, "q", outgoing(20_000))

    assert broker.most_under_way <= 1500


async def test_large_bodies_make_small_chunks() -> None:
    broker = Broker()
    body = b"x" * 1_000_000

    await send_in_chunks(broker, "q", ((Message(id=str(n), body=body), 0.0) for n in range(40)))

    assert broker.most_under_way <= 15


async def test_refused_items_are_reported_by_their_place() -> None:
    broker = Broker()
    broker.refused = {"3", "777"}

    report = await send_in_chunks(broker, "q", outgoing(1000))

    assert report.sent == 998
    assert [(each.index, each.id) for each in report.failed] == [(3, "3"), (777, "777")]


async def test_error_of_a_whole_chunk_is_raised() -> None:
    broker = Broker()
    broker.error = ConfigError("wrong queue")

    with pytest.raises(ConfigError, match="wrong queue"):
        await send_in_chunks(broker, "q", outgoing(10))


async def test_error_of_the_callers_iterable_lets_what_is_under_way_end() -> None:
    broker = Broker()

    def failing() -> Iterator[tuple[Message, float]]:
        yield from outgoing(1200)
        raise LookupError

    with pytest.raises(LookupError):
        await send_in_chunks(broker, "q", failing())

    assert len(broker.stored) == 1000
    assert broker.under_way == 0

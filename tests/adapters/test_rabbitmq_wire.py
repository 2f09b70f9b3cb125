"""Messages on RabbitMQ's wire: ours, and those of others."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from brokerwq_rabbitmq.table import Properties, decode_properties, encode_text
from pamqp.commands import Basic

from brokerwq.dead_letters.export import line_of
from brokerwq.driver import Delivery, Mark
from brokerwq.message import DeadLetterNote, Message
from tests.adapters.rabbit import RELEASES, Lab, claim, opened, server_or_skip, some

pytestmark = pytest.mark.slow

NOTE = DeadLetterNote(reason="failed", attempts=3, error="boom")


@pytest.fixture(params=RELEASES)
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(server_or_skip(request.param))


class Wire(Basic.Properties):
    """Properties that are sent as the bytes they are given as."""

    __slots__ = ["encoded", "message_id"]

    def __init__(self, native: Properties) -> None:
        super().__init__()
        self.message_id = native.text("message_id") or "none"
        self.encoded = native.encode()

    def marshal(self) -> bytes:
        return self.encoded


EVERY_TYPE: dict[str, bytes] = {
    "flag": b"t\x01",
    "byte": b"b\xff",
    "octet": b"B\xff",
    "short": b"s\xff\xfe",
    "long": b"I\xff\xff\xff\xfd",
    "longlong": b"l" + struct.pack(">q", -(2**62)),
    "float": b"f" + struct.pack(">f", 0.5),
    "double": b"d" + struct.pack(">d", 0.1),
    "decimal": b"D\x02" + struct.pack(">I", 314),
    "text": encode_text("grün"),
    "no text": b"S" + struct.pack(">I", 2) + b"\xff\xfe",
    "bytes": b"x" + struct.pack(">I", 2) + b"\x00\xff",
    "time": b"T" + struct.pack(">Q", 1790000000),
    "microseconds": b"T" + struct.pack(">Q", 1790000000123456),
    "void": b"V",
    "table": b"F" + struct.pack(">I", 4) + b"\x01at\x01",
    "array": b"A" + struct.pack(">I", 6) + b"VI\x00\x00\x00\x1e",
    "no name \udcff": encode_text("a name that is no UTF-8"),
}


def foreign(**values: bytes) -> Properties:
    return Properties(values=dict(values), headers=dict(EVERY_TYPE))


async def test_every_native_header_is_readable_and_harms_nobody(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        await lab.publish(spec.name, b"body", Wire(foreign(type=b"order.paid", app_id=b"shop")))
        await driver.send(spec.name, some(1), [0.0])
        consumer = await driver.consume(spec.name, lease=60, prefetch=5)

        theirs, ours = await claim(consumer, 2)

    headers: Any = theirs.raw["headers"]
    assert headers["double"] == 0.1
    assert headers["no text"] == b"\xff\xfe"
    assert headers["time"] == datetime.fromtimestamp(1790000000, UTC)
    assert headers["array"] == [None, 30]
    assert set(headers) == set(EVERY_TYPE)
    assert theirs.raw["type"] == "order.paid"
    assert theirs.raw["routing_key"] == spec.name
    assert theirs.message.type == ""
    assert theirs.message.headers == {"text": "grün"}
    assert theirs.message.body == b"body"
    assert not theirs.defect
    assert ours.raw == {}


async def test_a_property_that_is_no_text_is_bytes_and_an_id_of_bytes_stays_one_id(
    lab: Lab,
) -> None:
    binary = bytes(range(128, 144))
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        theirs = Wire(foreign(message_id=binary, correlation_id=binary))
        await lab.publish(spec.name, b"body", theirs)
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [first] = await claim(consumer)
        await consumer.dead_letter([first], [NOTE])
        reader = await driver.consume(spec.dead_letter_queue, lease=60, prefetch=1)
        [dead] = await claim(reader)

    assert first.raw["message_id"] == first.raw["correlation_id"] == binary
    assert first.message.id == dead.message.id == str(binary)[2:-1]
    assert line_of(dead.message).encode()
    assert dead.raw["message_id"] == binary


@pytest.mark.parametrize("way", ["release", "put_back", "dead_letter", "send"])
async def test_a_copy_of_a_foreign_message_keeps_every_byte_of_its_headers(
    lab: Lab, way: str
) -> None:
    properties = foreign(
        content_type=b"application/json",
        correlation_id=b"c-1",
        priority=b"\x04",
        expiration=b"3600000",
        timestamp=struct.pack(">Q", 1790000000),
        type=b"order.paid",
        user_id=b"guest",
    )
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        await lab.publish(spec.name, b"body", Wire(properties))
        consumer = await driver.consume(spec.name, lease=60, prefetch=5)
        [first] = await claim(consumer)
        await consumer.quiesce()
        where = spec.name
        if way == "release":
            assert await consumer.release([first], [1.0]) == [None]
        elif way == "put_back":
            assert await consumer.put_back([first], [0.0], [Mark(suspect=True)]) == [None]
        elif way == "send":
            assert await driver.send(spec.name, [first.message], [0.0]) == [None]
            await consumer.ack([first])
        else:
            where = spec.dead_letter_queue
            assert await consumer.dead_letter([first], [NOTE]) == [None]

        reader = await driver.consume(where, lease=60, prefetch=5)
        [again] = await claim(reader)

    native = decode_properties(again.handle.arrival.properties)  # type: ignore[attr-defined]
    kept = {name: value for name, value in native.headers.items() if name in EVERY_TYPE}
    assert kept == EVERY_TYPE
    assert set(native.headers) - set(EVERY_TYPE) <= {"bwq", *BROKERS}
    for name in ("content_type", "correlation_id", "priority", "timestamp", "type"):
        assert native.values[name] == properties.values[name]
    assert again.raw["expiration"] == "3600000"
    assert again.raw["user_id"] == "guest"
    assert again.message.created_at == datetime.fromtimestamp(1790000000, UTC)
    assert again.message.headers == first.message.headers
    assert again.message.body == b"body"
    assert again.receives == 1


# What the broker itself writes when a message leaves a delay queue.
BROKERS = {
    "x-death",
    *(
        f"x-{which}-death-{what}"
        for which in ("first", "last")
        for what in ("exchange", "queue", "reason")
    ),
}


async def test_a_foreign_copy_carries_what_we_must_remember(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        await lab.publish(spec.name, b"", Wire(foreign()))
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [first] = await claim(consumer)
        since = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        mark = Mark(attempts=2, suspect=True, unknown_since=since, snoozed=1.5)
        await consumer.put_back([first], [0.0], [mark])

        [second] = await claim(consumer)
        await consumer.dead_letter([second], [NOTE])
        reader = await driver.consume(spec.dead_letter_queue, lease=60, prefetch=1)
        [dead] = await claim(reader)

    assert second.message.id == first.message.id or not first.message.id
    assert (second.message.attempts, second.message.suspect) == (2, True)
    assert (second.message.unknown_since, second.message.snoozed) == (since, 1.5)
    assert dead.message.dead is not None
    assert dead.message.dead.error == "boom"
    assert dead.message.attempts == 0
    assert dead.message.id == second.message.id


async def test_a_copy_is_not_sent_to_the_carbon_copies_again(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        spec, other = lab.spec(), lab.spec()
        await driver.declare(spec)
        await driver.declare(other)
        copied = encode_text(other.name)
        array = b"A" + struct.pack(">I", len(copied)) + copied
        await lab.publish(spec.name, b"", Wire(Properties(headers={"CC": array})))
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [first] = await claim(consumer)
        await consumer.put_back([first], [0.0], [Mark(attempts=1)])
        [again] = await claim(consumer)

        assert await lab.ready(other.name) == 1
        headers: Any = again.raw["headers"]
        assert headers["CC"] == [other.name]


async def test_forged_counts_change_nothing(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        forged: list[dict[str, Any]] = [
            {"x-delivery-count": 2},
            {"x-delivery-count": 99, "x-acquired-count": 99},
            {"x-delivery-count": "2"},
            {"x-death": [{"count": 7, "queue": spec.name, "reason": "rejected"}]},
        ]
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        for headers in forged:
            await lab.publish(spec.name, b"", Basic.Properties(headers=headers, delivery_mode=2))
            for nth in (1, 2, 3):
                held = await claim(consumer)
                assert attempt(held[0]) == nth
                await (consumer.release(held, [0.0]) if nth < 3 else consumer.ack(held))


async def test_headers_that_the_broker_would_obey_are_only_carried(lab: Lab) -> None:
    headers = {
        "CC": "boss",
        "BCC": "audit",
        "x-death": "no",
        "x-delivery-count": "7",
        "x-first-death-queue": "mine",
        "x-request-id": "r-1",
        "n" * 200: "long",
    }
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        await driver.send(spec.name, some(1, headers=headers), [0.0])
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [first] = await claim(consumer)
        assert await consumer.release([first], [0.0]) == [None]
        [second] = await claim(consumer)
        assert await consumer.release([second], [1.0]) == [None]
        [third] = await claim(consumer)

    for delivery in (first, second, third):
        assert delivery.message.headers == headers
    assert [d.message.attempts + d.receives for d in (first, second, third)] == [1, 2, 3]


async def test_a_plain_client_sees_our_id_type_and_content_type(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        message = Message(
            id="id-1",
            body=b"{}",
            type="thumbnail",
            content_type="application/json",
            headers={"colour": "grün"},
        )
        await driver.send(spec.name, [message], [0.0])

    got = await lab.get(spec.name)
    properties = got.header.properties
    assert properties.message_id == "id-1"
    assert properties.message_type == "thumbnail"
    assert properties.content_type == "application/json"
    assert properties.delivery_mode == 2
    assert (properties.headers or {})["colour"] == "grün"
    assert got.body == b"{}"


async def test_ids_and_types_beyond_a_short_string_come_back(lab: Lab) -> None:
    message = Message(id="i" * 400, body=b"", type="t" * 300)
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        await driver.send(spec.name, [message], [0.0])
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [delivery] = await claim(consumer)

    assert (delivery.message.id, delivery.message.type) == (message.id, message.type)


async def test_a_message_that_is_no_envelope_is_handed_out_with_its_defect(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        headers: dict[str, Any] = {"bwq-v": "1", "bwq-attempts": "many"}
        await lab.publish(spec.name, b"x", Basic.Properties(headers=headers, message_id="i"))
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [delivery] = await claim(consumer)

    assert "bwq-attempts" in delivery.defect
    assert delivery.message.body == b"x"


async def test_a_delay_is_never_short_and_little_late(lab: Lab) -> None:
    delays = [0.4, 1.0, 2.5, 4.2]  # of no level, of one, of several
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        consumer = await driver.consume(spec.name, lease=60, prefetch=len(delays))
        before = datetime.now(UTC)
        messages = some(len(delays))
        await driver.send(spec.name, messages, delays)
        assert (await driver.inspect(spec.name)).delayed.value == len(delays)

        for message, delay in zip(messages, delays, strict=True):
            [delivery] = await claim(consumer)
            took = datetime.now(UTC) - before
            assert delivery.message.id == message.id
            assert timedelta(seconds=delay) <= took < timedelta(seconds=delay + 2)
            assert delivery.receives == 1
            assert delivery.message.attempts == 0


def attempt(delivery: Delivery) -> int:
    return delivery.message.attempts + delivery.receives


async def test_attempts_add_up_over_every_kind_of_return(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        spec = lab.spec()
        await driver.declare(spec)
        await driver.send(spec.name, some(1), [0.0])
        attempts: list[int] = []
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [one] = await claim(consumer)
        await consumer.release([one], [0.0])
        [two] = await claim(consumer)
        await consumer.aclose()  # as a crash would

        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [three] = await claim(consumer)
        await consumer.release([three], [1.0])
        [four] = await claim(consumer)
        mark = Mark(attempts=attempt(four) - 1)
        await consumer.put_back([four], [0.0], [mark])
        [four_again] = await claim(consumer)
        attempts = [attempt(each) for each in (one, two, three, four, four_again)]

    assert attempts == [1, 2, 3, 4, 4]

"""A message survives the wire exactly, and never breaks a limit of the service."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from brokerwq_sqs import copies, wire
from brokerwq_sqs.received import Received, read
from hypothesis import given
from hypothesis import strategies as st

from brokerwq import envelope
from brokerwq.driver import Mark
from brokerwq.message import DeadLetterNote, Message

_START = datetime(2020, 1, 1, tzinfo=UTC)
_MOMENTS = st.integers(0, 10**12).map(lambda ms: _START + timedelta(milliseconds=ms))
_TEXT = st.text(st.characters(), max_size=30)  # lone surrogates included
_NAMES = st.text(st.characters(), min_size=1, max_size=20).filter(
    lambda name: not name.lower().startswith("bwq-") and name.lower() != "content-type"
)
_NOTES = st.builds(
    DeadLetterNote,
    reason=_TEXT.filter(bool),
    error_type=_TEXT,
    error=_TEXT,
    digest=_TEXT,
    attempts=st.integers(0, 2**31 - 1),
    queue=_TEXT,
    first_at=st.none() | _MOMENTS,
    dead_at=st.none() | _MOMENTS,
    version=_TEXT,
)
_MESSAGES = st.builds(
    Message,
    id=_TEXT.filter(bool),
    body=st.binary(max_size=200) | st.text(max_size=100).map(str.encode),
    type=_TEXT,
    content_type=_TEXT,
    headers=st.dictionaries(_NAMES, _TEXT, max_size=40),
    created_at=st.none() | _MOMENTS,
    not_before=st.none() | _MOMENTS,
    attempts=st.integers(0, 2**31 - 1),
    redrives=st.integers(0, 2**31 - 1),
    key=st.none() | _TEXT,
    group=st.none() | _TEXT,
    cause=st.none() | _TEXT,
    suspect=st.booleans(),
    unknown_since=st.none() | _MOMENTS,
    snoozed=st.integers(0, 10**9).map(lambda ms: ms / 1000),
    dead=st.none() | _NOTES,
)


def native(encoded: wire.Encoded, **attributes: str) -> dict[str, Any]:
    return {
        "MessageId": "m-1",
        "ReceiptHandle": "r-1",
        "Body": encoded.body,
        "MessageAttributes": dict(encoded.attributes),
        "Attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "0", **attributes},
    }


def back(encoded: wire.Encoded, **attributes: str) -> Received:
    return read(native(encoded, **attributes))


def expect_legal(encoded: wire.Encoded) -> None:
    assert wire.is_legal(encoded.body)
    assert len(encoded.attributes) <= wire.MAX_ATTRIBUTES
    for name, value in encoded.attributes.items():
        assert wire.is_legal_name(name)
        if "StringValue" in value:
            assert wire.is_legal(value["StringValue"])


@given(_MESSAGES)
def test_every_message_comes_back_as_it_was_sent(message: Message) -> None:
    encoded = wire.encode(message)

    expect_legal(encoded)
    received = back(encoded)
    assert received.message == message
    assert received.defect == ""


@given(_MESSAGES)
def test_the_size_counts_bodies_names_types_and_values_in_bytes(message: Message) -> None:
    encoded = wire.encode(message)

    texts = [encoded.body]
    for name, value in encoded.attributes.items():
        texts += [name, value["DataType"], value["StringValue"]]
    assert encoded.size == sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


@pytest.mark.parametrize("count", [0, 9, 10, 11, 40])
def test_any_number_of_headers_fits_in_ten_attributes(count: int) -> None:
    headers = {f"header-{nth}": str(nth) for nth in range(count)}
    trace = {"traceparent": "00-1-2-01", "tracestate": "a=b", "baggage": "c=d"}
    message = Message(id="1", body=b"x", type="t", key="k", headers=headers | trace)

    encoded = wire.encode(message)

    expect_legal(encoded)
    assert encoded.attributes["traceparent"]["StringValue"] == "00-1-2-01"
    assert back(encoded).message.headers == headers | trace


@pytest.mark.parametrize(
    "name", ["a:b", "a/b", "a b", "AWS.x", "Amazon.x", "a..b", ".a", "ü", "x" * 200, "bwq", "\x1b"]
)
def test_names_that_sqs_refuses_are_carried_all_the_same(name: str) -> None:
    for kind in ("t", ""):
        message = Message(id="1", body=b"x", type=kind, headers={name: "value"})

        encoded = wire.encode(message)

        expect_legal(encoded)
        assert back(encoded).message == message


@pytest.mark.parametrize(
    ("body", "marker"),
    [
        (b"plain", None),
        (b"\r\n\t", None),
        ("\N{GRINNING FACE}".encode(), None),
        (b"\xef\xbb\xbf{}", None),
        (b"cGFy", None),
        (b"", "empty"),
        (b"a\x07b", "base64"),
        (b"a\x00b", "base64"),
        ("a\ufffeb".encode(), "base64"),
        (b"\xff\xfe", "base64"),
        (b"\xed\xa0\x80", "base64"),
    ],
)
def test_only_a_body_that_sqs_refuses_is_encoded(body: bytes, marker: str | None) -> None:
    message = Message(id="1", body=body, type="t")

    encoded = wire.encode(message)

    assert encoded.attributes.get(wire.BODY, {}).get("StringValue") == marker
    assert back(encoded).message.body == body


def test_every_poison_body_survives() -> None:
    for code in range(256):
        body = bytes([code])
        assert back(wire.encode(Message(id="1", body=body, type="t"))).message.body == body


def test_headers_without_a_type_stay_attributes_that_others_can_read() -> None:
    message = Message(id="1", body=b"x", headers={"event": "paid", "tenant": "17"})

    encoded = wire.encode(message)

    assert encoded.attributes["event"] == {"DataType": "String", "StringValue": "paid"}
    assert set(encoded.attributes) == {"event", "tenant", wire.MARK}


FOREIGN: dict[str, Any] = {
    "MessageId": "5e2c9a10",
    "ReceiptHandle": "rh",
    "Body": '{"order_id":4711}',
    "Attributes": {"ApproximateReceiveCount": "2", "SentTimestamp": "1790000000123"},
    "MessageAttributes": {
        "event_type": {"DataType": "String", "StringValue": "order.paid"},
        "tenant": {"DataType": "String.Array", "StringValue": '["t-17"]'},
        "amount": {"DataType": "Number", "StringValue": "19.90"},
        "sig": {"DataType": "Binary", "BinaryValue": b"\x00\xff\x10"},
    },
}


def foreign(count: int) -> dict[str, Any]:
    attributes = {f"a{nth}": {"DataType": "Number", "StringValue": "1"} for nth in range(count)}
    return {**FOREIGN, "MessageAttributes": attributes}


def test_a_strangers_message_is_read_without_guessing() -> None:
    received = read(FOREIGN)

    message = received.message
    assert message.id == "5e2c9a10"
    assert message.type == ""
    assert message.body == b'{"order_id":4711}'
    assert message.headers["amount"] == "19.90"
    assert "sig" not in message.headers
    assert message.created_at == datetime(2026, 9, 21, 14, 13, 20, 123000, tzinfo=UTC)
    assert message.raw["MessageAttributes"] == FOREIGN["MessageAttributes"]
    assert received.receives == 2


def test_a_copy_of_a_strangers_message_keeps_its_attributes_and_their_types() -> None:
    received = read(FOREIGN)

    encoded = copies.returned_copy(received, Mark(attempts=3, suspect=True), wire.MAX_BYTES)

    assert encoded is not None
    expect_legal(encoded)
    again = back(encoded)
    assert again.is_foreign
    assert again.message == replace(
        received.message, attempts=3, suspect=True, raw=again.message.raw
    )
    assert again.message.raw["MessageAttributes"] == FOREIGN["MessageAttributes"]
    assert again.body == FOREIGN["Body"]


def test_where_a_stranger_took_all_ten_attributes_no_copy_is_returned() -> None:
    received = read(foreign(10))

    assert copies.returned_copy(received, Mark(attempts=1), wire.MAX_BYTES) is None


def test_a_dead_letter_makes_room_for_its_note_and_gives_it_back() -> None:
    received = read(foreign(10))

    encoded = copies.dead_copy(received, DeadLetterNote(reason="failed"), wire.MAX_BYTES)

    expect_legal(encoded)
    again = back(encoded)
    assert again.message.dead is not None
    assert again.message.dead.reason == "failed"
    assert again.message.raw["MessageAttributes"] == received.attributes
    assert again.message.headers == received.message.headers


def test_an_attribute_called_like_our_mark_stays_its_owners() -> None:
    attributes = {wire.MARK: {"DataType": "String", "StringValue": "mine"}}

    received = read({**FOREIGN, "MessageAttributes": attributes})

    assert received.message.headers == {wire.MARK: "mine"}
    assert received.defect == ""


def test_a_note_is_cut_to_fit_and_the_body_never() -> None:
    message = Message(id="1", body=b"x" * 1000, type="t", attempts=4)
    received = back(wire.encode(message))
    note = DeadLetterNote(reason="failed", error="e" * 5000, digest="d" * 64, attempts=5)
    whole = copies.dead_copy(received, note, wire.MAX_BYTES)
    smallest = copies.dead_copy(received, note, 0)

    for limit in range(smallest.size, whole.size + 1, 40):
        encoded = copies.dead_copy(received, note, limit)
        assert encoded.size <= limit
        assert encoded.body == whole.body
    tight = back(copies.dead_copy(received, note, smallest.size + 150)).message
    assert tight.dead is not None
    assert tight.dead.reason == "failed"
    assert smallest.size <= wire.encode(message).size


def test_an_unreadable_envelope_is_named_and_the_rest_is_kept() -> None:
    attributes = {
        "bwq-id": {"DataType": "String", "StringValue": "1"},
        "bwq-type": {"DataType": "String", "StringValue": "t"},
        wire.PACKED: {"DataType": "String", "StringValue": "[1]"},
        wire.BODY: {"DataType": "String", "StringValue": "base64"},
    }

    received = read({"Body": "no base64!", "MessageAttributes": attributes, "MessageId": "m"})

    assert wire.PACKED in received.defect
    assert wire.BODY in received.defect
    assert received.message.type == "t"
    assert received.message.body == b"no base64!"


def test_plain_attributes_win_over_packed_ones() -> None:
    encoded = wire.encode(Message(id="1", body=b"x", type="t", headers={"traceparent": "old"}))
    renewed = {**encoded.attributes, "traceparent": {"DataType": "String", "StringValue": "new"}}

    message = read({"Body": "x", "MessageAttributes": renewed}).message

    assert message.headers["traceparent"] == "new"


def test_a_type_from_another_language_needs_no_packed_attribute() -> None:
    attributes = {
        envelope.TYPE: {"DataType": "String", "StringValue": "thumbnail"},
        "colour": {"DataType": "String", "StringValue": "green"},
    }

    received = read({"Body": "{}", "MessageAttributes": attributes, "MessageId": "m-7"})

    assert received.message.type == "thumbnail"
    assert received.message.id == "m-7"
    assert received.message.headers == {"colour": "green"}
    assert not received.is_foreign


def test_a_pointer_to_an_offloaded_payload_is_a_defect() -> None:
    pointer = {"ExtendedPayloadSize": {"DataType": "Number", "StringValue": "1310720"}}

    received = read({**FOREIGN, "MessageAttributes": pointer})

    assert received.is_offloaded
    assert "where in S3" in received.defect


SNS: dict[str, Any] = {
    "Type": "Notification",
    "MessageId": "9b1f6a40",
    "TopicArn": "arn:aws:sns:eu-central-1:000000000000:orders",
    "Message": '{"order_id":4711}',
    "MessageAttributes": {
        "event_type": {"Type": "String", "Value": "order.paid"},
        "blob": {"Type": "Binary", "Value": "AP8="},
        "traceparent": {"Type": "String", "Value": "00-1-2-01"},
    },
}


def wrapped(body: object) -> dict[str, Any]:
    return {**FOREIGN, "Body": json.dumps(body), "MessageAttributes": {}}


def test_an_sns_envelope_is_unwrapped_when_asked_for() -> None:
    message = read(wrapped(SNS), unwrap_sns=True).message

    assert message.body == b'{"order_id":4711}'
    assert message.id == "9b1f6a40"
    assert message.headers == {"event_type": "order.paid", "traceparent": "00-1-2-01"}


def test_an_sns_envelope_is_left_alone_unless_asked_for() -> None:
    assert json.loads(read(wrapped(SNS)).message.body) == SNS


@pytest.mark.parametrize(
    "payload",
    [
        {"Type": "Notification", "Message": "x"},
        {"Type": "Notification", "Message": {"a": 1}, "TopicArn": "arn"},
        {"Message": "x", "TopicArn": "arn"},
        ["Notification"],
        "Notification",
    ],
)
def test_what_only_looks_like_sns_stays_untouched(payload: object) -> None:
    message = read(wrapped(payload), unwrap_sns=True).message

    assert json.loads(message.body) == payload


def test_exactly_one_layer_is_unwrapped() -> None:
    inner = {"Records": [{"eventSource": "aws:s3"}]}
    outer = {key: value for key, value in SNS.items() if key != "MessageAttributes"}

    message = read(wrapped({**outer, "Message": json.dumps(inner)}), unwrap_sns=True).message

    assert json.loads(message.body) == inner


def test_a_copy_of_an_unwrapped_message_is_still_wrapped() -> None:
    received = read(wrapped(SNS), unwrap_sns=True)

    encoded = copies.returned_copy(received, Mark(attempts=2), wire.MAX_BYTES)

    assert encoded is not None
    again = read(native(encoded), unwrap_sns=True)
    assert again.message.body == received.message.body
    assert again.message.id == "9b1f6a40"
    assert again.message.attempts == 2


@given(_TEXT.filter(bool))
def test_group_and_deduplication_ids_are_legal(text: str) -> None:
    message = Message(id=text, body=b"")
    for made in (
        wire.group_id(text),
        wire.send_id(message),
        wire.send_id(replace(message, redrives=1)),
        wire.dead_id(message, "m:1"),
    ):
        assert 1 <= len(made) <= 128
        assert made.isascii()
        assert made.isprintable()
        assert " " not in made


def test_a_redriven_message_is_another_one_to_deduplication() -> None:
    message = Message(id="1", body=b"")

    ids = {
        wire.send_id(message),
        wire.send_id(replace(message, redrives=1)),
        wire.send_id(replace(message, attempts=1)),
        wire.dead_id(message, "a"),
        wire.dead_id(message, "b"),
    }

    assert len(ids) == 5
    assert wire.send_id(message) == "1"


def test_the_binary_attribute_that_made_room_comes_back_as_bytes() -> None:
    attributes = {f"a{nth}": {"DataType": "String", "StringValue": "x"} for nth in range(9)}
    attributes["z"] = {"DataType": "Binary", "BinaryValue": b"\x00\xff"}  # type: ignore[dict-item]
    received = read({**FOREIGN, "MessageAttributes": attributes})

    encoded = copies.dead_copy(received, DeadLetterNote(reason="failed"), wire.MAX_BYTES)

    assert back(encoded).attributes["z"] == {"DataType": "Binary", "BinaryValue": b"\x00\xff"}


def test_the_base64_of_a_body_is_what_others_would_make() -> None:
    encoded = wire.encode(Message(id="1", body=b"\x00\x01", type="t"))

    assert encoded.body == base64.b64encode(b"\x00\x01").decode()


def test_whatever_is_printable_is_legal() -> None:
    legal = {"\t", "\n", "\r"}
    for code in range(0x11_0000):
        text = chr(code)
        allowed = 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x1_0000
        assert wire.is_legal(text) == (allowed or text in legal)

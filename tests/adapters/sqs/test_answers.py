"""What is read without the SDK's parser is read as the parser would."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from botocore.parsers import create_parser
from botocore.session import get_session
from brokerwq_sqs.answers import read_entries, read_messages

MESSAGES: list[dict[str, Any]] = [
    {
        "MessageId": "1",
        "ReceiptHandle": "h",
        "MD5OfBody": "m",
        "Body": "grün 👿",
        "Attributes": {"ApproximateReceiveCount": "2", "SentTimestamp": "1700000000000"},
        "MessageAttributes": {
            "text": {"DataType": "String", "StringValue": "ä"},
            "number": {"DataType": "Number.int", "StringValue": "1"},
            "bytes": {"DataType": "Binary", "BinaryValue": base64.b64encode(b"\x00\xff").decode()},
        },
    },
    {"MessageId": "2", "ReceiptHandle": "g", "MD5OfBody": "n", "Body": "x"},
]


def response(body: bytes, status: int = 200) -> dict[str, Any]:
    return {"headers": {}, "status_code": status, "context": {}, "body": body}


def parsed(answer: dict[str, Any], operation: str = "ReceiveMessage") -> dict[str, Any]:
    shape = get_session().get_service_model("sqs").operation_model(operation).output_shape
    assert shape is not None
    found: dict[str, Any] = create_parser("json").parse(answer, shape)
    return found


@pytest.mark.parametrize("messages", [MESSAGES, MESSAGES[:1], []])
def test_what_is_read_is_what_the_sdk_would_read(messages: list[dict[str, Any]]) -> None:
    body = json.dumps({"Messages": messages} if messages else {}).encode()
    answer, ours = response(body), dict[str, Any]()

    read_messages(answer, ours)

    assert {**parsed(answer), **ours} == parsed(response(body))
    assert ours.get("Messages", []) == parsed(response(body)).get("Messages", [])
    assert bool(ours) is bool(messages)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<xml/>", b"[]", b"7", b'{"Messages": 7}', b'{"Messages": ["x"]}'),
        b'{"Messages": [{"MessageAttributes": {"a": {"BinaryValue": "%%%"}}}]}',
    ],
)
def test_what_is_not_known_is_left_to_the_sdk(body: bytes) -> None:
    answer, ours = response(body), dict[str, Any]()

    read_messages(answer, ours)

    assert ours == {}
    assert answer["body"] == body


def test_an_error_is_left_to_the_sdk() -> None:
    body = b'{"Messages": [{"Body": "x"}]}'
    answer, ours = response(body, 500), dict[str, Any]()

    read_messages(answer, ours)

    assert (ours, answer["body"]) == ({}, body)


DONE = [{"Id": "0"}, {"Id": "1"}]
SENT = [{"Id": "0", "MessageId": "m", "MD5OfMessageBody": "b", "SequenceNumber": "7"}]
FAILED = [{"Id": "2", "SenderFault": True, "Code": "InternalError", "Message": "grün"}]


@pytest.mark.parametrize(
    ("operation", "entries"),
    [
        ("SendMessageBatch", {"Successful": SENT, "Failed": FAILED}),
        ("DeleteMessageBatch", {"Successful": DONE, "Failed": FAILED}),
        ("DeleteMessageBatch", {"Successful": DONE}),
        ("ChangeMessageVisibilityBatch", {"Failed": FAILED}),
        ("ChangeMessageVisibilityBatch", {}),
    ],
)
def test_entries_are_read_as_the_sdk_would(operation: str, entries: dict[str, Any]) -> None:
    body = json.dumps(entries).encode()
    answer, ours = response(body), dict[str, Any]()

    read_entries(answer, ours)

    assert {**parsed(answer, operation), **ours} == parsed(response(body), operation)
    assert ours == entries


@pytest.mark.parametrize(
    ("body", "status"),
    [
        *((body, 200) for body in (b"", b"[]", b"7", b'{"Failed": 7}', b'{"Failed": ["x"]}')),
        (b'{"Failed": [{"Id": "0"}]}', 500),
    ],
)
def test_entries_that_are_not_known_are_left_to_the_sdk(body: bytes, status: int) -> None:
    answer, ours = response(body, status), dict[str, Any]()

    read_entries(answer, ours)

    assert (ours, answer["body"]) == ({}, body)

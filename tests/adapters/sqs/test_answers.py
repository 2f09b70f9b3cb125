"""Receives that are read without the SDK's parser are read as the parser would."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from botocore.parsers import create_parser
from botocore.session import get_session
from brokerwq_sqs.answers import read_messages

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


def parsed(answer: dict[str, Any]) -> dict[str, Any]:
    operation = get_session().get_service_model("sqs").operation_model("ReceiveMessage")
    shape = operation.output_shape
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

"""AMQP properties and field tables, without a server."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from brokerwq_rabbitmq.table import (
    Properties,
    decode_properties,
    encode_table,
    encode_text,
    scan_table,
    text_of,
    value_of,
)
from hypothesis import given
from hypothesis import strategies as st
from pamqp import header
from pamqp.commands import Basic


def table(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack(">I", len(body)) + body


def entry(name: str, value: bytes) -> bytes:
    return bytes((len(name.encode()),)) + name.encode() + value


VALUES: list[tuple[bytes, object]] = [
    (b"t\x01", True),
    (b"t\x00", False),
    (b"b\xff", -1),
    (b"B\xff", 255),
    (b"s\xff\xfe", -2),
    (b"u\xff\xfe", 65534),
    (b"I\xff\xff\xff\xfd", -3),
    (b"i\xff\xff\xff\xfd", 4294967293),
    (b"l" + struct.pack(">q", -(2**62)), -(2**62)),
    (b"f" + struct.pack(">f", 0.5), 0.5),
    (b"d" + struct.pack(">d", 0.1), 0.1),
    (b"D\x02" + struct.pack(">i", -314), Decimal("-3.14")),
    (b"S" + struct.pack(">I", 3) + "€".encode(), "€"),
    (b"S" + struct.pack(">I", 2) + b"\xff\xfe", b"\xff\xfe"),
    (b"x" + struct.pack(">I", 2) + b"\x00\xff", b"\x00\xff"),
    (b"T" + struct.pack(">Q", 1790000000), datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)),
    (
        b"T" + struct.pack(">Q", 1790000000500),
        datetime(2026, 9, 21, 14, 13, 20, 500000, tzinfo=UTC),
    ),
    (b"T" + struct.pack(">Q", 2**63), 2**63),
    (b"V", None),
    (b"F" + table(entry("a", b"t\x01"), entry("b", b"V")), {"a": True, "b": None}),
    (b"A" + table(b"V", b"I\x00\x00\x00\x1e"), [None, 30]),
]


@pytest.mark.parametrize(("wire", "value"), VALUES, ids=lambda each: repr(each)[:30])
def test_every_native_type_is_read(wire: bytes, value: object) -> None:
    raw = table(entry("before", b"V"), entry("it", wire), entry("after", b"V"))

    found = dict(scan_table(raw, 4, len(raw)))

    assert list(found) == ["before", "it", "after"]
    assert found["it"] == wire
    assert value_of(found["it"]) == value


def test_a_table_comes_out_as_it_went_in() -> None:
    raw = table(*(entry(f"name{nth}", wire) for nth, (wire, _) in enumerate(VALUES)))

    assert encode_table(dict(scan_table(raw, 4, len(raw)))) == raw


@given(
    st.dictionaries(st.text(max_size=60), st.text(max_size=300), max_size=10),
    st.text(min_size=1, max_size=50),
)
def test_what_we_write_the_client_reads(headers: dict[str, str], text: str) -> None:
    native = Properties(
        values={"message_id": text.encode(), "delivery_mode": b"\x02"},
        headers={name: encode_text(value) for name, value in headers.items()},
    )

    frame = header.ContentHeader()
    frame.unmarshal(b"\0\x3c\0\0" + bytes(8) + native.encode())

    assert (frame.properties.headers or {}) == headers
    assert frame.properties.message_id == text
    assert frame.properties.delivery_mode == 2


def test_what_the_client_writes_we_read_and_repeat() -> None:
    properties = Basic.Properties(
        content_type="text/plain",
        content_encoding="gzip",
        headers={"n": 7, "t": "x", "nested": {"a": [1, None, "z"]}},
        delivery_mode=1,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="1000",
        message_id="m",
        timestamp=datetime(2026, 1, 2, tzinfo=UTC),
        message_type="t",
        user_id="guest",
        app_id="app",
    )

    native = decode_properties(properties.marshal())

    assert native.text("message_id") == "m"
    assert native.text("type") == "t"
    assert value_of(native.headers["nested"]) == {"a": [1, None, "z"]}
    assert native.encode() == properties.marshal()


@given(st.binary(max_size=200))
def test_garbage_is_an_error_and_nothing_worse(raw: bytes) -> None:
    try:
        native = decode_properties(raw)
    except (ValueError, IndexError):
        return
    for value in native.headers.values():
        text_of(value)


def test_a_name_that_is_no_text_survives() -> None:
    raw = table(b"\x02\xff\xfe" + b"V")

    found = dict(scan_table(raw, 4, len(raw)))

    assert encode_table(found) == raw

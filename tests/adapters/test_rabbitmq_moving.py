"""What the RabbitMQ adapter tells a mover about messages of other programs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from brokerwq_rabbitmq import wire
from brokerwq_rabbitmq.frames import Arrival
from pamqp.commands import Basic

from brokerwq.driver.moving import NativeRaw


def raw_of(**properties: object) -> NativeRaw:
    native = Basic.Properties(**properties)  # type: ignore[arg-type]
    arrival = Arrival.__new__(Arrival)
    values = {
        "properties": native.marshal(),
        "body": b"{}",
        "exchange": "",
        "routing_key": "orders",
        "redelivered": False,
    }
    for name, value in values.items():
        object.__setattr__(arrival, name, value)
    raw = wire.read(arrival).message.raw
    assert isinstance(raw, NativeRaw)
    return raw


@pytest.mark.parametrize(
    ("properties", "lost"),
    [
        ({}, []),
        ({"content_type": "application/json", "message_id": "a", "delivery_mode": 2}, []),
        ({"timestamp": datetime(2026, 1, 1, tzinfo=UTC)}, []),
        ({"headers": {"tenant": "x"}, "priority": 3, "expiration": "60000"}, []),
        ({"headers": {"retries": 3}}, ["retries"]),
        ({"headers": {"tags": ["a"], "tenant": "x"}}, ["tags"]),
        ({"reply_to": "answers", "correlation_id": "7"}, ["correlation_id", "reply_to"]),
        ({"content_encoding": "gzip"}, ["content_encoding"]),
        ({"headers": {"x-death": [{"count": 1}]}}, []),
    ],
)
def test_what_no_other_broker_could_carry_is_named(
    properties: dict[str, object], lost: list[str]
) -> None:
    assert sorted(raw_of(**properties).untranslatable()) == lost

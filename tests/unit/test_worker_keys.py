"""``key=``: what makes two messages the same work."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from brokerwq.errors import ConfigError, PayloadError
from brokerwq.workers.keys import key_text
from tests.unit.recording import RecordingSender


class Image(BaseModel):
    key: str
    width: int = 256
    parent: str | None = None


@dataclass
class Point:
    x: int
    key: str = "p"


class Record(TypedDict, total=False):
    n: int


def model(image: Image) -> None: ...
def point(point: Point) -> None: ...
def mapping(record: Record) -> None: ...
def union(event: Image | Point) -> None: ...
def fields(*, a: int, b: str = "default") -> None: ...
def numbers(numbers: list[int]) -> None: ...


def key_and_one(image: Image) -> tuple[str, int]:
    return image.key, 1


def both_fields(given: Any) -> str:
    return f"{given.a}-{given.b}"


def nothing_known(image: Image) -> object:
    return {image.key}


def key_of(fn: Any, key: Any, *args: Any, **kwargs: Any) -> str | None:
    sender = RecordingSender()
    sender.worker(fn, key=key).enqueue_sync(*args, **kwargs)
    return sender.message.key


def test_a_key_is_a_field_some_fields_or_a_function() -> None:
    image = Image(key="a")

    assert key_of(model, None, image) is None
    assert key_of(model, "key", image) == "a"
    assert key_of(model, ["key", "width", "parent"], image) == '["a",256,null]'
    assert key_of(model, key_and_one, image) == '["a",1]'
    assert key_of(point, "x", Point(3)) == "3"
    assert key_of(mapping, "n", {"n": 3}) == "3"
    assert key_of(union, "key", Point(3)) == "p"
    assert key_of(numbers, sum, [1, 2]) == "3"


def test_a_key_of_fields_sees_the_defaults() -> None:
    assert key_of(fields, "b", a=1) == "default"
    assert key_of(fields, ("a", "b"), a=1, b="x") == '[1,"x"]'
    assert key_of(fields, both_fields, a=1) == "1-default"


@pytest.mark.parametrize(
    ("fn", "key", "text"),
    [
        (model, "size", "'size', which is not one of Image: key, parent, width"),
        (model, ["key", "size"], "'size'"),
        (fields, "c", "'c', which is not one of the worker's fields: a, b"),
        (union, "x", "'x', which is not one of"),
        (numbers, "n", "has no named fields: give key a function"),
        (model, "", "''"),
        (model, [], "key must be a function, a field's name or names"),
        (model, [3], "key must be a function"),
        (model, 3, "key must be a function"),
        (model, {"key"}, "key must be a function"),
    ],
)
def test_a_key_that_cannot_be_read_is_refused_at_decoration(fn: Any, key: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RecordingSender().worker(fn, key=key)


def test_no_message_is_sent_without_the_key_it_should_have() -> None:
    def broken(image: Image) -> str:
        raise LookupError(image.key)

    keys: tuple[Any, ...] = ("parent", broken, nothing_known)
    for key in keys:
        sender = RecordingSender()
        with pytest.raises(PayloadError, match="key"):
            sender.worker(model, key=key).enqueue_sync(Image(key="a"))
        assert not sender.sent


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        ("é", "é"),
        (3, "3"),
        (True, "true"),
        (0.5, "0.5"),
        (Decimal("0.10"), "0.10"),
        (Colour.RED, "red"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\x00\xff", "00ff"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00"),
        (
            datetime(2026, 1, 2, 5, tzinfo=timezone(timedelta(hours=2))),
            "2026-01-02T03:00:00+00:00",
        ),
        (("a", 1, None, ("b",)), '["a",1,null,["b"]]'),
        ([], "[]"),
    ],
)
def test_equal_values_have_equal_text(value: Any, text: str) -> None:
    assert key_text(value) == text


@pytest.mark.parametrize(
    "value", [None, "", float("nan"), Decimal("inf"), {"a": 1}, {1}, object(), "x" * 1001, "\ud800"]
)
def test_a_value_that_makes_no_key_is_refused(value: Any) -> None:
    with pytest.raises(PayloadError, match="the key"):
        key_text(value)

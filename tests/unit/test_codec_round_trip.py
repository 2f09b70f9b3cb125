"""What ``enqueue`` accepts the worker reads, and as the same value."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from brokerwq.codecs import JSON, JSON_CONTENT_TYPE
from brokerwq.errors import PayloadError


class Colour(Enum):
    RED = "red"
    BLUE = 2


@dataclass
class Size:
    width: Annotated[int, Field(gt=0)]
    height: float | None = None


class Image(BaseModel):
    key: Annotated[str, Field(max_length=3)]
    sizes: list[Size] = []
    colour: Colour = Colour.RED
    hidden: int = Field(default=0, exclude=True)


BIG = 10**sys.int_info.default_max_str_digits
TEXT = st.text(st.characters(exclude_categories=()), max_size=4)
"""Lone surrogates included."""
INTEGERS = st.integers() | st.integers(1, 9).map(lambda n: n * BIG)
LEAVES = st.none() | st.booleans() | INTEGERS | st.floats() | TEXT
ANY = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)
SIZES = st.builds(Size, width=st.integers(-2, 3), height=st.none() | st.floats())
DEEP = st.tuples(st.integers(1, 400), ANY).map(lambda made: nested(*made))


def nested(depth: int, value: object) -> object:
    for nth in range(depth):
        value = [value] if nth % 2 else {"a": value}
    return value


KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Any, ANY),
    (Any, DEEP),
    (int, INTEGERS),
    (float, st.floats()),
    (str, TEXT),
    (Decimal, st.decimals()),
    (int | str | None, INTEGERS | TEXT | st.none()),
    (datetime, st.datetimes(timezones=st.just(UTC))),
    (date, st.dates()),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Colour, st.sampled_from(Colour)),
    (Literal["a", 1], st.sampled_from(["a", 1, "b"])),
    (list[int], st.lists(INTEGERS, max_size=3)),
    (tuple[int, str], st.tuples(INTEGERS, TEXT)),
    (frozenset[str], st.frozensets(TEXT, max_size=3)),
    (dict[str, float], st.dictionaries(TEXT, st.floats(), max_size=3)),
    (dict[int, int], st.dictionaries(INTEGERS, INTEGERS, max_size=3)),
    (Size, SIZES),
    (
        Image,
        st.builds(
            Image.model_construct,  # checks nothing
            key=st.text(max_size=5),
            sizes=st.lists(SIZES, max_size=2),
            colour=st.sampled_from(Colour),
        ),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "payloads"), KINDS, ids=[str(kind) for kind, _ in KINDS])
@given(data=st.data())
def test_what_is_sent_is_read_as_the_same(
    kind: Any, payloads: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    payload = data.draw(payloads)
    codec = JSON.bind(kind)

    try:
        body = codec.encode(payload)
    except PayloadError:
        return

    assert codec.decode(body, JSON_CONTENT_TYPE) == payload


class Secretive(BaseModel):
    hidden: int = Field(exclude=True)


@pytest.mark.parametrize(
    ("kind", "payload", "why"),
    [
        (int, BIG, "number"),
        (Any, {"n": [BIG]}, "number"),
        (Any, nested(250, 1), "recursion|nested|deep"),
        (Any, {1: "a", "1": "b"}, "same key twice"),
        (Size, Size(width=-1), "width"),
        (Image, Image.model_construct(key="much too long"), "key"),
        (Secretive, Secretive(hidden=1), "hidden: missing"),
    ],
    ids=["int", "deep int", "nesting", "keys", "dataclass", "model", "excluded"],
)
def test_what_no_worker_could_read_is_refused_naming_why(kind: Any, payload: Any, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        JSON.bind(kind).encode(payload)

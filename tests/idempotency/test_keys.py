"""The canonical form of keys: equal for equal values, different for everything else."""

from __future__ import annotations

import enum
import math
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerwq.idempotency.keys import NoKeyError, digest_of, encoded_key, payload_digest


class Size(enum.Enum):
    SMALL = "s"


SAME: list[tuple[Any, Any]] = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ((1, "x"), [1, "x"]),
    (Decimal("1.0"), Decimal("1.00")),
    (Decimal(0), Decimal("-0.00")),
    ("é", "e\u0301"),
    (Size.SMALL, "s"),
    (
        datetime(2026, 1, 1, 12, tzinfo=UTC),
        datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
    ),
]
DIFFERENT: list[Any] = [
    1,
    "1",
    True,
    Decimal(1),
    b"1",
    0,
    False,
    "0",
    [1, 2],
    [2, 1],
    [[1], 2],
    [1, [2]],
    ["a", "b"],
    ["ab"],
    ["a,b"],
    {"a": "b"},
    {"a": ["b"]},
    UUID(int=1),
    str(UUID(int=1)),
    date(2026, 1, 1),
    "2026-01-01",
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1),  # noqa: DTZ001 -- a key may hold one, and it is another
    time(12),
    Decimal("1E+5"),
    Decimal(-1),
    -1,
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_values_have_one_key(one: Any, other: Any) -> None:
    assert digest_of(["shop", "charge", 1], one) == digest_of(["shop", "charge", 1], other)


def test_different_values_have_different_keys() -> None:
    digests = [digest_of(["shop"], value) for value in DIFFERENT]

    assert len(set(digests)) == len(DIFFERENT)
    assert {len(digest) for digest in digests} == {16}


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        b"",
        [],
        {},
        [None],
        {"a": None},
        {1: "a"},
        1.0,
        math.nan,
        [0.5],
        Decimal("NaN"),
        {1, 2},
        object(),
        "\ud800",
        "x" * 100_000,
    ],
)
def test_what_is_missing_or_inexact_has_no_key(value: Any) -> None:
    with pytest.raises(NoKeyError, match="key"):
        encoded_key(value)


def test_a_value_that_contains_itself_has_no_key() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(NoKeyError, match="deep"):
        encoded_key(value)


def test_a_scope_has_keys_of_its_own() -> None:
    scopes = [["shop", "charge", 1], ["shop", "charge", 2], ["shop", "refund", 1], ["bank", "x", 1]]

    assert len({digest_of(scope, "a") for scope in scopes}) == len(scopes)
    assert digest_of(["a", "bc"], "x") != digest_of(["ab", "c"], "x")


@pytest.mark.slow
def test_a_key_is_the_same_in_every_process_and_release() -> None:
    code = (
        "from brokerwq.idempotency.keys import digest_of;"
        "print(digest_of(('shop', 'charge', 1), ['a', 7]).hex())"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == digest_of(("shop", "charge", 1), ["a", 7]).hex()
    assert found.stdout.strip() == KNOWN


KNOWN = "554299df4fa7dd975c0a390aa61b916b"

scalars = st.one_of(
    st.integers(),
    st.text(min_size=1).filter(lambda text: text.isascii()),
    st.binary(min_size=1),
    st.booleans(),
    st.uuids(),
    st.dates(),
)
values = st.recursive(scalars, lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=8)


@pytest.mark.slow
@given(values, values)
def test_only_equal_values_collide(one: Any, other: Any) -> None:
    # Python says that True == 1; a key does not, so that equality is asked with the types.
    assert (encoded_key(one) == encoded_key(other)) == (_typed(one) == _typed(other))


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_typed, value))  # pyright: ignore[reportUnknownArgumentType]
    return type(value), value


def test_a_payload_digest_goes_by_the_bytes() -> None:
    assert payload_digest(b"a") == payload_digest(b"a")
    assert len({payload_digest(body) for body in (b"a", b"b", b"")}) == 3

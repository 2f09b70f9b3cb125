from __future__ import annotations

from fractions import Fraction

import pytest

from brokerwq.cli.values import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", Fraction(90)),
        ("0.1", Fraction(1, 10)),
        ("250ms", Fraction(1, 4)),
        ("15m", Fraction(900)),
        ("15min", Fraction(900)),
        ("1h30m", Fraction(5400)),
        ("1 h 30 m", Fraction(5400)),
        ("2D", Fraction(172_800)),
    ],
)
def test_durations_are_read_exactly(text: str, seconds: Fraction) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "1x", "-1", "1h30", "1 2", "1,5", "nan", "1e3", "٣", "9" * 16]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  -- its text is the input, no words
        seconds_of(text)

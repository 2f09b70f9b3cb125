from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerwq.durations import aware_utc, positive_seconds, seconds_of
from brokerwq.errors import ConfigError

NO_DURATIONS = ["1", None, True, False, b"1", [1], 1j, math.nan, math.inf, -math.inf, 10**400]


@pytest.mark.slow
@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**12), 10**12))
def test_numbers_are_seconds(value: float) -> None:
    seconds = seconds_of(value, "delay")

    assert isinstance(seconds, float)
    assert seconds == value


@given(st.timedeltas())
def test_a_timedelta_is_its_seconds(value: timedelta) -> None:
    assert seconds_of(value, "delay") == value.total_seconds()


@pytest.mark.parametrize("value", NO_DURATIONS)
def test_what_is_no_finite_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match="delay"):
        seconds_of(value, "delay")
    with pytest.raises(ConfigError, match="delay"):
        positive_seconds(value, "delay")


@pytest.mark.slow
@given(st.floats(-100, 100))
def test_a_floor_lifts_what_is_below_it(value: float) -> None:
    assert seconds_of(value, "delay", floor=0.0) == max(value, 0.0)


@pytest.mark.parametrize("check", [seconds_of, positive_seconds])
def test_a_limit_is_inclusive_and_named(check: object) -> None:
    assert callable(check)
    assert check(60, "lease", limit=60.0) == 60.0
    with pytest.raises(ConfigError, match="lease is 61 seconds; the limit is 60"):
        check(61, "lease", limit=60.0)


@pytest.mark.parametrize("value", [0, -1, -0.001, timedelta(0), timedelta(seconds=-1)])
def test_a_positive_duration_is_above_zero(value: object) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        positive_seconds(value, "lease")


@pytest.mark.slow
@given(st.datetimes(timezones=st.timezones(), min_value=datetime(1900, 1, 1)))  # noqa: DTZ001
def test_an_aware_moment_stays_the_same_moment(moment: datetime) -> None:
    found = aware_utc(moment, "at")

    assert found.timestamp() == moment.timestamp()
    assert found.tzinfo is UTC


def test_a_moment_without_time_zone_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"at must have a time zone.*datetime\.now\(UTC\)"):
        aware_utc(datetime(2026, 1, 1), "at")  # noqa: DTZ001


def test_a_moment_beyond_the_calendar_in_utc_is_refused() -> None:
    last = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))

    with pytest.raises(ConfigError, match="at"):
        aware_utc(last, "at")

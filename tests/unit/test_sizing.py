from __future__ import annotations

import math
from datetime import UTC, datetime, time, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerwq.errors import ConfigError
from brokerwq.sizing import next_local, plan_for_deadline, plan_for_slots, readable

BERLIN = ZoneInfo("Europe/Berlin")


def test_two_million_items_of_two_seconds_need_1112_slots_for_an_hour() -> None:
    plan = plan_for_deadline(2_000_000, Fraction(2), Fraction(3600))

    assert plan.slots == 1112
    assert plan.finish <= 3600


def test_a_tenth_of_a_second_is_a_tenth_and_not_what_a_float_makes_of_it() -> None:
    # As floats 0.3 / 0.1 is 2.9999999999999996, and the answer would be a slot too many.
    assert plan_for_deadline(300, Fraction("0.1"), Fraction("0.3")).slots == 100


def test_an_uneven_batch_takes_as_long_as_its_fullest_slot() -> None:
    assert plan_for_slots(11, Fraction("1.5"), 5).finish == Fraction("4.5")


def test_more_slots_than_items_take_the_time_of_one_item() -> None:
    assert plan_for_slots(3, Fraction(7), 100).finish == 7


@pytest.mark.slow
@given(
    items=st.integers(1, 10**6),
    seconds=st.fractions(Fraction(1, 1000), 100),
    within=st.fractions(100, 10**5),
)
def test_the_least_slots_meet_the_deadline_and_one_less_does_not(
    items: int, seconds: Fraction, within: Fraction
) -> None:
    plan = plan_for_deadline(items, seconds, within)

    assert plan.finish <= within
    if plan.slots > 1:
        assert plan_for_slots(items, seconds, plan.slots - 1).finish > within


@pytest.mark.parametrize("items", [0, -1, 10**15 + 1, pytest.param(10**5000, id="huge")])
def test_an_absurd_number_of_items_is_refused_with_the_range(items: int) -> None:
    with pytest.raises(ConfigError, match="items must be 1 to 1,000,000,000,000,000"):
        plan_for_slots(items, Fraction(1), 1)


@pytest.mark.parametrize("seconds", [Fraction(0), Fraction(-1), Fraction(10**400)])
def test_an_absurd_time_for_an_item_is_refused(seconds: Fraction) -> None:
    with pytest.raises(ConfigError, match="seconds must be above 0"):
        plan_for_slots(1, seconds, 1)


@pytest.mark.parametrize("slots", [0, -3, 10**6 + 1])
def test_an_absurd_number_of_slots_is_refused(slots: int) -> None:
    with pytest.raises(ConfigError, match="slots must be 1 to 1,000,000"):
        plan_for_slots(1, Fraction(1), slots)


def test_a_batch_of_more_than_a_century_is_refused() -> None:
    with pytest.raises(ConfigError, match="over 100 years"):
        plan_for_slots(10**15, Fraction(10), 1)


def test_a_deadline_shorter_than_one_item_says_that_slots_do_not_help() -> None:
    with pytest.raises(ConfigError, match="no number of slots is enough"):
        plan_for_deadline(10, Fraction(60), Fraction(59))


def test_a_deadline_that_needs_more_than_a_million_slots_is_refused() -> None:
    with pytest.raises(ConfigError, match="need 10,000,000 slots"):
        plan_for_deadline(10**7, Fraction(1), Fraction(1))


@pytest.mark.parametrize("within", [Fraction(0), Fraction(-5)])
def test_a_deadline_in_the_past_is_refused(within: Fraction) -> None:
    with pytest.raises(ConfigError, match="deadline must be above 0"):
        plan_for_deadline(10, Fraction(1), within)


def test_the_next_six_in_the_morning_is_today_if_it_is_still_to_come() -> None:
    now = datetime(2026, 5, 4, 1, 0, tzinfo=BERLIN)

    assert next_local(time(6), now, BERLIN) == datetime(2026, 5, 4, 6, 0, tzinfo=BERLIN)


def test_the_next_six_in_the_morning_is_tomorrow_once_it_has_struck() -> None:
    now = datetime(2026, 5, 4, 6, 0, tzinfo=BERLIN)

    assert next_local(time(6), now, BERLIN) == datetime(2026, 5, 5, 6, 0, tzinfo=BERLIN)


def test_the_night_in_which_the_clock_is_put_forward_is_an_hour_shorter() -> None:
    now = datetime(2026, 3, 28, 22, 0, tzinfo=BERLIN)

    assert next_local(time(6), now, BERLIN) - now.astimezone(UTC) == timedelta(hours=7)


def test_a_time_that_is_left_out_that_night_is_as_much_later() -> None:
    now = datetime(2026, 3, 29, 0, 0, tzinfo=BERLIN)

    assert next_local(time(2, 30), now, BERLIN).strftime("%H:%M %Z") == "03:30 CEST"


def test_now_may_be_given_in_another_zone() -> None:
    now = datetime(2026, 5, 4, 3, 59, tzinfo=UTC)

    assert next_local(time(6), now, BERLIN) - now == timedelta(minutes=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "250 ms"),
        (2.5, "2.5 s"),
        (59.96, "60 s"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3900, "1 h 5 min"),
        (90_000, "1 d 1 h"),
        (-90, "-1 min 30 s"),
        (10**30, "more than 100 years"),
    ],
)
def test_durations_read_like_spoken(seconds: float, text: str) -> None:
    assert readable(seconds) == text


def test_items_per_second_is_the_average_over_the_whole_batch() -> None:
    assert math.isclose(plan_for_slots(10, Fraction(2), 5).per_second, 2.5)

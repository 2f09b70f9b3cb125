from __future__ import annotations

from datetime import UTC, datetime

import pytest

from brokerwq.cli.size import deadline_of
from tests.cli.stock import Cli


def test_the_least_slots_for_a_deadline_are_said(cli: Cli) -> None:
    answer = cli("size", "--items", "2000000", "--seconds", "2", "--by", "1h")

    assert answer.code == 0
    assert answer.out.startswith(
        "2,000,000 items of 2 s in 1 h: 1,112 slots (112 processes with 10 slots each)\n"
    )


def test_the_time_of_given_slots_is_said_to_programs_too(cli: Cli) -> None:
    answer = cli("size", "--items", "100", "--seconds", "250ms", "--slots", "10", "--json")

    assert answer.json["finish_seconds"] == 2.5
    assert answer.json["items_per_second"] == 40
    assert answer.json["deadline_seconds"] is None


def test_a_time_of_day_is_the_next_one_and_its_zone_is_shown(cli: Cli) -> None:
    answer = cli("size", "--items", "10", "--seconds", "1", "--by", "06:00")

    assert answer.code == 0
    assert " 06:00 " in answer.out
    assert datetime.now(UTC).astimezone().strftime("%Z") in answer.out


def test_a_time_of_day_leaves_at_most_a_day(cli: Cli) -> None:
    del cli
    deadline = deadline_of("06:00", datetime(2026, 5, 4, 12, 0, tzinfo=UTC))

    assert 0 < deadline.within <= 25 * 3600
    assert deadline.at is not None
    assert deadline.at.strftime("%H:%M") == "06:00"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("--items 0 --seconds 1 --slots 1", "items must be 1 to"),
        ("--items -5 --seconds 1 --slots 1", "items must be 1 to"),
        ("--items 1.5 --seconds 1 --slots 1", "'1.5' is not a valid integer"),
        ("--items nan --seconds 1 --slots 1", "'nan' is not a valid integer"),
        ("--items 1 --seconds nan --slots 1", "'nan' is no duration"),
        ("--items 1 --seconds inf --slots 1", "'inf' is no duration"),
        ("--items 1 --seconds 0 --slots 1", "'0' is no duration"),
        ("--items 1 --seconds -1 --slots 1", "'-1' is no duration"),
        ("--items 1 --seconds 1e9 --slots 1", "'1e9' is no duration"),
        ("--items 1 --seconds 1 --slots 0", "slots must be 1 to"),
        ("--items 1 --seconds 1", "give either --slots"),
        ("--items 1 --seconds 1 --slots 1 --by 1h", "give either --slots"),
        ("--items 1 --seconds 1 --by 25:00", "'25:00' is no time of day"),
        ("--items 1 --seconds 1 --by soon", "not 'soon'"),
        ("--items 1 --seconds 61 --by 1m", "no number of slots is enough"),
    ],
)
def test_bad_numbers_get_one_line_and_exit_code_2(cli: Cli, arguments: str, fault: str) -> None:
    answer = cli("size", *arguments.split())

    assert answer.code == 2
    assert fault in answer.err
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("brokerwq: ")

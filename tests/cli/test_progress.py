from __future__ import annotations

import pytest

from brokerwq.cli.drain import Countdown
from brokerwq.cli.progress import PlainLines
from brokerwq.testing import FakeClock


def test_a_pipe_gets_a_line_now_and_then_with_rate_and_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = FakeClock()
    lines = PlainLines("enqueue", 100, clock=clock, every=2.0)

    for done in range(1, 11):
        clock.advance(0.5)
        lines.update(done * 5)

    assert capsys.readouterr().err.splitlines() == [
        "enqueue: 20 of 100 (20 %), 10/s, 8 s left",
        "enqueue: 40 of 100 (40 %), 10/s, 6 s left",
    ]


def test_the_last_state_is_always_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    lines = PlainLines("drain", clock=clock, every=2.0)

    clock.advance(2)
    lines.update(3, 3, "1 retried")
    lines.close()
    lines.close()

    assert capsys.readouterr().err == "drain: 3 of 3 (100 %), 1 retried, 1.5/s\n"


def test_without_a_total_only_the_count_and_the_rate_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = FakeClock()
    lines = PlainLines("redrive", clock=clock)

    clock.advance(10)
    lines.update(1234)

    assert capsys.readouterr().err == "redrive: 1,234, 123/s\n"


def test_nothing_is_printed_of_what_never_began(capsys: pytest.CaptureFixture[str]) -> None:
    PlainLines("redrive").close()

    assert capsys.readouterr().err == ""


def test_a_countdown_grows_with_a_queue_that_grows() -> None:
    told: list[tuple[int, int | None]] = []

    class Bar:
        def update(self, done: int, total: int | None = None, note: str = "") -> None:
            del note
            told.append((done, total))

    countdown = Countdown(Bar())
    for left in (10, 4, 12, 0):
        countdown.left(left)

    assert told == [(0, 10), (6, 10), (0, 12), (12, 12)]

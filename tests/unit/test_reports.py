from __future__ import annotations

from brokerwq import RunReport


def test_a_report_is_said_in_one_line_without_what_is_none() -> None:
    report = RunReport(
        done=1997, failed=4, snoozed=1, put_back=2, dead={"timeout": 1, "failed": 2}, drained=True
    )

    assert str(report) == (
        "1,997 done, 4 retried, 1 snoozed, 2 put back, 3 dead (2 failed, 1 timeout)"
    )


def test_a_report_says_how_many_were_acked_unrun() -> None:
    assert str(RunReport(done=1, duplicates=2)) == "1 done, 2 duplicates, 0 dead"


def test_a_report_of_nothing_says_so() -> None:
    assert str(RunReport()) == "0 done, 0 dead"

from __future__ import annotations

from dataclasses import fields
from typing import Any

from brokerwq import RunReport
from brokerwq.cli.drain import joined
from brokerwq.cli.running import as_record


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


def test_the_reports_of_several_processes_become_one_with_every_count() -> None:
    names = [field.name for field in fields(RunReport) if type(field.default) is int]
    parts: list[dict[str, Any]] = []
    for n in (1, 2):
        counts: dict[str, Any] = dict.fromkeys(names, n)
        parts.append(as_record(RunReport(**counts, dead={"failed": n, f"only {n}": n})))

    whole = joined(parts, 9.0)

    assert whole.keys() == parts[0].keys()
    assert whole["dead"] == {"failed": 3, "only 1": 1, "only 2": 2}
    worst = {"exit_code": 2, "left_delayed": 2}
    assert {name: whole[name] for name in names} == {**dict.fromkeys(names, 3), **worst}

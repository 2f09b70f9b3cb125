from __future__ import annotations

from tests.cli.stock import Cli


def test_each_check_is_a_line_and_the_count_is_the_last(cli: Cli) -> None:
    answer = cli("conform", "memory://", "--only", "sending.what_send_confirmed_is_there")

    assert answer.code == 0
    first, last = answer.out.splitlines()
    assert first.startswith("ok       sending.what_send_confirmed_is_there (")
    assert last == "1 passed"


def test_what_was_not_run_is_said_and_is_no_failure(cli: Cli) -> None:
    [result] = cli("conform", "memory://", "--only", "an_outage_is_an_error", "--json").json

    assert (result["verdict"], result["reason"]) == ("not run", "the harness has no outage")


def test_the_checks_can_be_listed(cli: Cli) -> None:
    answer = cli("conform", "memory://", "--list", "--only", "sending.")

    assert len(answer.out.splitlines()) > 5


def test_a_pattern_that_fits_no_check_is_a_usage_error(cli: Cli) -> None:
    answer = cli("conform", "memory://", "--only", "nonsense")

    assert answer.code == 2
    assert "no check is named like nonsense" in answer.err

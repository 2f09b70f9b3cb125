from __future__ import annotations

from tests.cli.stock import Cli, Stock


def test_a_sound_queue_has_no_finding_but_ok(cli: Cli, stock: Stock) -> None:
    stock.declare()

    answer = cli("doctor", "orders", "--url", stock.url, "--json")

    assert answer.code == 0
    assert [(each["level"], each["subject"]) for each in answer.json["findings"]] == [
        ("ok", "orders")
    ]
    assert answer.json["capabilities"]["lease"] == "timed"
    assert answer.json["capabilities"]["max_lease"] == "no limit"


def test_a_missing_queue_is_an_error_with_its_fix_and_is_not_made(cli: Cli, stock: Stock) -> None:
    stock.declare()

    answer = cli("doctor", "bills", "--url", stock.url)

    assert answer.code == 4
    assert "brokerwq queues declare bills" in answer.out
    assert "bills" not in stock.queues()


def test_every_queue_that_is_named_is_examined(cli: Cli, stock: Stock) -> None:
    stock.declare()
    stock.declare("bills")

    answer = cli("doctor", "orders", "bills", "--url", stock.url, "--json")

    assert [each["subject"] for each in answer.json["findings"]] == ["orders", "bills"]


def test_nothing_to_examine_says_how_to_name_it(cli: Cli, stock: Stock) -> None:
    answer = cli("doctor", "--url", stock.url)

    assert answer.code == 2
    assert "--app" in answer.err

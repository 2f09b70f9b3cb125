from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from brokerwq.message import DeadLetterNote, Message
from tests.cli.stock import DEAD, QUEUE, Cli, Stock
from tests.foreign.lab import task

NOW = datetime.now(UTC).replace(microsecond=0)


def letter(number: int, reason: str = "failed", hours: float = 1, **fields: object) -> Message:
    note = DeadLetterNote(
        reason=reason,
        error_type="ValueError",
        error="no such size",
        digest="abc123",
        attempts=5,
        queue=QUEUE,
        dead_at=NOW - timedelta(hours=hours),
    )
    values: dict[str, object] = {"type": "thumbnail", "created_at": NOW, "dead": note, **fields}
    return Message(id=f"id-{number}", body=b'{"n": 1}', **values)  # type: ignore[arg-type]


@pytest.fixture
def full(stock: Stock) -> Stock:
    stock.send(DEAD, letter(1), letter(2, "timeout", hours=48), letter(3, dead=None, type="mail"))
    return stock


def test_the_listing_says_why_each_is_dead(cli: Cli, full: Stock) -> None:
    answer = cli("dlq", "ls", QUEUE, "--url", full.url)

    assert answer.code == 0
    rows = {line.split()[0]: line for line in answer.out.splitlines()[1:]}
    assert "thumbnail  failed" in rows["id-1"]
    assert "1 h" in rows["id-1"]
    assert rows["id-1"].endswith("ValueError: no such size")
    assert "timeout" in rows["id-2"]
    assert "mail       by-broker" in rows["id-3"]


def test_looking_changes_nothing(cli: Cli, full: Stock) -> None:
    for verb in ("ls", "groups"):
        assert cli("dlq", verb, QUEUE, "--url", full.url).code == 0

    assert len(full.take(DEAD)) == 3


def test_the_listing_has_the_oldest_death_first_each_time(cli: Cli, full: Stock) -> None:
    for _ in range(2):
        found = cli("dlq", "ls", QUEUE, "--url", full.url, "--json").json
        assert [letter["id"] for letter in found] == ["id-3", "id-2", "id-1"]


def test_the_listing_is_told_to_programs_too(cli: Cli, full: Stock) -> None:
    [found] = cli("dlq", "ls", QUEUE, "--url", full.url, "--id", "id-1", "--json").json

    assert found["reason"] == "failed"
    assert found["attempts"] == 5
    assert found["dead_at"] == (NOW - timedelta(hours=1)).isoformat()


def test_a_listing_that_ends_at_its_limit_says_so(cli: Cli, full: Stock) -> None:
    answer = cli("dlq", "ls", QUEUE, "--url", full.url, "--limit", "2")

    assert len(answer.out.splitlines()) == 3
    assert "there may be more" in answer.err


def test_groups_are_counted(cli: Cli, full: Stock) -> None:
    full.send(DEAD, letter(4))

    answer = cli("dlq", "groups", QUEUE, "--url", full.url)

    assert answer.out.splitlines()[1].split() == [
        "2",
        "failed",
        "thumbnail",
        "ValueError",
        "abc123",
    ]


def test_one_is_shown_whole(cli: Cli, full: Stock) -> None:
    answer = cli("dlq", "show", QUEUE, "id-1", "--url", full.url)

    assert "error       ValueError: no such size\n" in answer.out
    assert answer.out.endswith('{"n": 1}\n')


def test_one_that_is_not_there_is_a_clear_error(cli: Cli, full: Stock) -> None:
    answer = cli("dlq", "show", QUEUE, "id-9", "--url", full.url)

    assert answer.code == 2
    assert answer.err == f"brokerwq: there is no message 'id-9' in {DEAD}\n"


def test_a_redrive_sends_back_what_was_chosen(cli: Cli, full: Stock) -> None:
    answer = cli("dlq", "redrive", QUEUE, "--url", full.url, "--older-than", "1d")

    assert (answer.code, answer.out) == (0, "1 sent back\n")
    assert [(m.id, m.redrives) for m in full.take(QUEUE)] == [("id-2", 1)]
    assert len(full.take(DEAD)) == 2


def test_a_redrive_of_everything_must_be_said(cli: Cli, full: Stock) -> None:
    unsaid = cli("dlq", "redrive", QUEUE, "--url", full.url)
    both = cli("dlq", "redrive", QUEUE, "--url", full.url, "--all", "--id", "id-1")
    said = cli("dlq", "redrive", QUEUE, "--url", full.url, "--all", "--rate", "1000")

    assert (unsaid.code, both.code, said.code) == (2, 2, 0)
    assert said.out == "3 sent back\n"


def test_a_dry_run_of_a_redrive_changes_nothing(cli: Cli, full: Stock) -> None:
    answer = cli("dlq", "redrive", QUEUE, "--url", full.url, "--all", "--dry-run")

    assert answer.out == "3 would be sent to where they came from\n"
    assert len(full.take(DEAD)) == 3


def test_a_redrive_that_fails_in_part_names_what_failed(cli: Cli, full: Stock) -> None:
    answer = cli("dlq", "redrive", QUEUE, "--url", full.url, "--all", "--to", "gone")

    assert answer.code == 3
    assert answer.out == "0 sent back, 3 not\n"
    assert "id-1: no queue 'gone'" in answer.err
    assert len(full.take(DEAD)) == 3


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "many"])
def test_a_rate_that_is_none_is_refused(cli: Cli, full: Stock, rate: str) -> None:
    answer = cli("dlq", "redrive", QUEUE, "--url", full.url, "--all", f"--rate={rate}")

    assert answer.code == 2
    assert "is no rate" in answer.err


def test_deleting_needs_the_queues_name_once_more(cli: Cli, full: Stock) -> None:
    wrong = cli("dlq", "delete", QUEUE, "--url", full.url, "--all", "--yes", DEAD)
    dry = cli("dlq", "delete", QUEUE, "--url", full.url, "--all", "--dry-run")
    right = cli("dlq", "delete", QUEUE, "--url", full.url, "--id", "id-1", "--yes", QUEUE)

    assert (wrong.code, dry.code, right.code) == (2, 0, 0)
    assert dry.out == "3 would be deleted\n"
    assert right.out == "1 deleted\n"
    assert sorted(m.id for m in full.take(DEAD)) == ["id-2", "id-3"]


def test_what_is_exported_can_be_imported_again(cli: Cli, full: Stock, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    exported = cli("dlq", "export", QUEUE, str(file), "--url", full.url)
    before = full.take(DEAD)

    imported = cli("dlq", "import", QUEUE, str(file), "--url", full.url)

    assert exported.code == imported.code == 0
    assert imported.out == "3 put into orders-dead\n"
    assert full.take(DEAD) == before


def test_an_export_goes_to_a_pipe_too(cli: Cli, full: Stock) -> None:
    answer = cli("dlq", "export", QUEUE, "--url", full.url)

    lines = [json.loads(line) for line in answer.out.splitlines()]
    assert [line["headers"]["bwq-id"] for line in lines] == ["id-1", "id-2", "id-3"]


def test_an_import_with_a_bad_line_sends_nothing(cli: Cli, full: Stock, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    cli("dlq", "export", QUEUE, str(file), "--url", full.url)
    with file.open("a") as lines:
        lines.write("\n{]\n")

    answer = cli("dlq", "import", QUEUE, str(file), "--url", full.url)

    assert answer.code == 2
    assert "line 5: this is no JSON" in answer.err
    assert len(full.take(DEAD)) == 3


def test_a_dry_run_of_an_import_only_checks(cli: Cli, full: Stock, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    cli("dlq", "export", QUEUE, str(file), "--url", full.url)

    answer = cli("dlq", "import", QUEUE, str(file), "--url", full.url, "--dry-run")

    assert answer.out == "3 would be put into orders-dead\n"
    assert len(full.take(DEAD)) == 3


def test_another_dead_letter_queue_can_be_named(cli: Cli, stock: Stock) -> None:
    stock.declare("graves")
    stock.send("graves", letter(1))

    answer = cli("dlq", "ls", QUEUE, "--url", stock.url, "--dead-letter-queue", "graves")

    assert "id-1" in answer.out


@pytest.mark.slow
def test_what_another_program_gave_up_on_is_named_as_the_apps_codec_reads_it(
    cli: Cli, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "burying_app.py").write_text(
        "from brokerwq import App\n"
        f"app = App({stock.url!r})\n"
        f"@app.worker({QUEUE!r}, codec='celery', foreign=True)\ndef add(*, n: int) -> None: ...\n"
    )
    buried = task("shop.add", 1, id_="c0ffee")
    stock.send(DEAD, buried, Message(id="m", body=b"?"))
    on = ("--app", "burying_app:app")

    named, nameless = cli("dlq", "ls", QUEUE, *on, "--json").json
    assert (named["id"], named["type"], named["reason"]) == ("c0ffee", "shop.add", "by-broker")
    assert (nameless["id"], nameless["type"]) == ("m", "")
    assert cli("dlq", "redrive", QUEUE, *on, "--type", "shop.add").code == 0
    (back,) = stock.take(QUEUE)
    assert (back.body, back.type, dict(back.headers)) == (buried.body, "", dict(buried.headers))


@pytest.mark.slow
def test_another_programs_message_is_called_what_the_log_calls_it(cli: Cli, stock: Stock) -> None:
    note = DeadLetterNote(reason="failed", queue=QUEUE, id="486e8ffe", type="t.add")
    stock.send(DEAD, letter(1, type="", dead=note), letter(2))

    (row,) = cli("dlq", "ls", QUEUE, "--type", "t.add", "--url", stock.url).out.splitlines()[1:]
    assert row.split()[:2] == ["486e8ffe", "t.add"]
    for id_ in ("486e8ffe", "id-1"):
        shown = cli("dlq", "show", QUEUE, id_, "--url", stock.url, "--json").json
        assert (shown["id"], shown["type"]) == ("486e8ffe", "t.add")
    peeked = cli("queues", "peek", DEAD, "--url", stock.url, "--json").json
    assert ("486e8ffe", "t.add") in [(each["id"], each["type"]) for each in peeked]
    kinds = cli("dlq", "groups", QUEUE, "--url", stock.url, "--json").json
    assert {each["type"] for each in kinds} == {"t.add", "thumbnail"}

    assert cli("dlq", "redrive", QUEUE, "--id", "486e8ffe", "--url", stock.url).code == 0

    (back,) = stock.take(QUEUE)
    assert (back.id, back.type) == ("id-1", "")

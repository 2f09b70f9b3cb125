from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from brokerwq.message import Message
from tests.cli.stock import DEAD, QUEUE, Cli, Stock
from tests.foreign.lab import task


def message(number: int, **fields: object) -> Message:
    return Message(id=f"id-{number}", body=b"hello", type="thumbnail", **fields)  # type: ignore[arg-type]


def test_every_queue_is_listed_with_its_counts(cli: Cli, stock: Stock) -> None:
    stock.send(QUEUE, message(1), message(2))
    stock.send(DEAD, message(3))

    answer = cli("queues", "ls", "--url", stock.url)

    assert answer.code == 0
    assert [line.split()[:5] for line in answer.out.splitlines()] == [
        ["QUEUE", "READY", "LEASED", "DELAYED", "DEAD"],
        [QUEUE, "2", "0", "0", "1"],
        [DEAD, "1", "0", "0", "0"],
    ]


def test_the_listing_is_told_to_programs_too(cli: Cli, stock: Stock) -> None:
    stock.send(QUEUE, message(1))

    [first, _] = cli("queues", "ls", "--url", stock.url, "--json").json

    assert (first["queue"], first["ready"], first["dead"]) == (QUEUE, 1, 0)
    assert first["certainty"]["ready"] == "exact"


def test_a_broker_without_queues_is_named_for_its_url_may_be_a_slip(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "slip.db").touch()

    answer = cli("queues", "ls", "--url", f"sqlite:///{tmp_path}/slip.db")

    assert answer.code == 0
    assert answer.err.startswith("brokerwq: there are no queues on sqlite:///")
    assert "slip.db" in answer.err


def test_queues_that_an_app_has_and_the_broker_has_not_are_named(
    cli: Cli, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "unused_app.py").write_text(
        "from brokerwq import App\n"
        f"app = App({stock.url!r})\n"
        f"@app.worker({QUEUE!r})\ndef there(*, n: int) -> None: ...\n"
        "@app.worker('mails')\ndef missing(*, n: int) -> None: ...\n"
    )

    answer = cli("queues", "ls", "--app", "unused_app:app")

    assert answer.code == 0
    assert "not there yet: mails; the first enqueue or run makes a queue" in answer.err


def test_one_queue_is_shown(cli: Cli, stock: Stock) -> None:
    stock.send(QUEUE, message(1))

    answer = cli("queues", "show", QUEUE, "--url", stock.url)

    assert "ready              1\n" in answer.out
    assert f"dead-letter queue  {DEAD}\n" in answer.out


def test_a_missing_queue_is_one_line_and_exit_code_3(cli: Cli, stock: Stock) -> None:
    answer = cli("queues", "show", "elsewhere", "--url", stock.url)

    assert answer.code == 3
    assert "no queue 'elsewhere'" in answer.err
    assert answer.err.count("\n") == 1


def test_peeking_shows_the_next_messages_and_spends_no_attempt(cli: Cli, stock: Stock) -> None:
    stock.send(QUEUE, *[message(n, attempts=2) for n in range(5)])

    found = cli("queues", "peek", QUEUE, "--url", stock.url, "--limit", "2", "--json").json

    assert [(m["id"], m["attempts"], m["body"]) for m in found] == [
        ("id-0", 2, "hello"),
        ("id-1", 2, "hello"),
    ]
    assert [m.attempts for m in stock.take(QUEUE)] == [2] * 5


def test_another_programs_messages_are_named_as_the_apps_codec_reads_them(
    cli: Cli, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "peeking_app.py").write_text(
        "from brokerwq import App\n"
        f"app = App({stock.url!r})\n"
        f"@app.worker({QUEUE!r}, codec='celery', foreign=True)\ndef add(*, n: int) -> None: ...\n"
    )
    stock.send(QUEUE, task("shop.add", 1, id_="c0ffee"), Message(id="", body=b"?"), message(1))

    rows = cli("queues", "peek", QUEUE, "--app", "peeking_app:app").out.splitlines()[1:]
    found = cli("queues", "peek", QUEUE, "--app", "peeking_app:app", "--json").json

    assert [row.split()[:2] for row in rows] == [
        ["c0ffee", "shop.add"],
        ["-", "-"],
        ["id-1", "thumbnail"],
    ]
    assert [(each["id"], each["type"]) for each in found[::2]] == [
        ("c0ffee", "shop.add"),
        ("id-1", "thumbnail"),
    ]
    assert "not base64" in found[1]["defect"]
    assert found[0]["body"].startswith("[[1]")


def test_a_message_cannot_steer_the_terminal(cli: Cli, stock: Stock) -> None:
    stock.send(QUEUE, Message(id="a\x1b[2J", body=b"\x1b]0;title\x07", type="\r\n"))

    answer = cli("queues", "peek", QUEUE, "--url", stock.url)

    assert "\x1b" not in answer.out
    assert "\\x1b[2J" in answer.out
    assert answer.out.count("\n") == 2


def test_declaring_makes_a_queue_and_its_dead_letter_queue(cli: Cli, stock: Stock) -> None:
    answer = cli("queues", "declare", "mails", "--url", stock.url, "--lease", "2m")

    assert answer.code == 0
    assert stock.queues() == ["mails", "mails-dead", QUEUE, DEAD]


def test_a_dry_run_of_declaring_makes_nothing(cli: Cli, stock: Stock) -> None:
    answer = cli("queues", "declare", "mails", "--url", stock.url, "--dry-run")

    assert answer.code == 0
    assert "would be created, with mails-dead" in answer.out
    assert "mails" not in stock.queues()


def test_declaring_says_what_was_made_and_what_was_there(cli: Cli, stock: Stock) -> None:
    def declare() -> str:
        return cli("queues", "declare", "mails", "--url", stock.url).out.strip()

    assert declare() == "mails: created, with mails-dead"
    assert declare() == "mails: as it should be"

    stock.make_bare("bills")
    answer = cli("queues", "declare", "bills", "--url", stock.url)
    assert answer.out.strip() == "bills: what it lacked was created"


@pytest.mark.parametrize("name", ["my queue", "a/b", "amq.mails"])
def test_a_name_that_no_worker_could_have_is_not_declared(
    cli: Cli, stock: Stock, name: str
) -> None:
    answer = cli("queues", "declare", name, "--url", stock.url)

    assert answer.code == 2
    assert name in answer.err
    assert name not in stock.queues()


def test_queues_that_are_never_declared_are_skipped_and_named(
    cli: Cli, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adopting_app.py").write_text(
        "from brokerwq import App\n"
        f"app = App({stock.url!r})\n"
        "@app.worker('celery', codec='celery', foreign=True)\n"
        "async def task() -> None: ...\n"
        "@app.worker('mails')\n"
        "async def mail() -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    declare = ("queues", "declare", "--app", "adopting_app:app")

    dry = cli(*declare, "--dry-run")
    made = cli(*declare)

    assert dry.code == made.code == 0
    skipped = "celery: belongs to others, is not declared"
    assert dry.out.splitlines() == [skipped, "mails: would be created, with mails-dead"]
    assert made.out.splitlines() == [skipped, "mails: created, with mails-dead"]
    assert not [name for name in stock.queues() if name.startswith("celery")]

    assert cli(*declare, "--dead-letters-only").out.strip() == "celery-dead: created"
    assert "celery-dead" in stock.queues()


@pytest.mark.slow
def test_the_queues_of_an_app_are_declared_at_all_its_brokers(
    cli: Cli, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, nobody = f"sqlite:///{tmp_path}/other.db", "sqlite:///" + str(tmp_path / "no" / "q.db")
    for name, first in (("two_brokers_app", stock.url), ("lame_app", nobody)):
        (tmp_path / f"{name}.py").write_text(
            "from brokerwq import App\n"
            f"app = App([{first!r}, {other!r}], send_to={first!r})\n"
            "@app.worker('bills')\n"
            "async def bill() -> None: ...\n"
        )
    monkeypatch.chdir(tmp_path)
    declare = ("queues", "declare", "--app", "two_brokers_app:app")

    lame = cli("queues", "declare", "--app", "lame_app:app")
    made = cli(*declare)
    alone = cli(*declare, "--url", other)

    assert lame.code == 2  # there is no such folder
    assert "no/q.db" in lame.err
    assert lame.out.splitlines() == [nobody, other, "bills: created, with bills-dead"]
    assert (made.code, made.err) == (0, "")
    assert made.out.splitlines() == [
        stock.url,
        "bills: created, with bills-dead",
        other,
        "bills: as it should be",
    ]
    assert alone.out.splitlines() == ["bills: as it should be"]


def test_a_dead_letter_queue_is_made_alone_under_any_name(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queues.db'}"
    declare = ("queues", "declare", "their queue", "--url", url, "--dead-letters-only")

    dry = cli(*declare, "--dead-letter", "graves", "--dry-run")
    assert dry.out.strip() == "graves: would be created"
    assert cli(*declare, "--dead-letter", "graves").out.strip() == "graves: created"
    assert cli(*declare, "--dead-letter", "graves").out.strip() == "graves: as it should be"

    listed = cli("queues", "ls", "--url", url, "--json").json
    assert [each["queue"] for each in listed] == ["graves"]


def test_a_queue_that_differs_is_exit_code_4_naming_the_difference(cli: Cli, stock: Stock) -> None:
    cli("queues", "declare", "mails", "--url", stock.url)

    answer = cli("queues", "declare", "mails", "--url", stock.url, "--dead-letter", "graves")

    assert answer.code == 4
    assert "mails: dead_letter is 'mails-dead', wanted 'graves'" in answer.out
    assert "graves" not in stock.queues()


def test_declaring_nothing_is_a_usage_error(cli: Cli, stock: Stock) -> None:
    assert cli("queues", "declare", "--url", stock.url).code == 2


def test_purging_needs_the_queues_name_once_more(
    cli: Cli, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock.send(QUEUE, message(1))
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        unasked = cli("queues", "purge", QUEUE, "--url", stock.url)
    wrong = cli("queues", "purge", QUEUE, "--url", stock.url, "--yes", "order")

    assert (unasked.code, wrong.code) == (2, 2)
    assert "delete 1 ready and 0 delayed messages of orders; add --yes orders" in unasked.err
    assert "nothing was done" in wrong.err
    assert len(stock.take(QUEUE)) == 1


def test_a_dry_run_of_purging_only_counts(cli: Cli, stock: Stock) -> None:
    stock.send(QUEUE, message(1))

    answer = cli("queues", "purge", QUEUE, "--url", stock.url, "--dry-run")

    assert answer.out == "orders: would delete 1 ready and 0 delayed messages\n"
    assert len(stock.take(QUEUE)) == 1


def test_purging_empties_the_queue(cli: Cli, stock: Stock) -> None:
    stock.send(QUEUE, message(1), message(2))

    answer = cli("queues", "purge", QUEUE, "--url", stock.url, "--yes", QUEUE)

    assert answer.code == 0
    assert stock.take(QUEUE) == []


@pytest.mark.parametrize(
    "verb",
    [
        ("queues", "ls"),
        ("queues", "show", "q"),
        ("queues", "peek", "q"),
        ("queues", "purge", "q", "--dry-run"),
        ("dlq", "ls", "q"),
        ("dlq", "groups", "q"),
        ("dlq", "export", "q"),
        ("dlq", "redrive", "q", "--all", "--dry-run"),
        ("doctor", "q"),
    ],
)
def test_a_look_at_a_file_that_is_not_there_makes_none(
    cli: Cli, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    mistyped = tmp_path / "jobs.bd"

    answer = cli(*verb, "--url", f"sqlite:///{mistyped}")

    assert answer.code == 2
    assert f"{mistyped} does not exist" in answer.err
    assert not mistyped.exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [((), "q: would be created, with q-dead"), (("--dead-letters-only",), "q-dead: would be")],
)
def test_a_dry_run_of_declaring_makes_no_file_and_says_that_there_is_none(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    url = f"sqlite:///{tmp_path}/new.db"

    answer = cli("queues", "declare", "q", "--url", url, "--dry-run", *options)

    assert answer.code == 0
    assert "new.db is not there; it would be made" in answer.err
    assert told in answer.out
    assert not list(tmp_path.iterdir())
    assert cli("queues", "declare", "q", "--url", f"{url}?create=false").code == 2


@pytest.mark.parametrize("verb", ["plan", "run", "rollback", "status", "verify", "finish"])
def test_a_look_at_a_migration_makes_no_file(cli: Cli, tmp_path: Path, verb: str) -> None:
    sides = [f"sqlite:///{tmp_path}/{side}.db" for side in ("old", "new")]
    dry = ["--dry-run"] if verb in ("run", "rollback", "finish") else []

    answer = cli("migrate", verb, *sides, *dry)

    assert answer.code == 2
    assert "old.db does not exist" in answer.err
    assert not list(tmp_path.iterdir())

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

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


APP = """
from brokerwq import App, QueueSpec

app = App("{url}")

@app.worker("celery", codec="celery", foreign=True)
async def task() -> None: ...

@app.worker("thumbs")
async def thumb() -> None: ...
"""


@pytest.fixture
def app(stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An app with a queue of others, ``celery``, and one of its own, ``thumbs``."""
    name = f"program_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(APP.format(url=stock.url))
    monkeypatch.chdir(tmp_path)
    return f"{name}:app"


@pytest.mark.slow
def test_a_queue_of_others_is_examined_for_what_a_run_would_refuse(
    cli: Cli, stock: Stock, app: str
) -> None:
    stock.declare("celery-dead")  # so that nothing but the queue itself is missing
    run = cli("run", app, "celery")

    answer = cli("doctor", "celery", "--app", app, "--json")

    (finding,) = answer.json["findings"]
    assert finding["level"] == "error"
    assert "its owner makes it" in finding["fix"]
    assert answer.code == run.code == 3


@pytest.mark.slow
def test_the_fix_for_a_missing_dead_letter_queue_makes_it_and_nothing_else(
    cli: Cli, stock: Stock, app: str
) -> None:
    stock.make_bare("celery")
    before = set(stock.queues())
    run = cli("run", app, "celery")
    assert "brokerwq queues declare celery --dead-letters-only" in run.err

    answer = cli("doctor", "celery", "--app", app, "--json")
    (finding,) = answer.json["findings"]
    assert (finding["level"], answer.code) == ("error", run.code)

    made = cli(*finding["fix"].split()[1:], "--app", app)

    assert made.out.splitlines() == ["celery-dead: created"]
    assert set(stock.queues()) - before == {"celery-dead"}
    assert cli("doctor", "celery", "--app", app).code == 0


@pytest.mark.slow
def test_all_brokers_of_an_app_are_examined(
    cli: Cli, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, other = f"program_{uuid.uuid4().hex}", f"sqlite:///{tmp_path}/other.db"
    (tmp_path / f"{name}.py").write_text(
        f"from brokerwq import App\n"
        f"app = App([{stock.url!r}, {other!r}], send_to={other!r})\n"
        f"@app.worker('thumbs')\n"
        f"async def thumb() -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    stock.declare("thumbs")
    spec = f"{name}:app"

    out_of_reach = cli("doctor", "--app", spec, "--json")
    cli("queues", "declare", "--app", spec)
    both = cli("doctor", "--app", spec, "--json")
    told = cli("doctor", "--app", spec)

    assert out_of_reach.code == 2  # there is no such file
    assert [
        (each["url"], bool(each["capabilities"]), each["findings"][0]["level"])
        for each in out_of_reach.json
    ] == [(stock.url, True, "ok"), (other, False, "error")]
    assert (both.code, told.code, both.err, told.err) == (0, 0, "", "")
    assert [each["findings"][0]["level"] for each in both.json] == ["ok", "ok"]
    assert told.out.index(stock.url) < told.out.index(other)
    assert cli("doctor", "--app", spec, "--url", other, "--json").json["url"] == other


def test_the_app_may_stand_first_as_with_run(cli: Cli, stock: Stock, app: str) -> None:
    stock.declare("thumbs")
    stock.declare(app)

    first = cli("doctor", app, "thumbs", "--json")
    queue = cli("doctor", app, "--url", stock.url, "--json")

    assert [each["subject"] for each in first.json["findings"]] == ["thumbs"]
    assert [each["subject"] for each in queue.json["findings"]] == [app]


def test_an_error_of_ones_own_queue_outweighs_one_of_a_queue_of_others(cli: Cli, app: str) -> None:
    assert cli("doctor", "--app", app).code == 4

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from brokerwq.cli import main
from brokerwq.idempotency import SqliteStore
from brokerwq.idempotency.keys import digest_of
from tests.cli.stock import Answer
from tests.idempotency.stores import a_claim

PROGRAM = """
from brokerwq import App
app = App("memory://", store="sqlite:///{path}", name="shop")
@app.worker("q", once="marker", key="n")
async def charge(*, n: int) -> None: ...
@app.worker("q", once="marker")
async def mail(*, n: int) -> None: ...
"""


@dataclass
class Desk:
    """The command on a store of three records: in progress, completed, expired."""

    path: Path
    capfd: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Answer:
        code = main(("keys", *arguments, "--store", f"sqlite:///{self.path}"))
        out, err = self.capfd.readouterr()
        return Answer(code, out, err)

    def run(self, *arguments: str) -> Answer:
        """Without ``--store``."""
        code = main(("keys", *arguments))
        out, err = self.capfd.readouterr()
        return Answer(code, out, err)


@pytest.fixture
def desk(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Desk:
    async def fill() -> None:
        store = SqliteStore(tmp_path / "keys.db")
        for key, retention in ((2, 1000.0), (3, 0.0001)):
            claim = a_claim(key)
            await store.claim(claim)
            await store.complete(claim.key, claim.owner, retention, '{"total":7}')
        await store.claim(a_claim(1, lease=30.0, worker="shop/mail", message_id="m\x1b[1"))
        await store.aclose()

    asyncio.run(fill())
    return Desk(tmp_path / "keys.db", capfd)


def key(n: int) -> str:
    return n.to_bytes(16).hex()


def test_ls_lists_the_newest_first(desk: Desk) -> None:
    answer = desk("ls")

    lines = answer.out.splitlines()
    assert (answer.code, len(lines)) == (0, 4)
    assert lines[1].startswith(key(1))
    assert "in progress" in lines[1]
    assert "\x1b" not in answer.out
    assert [line.split()[0] for line in lines[2:]] == [key(3), key(2)]
    assert "completed, expired" in lines[2]


def test_ls_filters_and_prints_json(desk: Desk) -> None:
    completed = desk("ls", "--state", "completed", "--json").json
    mine = desk("ls", "--worker", "shop/mail", "--json").json
    one = desk("ls", "--limit", "1", "--json").json

    assert [record["key"] for record in completed] == [key(3), key(2)]
    assert [record["state"] for record in mine] == ["in_progress"]
    assert len(one) == 1


def test_show_tells_all_of_a_record(desk: Desk) -> None:
    answer = desk("show", key(2))

    assert answer.code == 0
    for text in (key(2), "shop/charge", "completed", '{"total":7}', b"p".hex() * 16):
        assert text in answer.out
    assert desk("show", key(2), "--json").json["result"] == '{"total":7}'


def test_show_of_no_record_exits_with_1(desk: Desk) -> None:
    answer = desk("show", key(9))

    assert (answer.code, answer.out) == (1, "")
    assert "no record" in answer.err


def test_what_is_no_key_is_a_usage_error(desk: Desk) -> None:
    assert desk("show", "abc").code == 2
    assert desk("show", "7", "--worker", "charge").code == 2


def test_forget_removes_one_record(desk: Desk) -> None:
    assert desk("forget", key(2), "--dry-run").code == 0
    assert desk("show", key(2)).code == 0

    assert desk("forget", key(2)).code == 0

    assert desk("show", key(2)).code == 1
    assert desk("forget", key(2)).code == 1
    assert len(desk("ls", "--json").json) == 2


def test_prune_removes_what_has_expired(desk: Desk) -> None:
    assert "1 expired" in desk("prune", "--dry-run").err
    assert "1 expired" in desk("prune", "--batch", "1", "--pause", "0.001").err
    assert "0 expired" in desk("prune").err
    assert len(desk("ls", "--json").json) == 2


def test_init_prints_statements_that_make_the_tables(desk: Desk, tmp_path: Path) -> None:
    answer = desk("init", "--dry-run")
    db = sqlite3.connect(tmp_path / "by-hand.db")
    db.executescript(answer.out)
    db.close()

    async def claim() -> object:
        store = SqliteStore(tmp_path / "by-hand.db", create=False)
        try:
            return await store.claim(a_claim())
        finally:
            await store.aclose()

    assert asyncio.run(claim())


def test_init_makes_a_store_and_keeps_one(desk: Desk, tmp_path: Path) -> None:
    new = desk.run("init", "--store", f"sqlite:///{tmp_path / 'new.db'}")

    assert (new.code, desk("init").code) == (0, 0)
    assert (tmp_path / "new.db").exists()
    assert len(desk("ls", "--json").json) == 3


def test_a_worker_of_the_app_has_keys_by_value_and_by_id(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys_program.py").write_text(PROGRAM.format(path=desk.path))
    monkeypatch.chdir(tmp_path)
    by_value = digest_of(("shop", "charge", 1), 7)
    by_id = digest_of(("shop", "mail", 1), ("id", "m1"))

    async def fill() -> None:
        store = SqliteStore(desk.path)
        for digest in (by_value, by_id):
            await store.claim(a_claim(int.from_bytes(digest)))
        await store.aclose()

    asyncio.run(fill())
    spec = ("--app", "keys_program:app", "--json")

    assert desk.run("show", "7", "--worker", "charge", *spec).json["key"] == by_value.hex()
    assert desk.run("show", "m1", "--worker", "mail", "--id", *spec).json["key"] == by_id.hex()
    assert desk.run("show", "7", "--worker", "nobody", *spec).code == 2


def test_without_a_store_it_says_how_to_name_one(desk: Desk) -> None:
    answer = desk.run("ls")

    assert answer.code == 2
    assert "--store" in answer.err


def test_a_store_that_cannot_be_opened_exits_with_3(desk: Desk, tmp_path: Path) -> None:
    answer = desk.run("ls", "--store", f"sqlite:///{tmp_path / 'nowhere' / 'keys.db'}")

    assert answer.code == 3


@pytest.mark.parametrize(
    "verb", [("ls",), ("show", key(1)), ("forget", key(1), "--dry-run"), ("prune", "--dry-run")]
)
@pytest.mark.parametrize("named_by", ["url", "app"])
def test_a_look_at_a_store_that_is_not_there_makes_none(
    desk: Desk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: tuple[str, ...],
    named_by: str,
) -> None:
    missing = tmp_path / "missing.db"
    monkeypatch.chdir(tmp_path)
    module = f"looker_{uuid.uuid4().hex}"
    (tmp_path / f"{module}.py").write_text(PROGRAM.format(path=missing))
    named = {"url": ("--store", f"sqlite:///{missing}"), "app": ("--app", f"{module}:app")}

    answer = desk.run(*verb, *named[named_by])

    assert answer.code == 3
    assert "missing.db does not exist" in answer.err
    assert not missing.exists()

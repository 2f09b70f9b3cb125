"""``brokerwq keys`` on Redis and on DynamoDB."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from brokerwq.cli import main
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.idempotency import open_store
from brokerwq.testing.stores import a_claim
from tests.cli.stock import Answer
from tests.idempotency.dynamodb_lab import dynamodb_server, table_name
from tests.idempotency.redis_lab import redis_url


def in_redis() -> str:
    return f"{redis_url()}?namespace=t{uuid.uuid4().hex}"


def in_dynamodb() -> str:
    return dynamodb_server().url(table_name())


STORES: dict[str, Callable[[], str]] = {"redis": in_redis, "dynamodb": in_dynamodb}


@dataclass
class Desk:
    """The command on a store that is not made ready yet."""

    url: str
    capfd: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Answer:
        code = main(("keys", *arguments, "--store", self.url))
        out, err = self.capfd.readouterr()
        return Answer(code, out, err)

    def fill(self) -> None:
        """Records in progress, completed, and expired."""

        async def fill() -> None:
            store = open_store(self.url)
            for key, retention in ((2, 1000.0), (3, 0.001)):
                claim = a_claim(key)
                await store.claim(claim)
                await store.complete(claim.key, claim.owner, retention, '{"total":7}')
            await store.claim(a_claim(1, lease=30.0, worker="shop/mail", message_id="m\x1b[1"))
            await asyncio.sleep(0.05)
            await store.aclose()

        asyncio.run(fill())


@pytest.fixture(params=list(STORES))
def desk(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Desk:
    return Desk(STORES[request.param](), capfd)


def key(n: int) -> str:
    return n.to_bytes(16, "big").hex()


def test_without_init_it_says_what_to_do_and_changes_nothing(desk: Desk) -> None:
    dry = desk("init", "--dry-run")
    prune = desk("ls")

    assert dry.code == 0
    assert "SET " in dry.out or "create-table" in dry.out
    assert ";" not in dry.out
    # Where records need nothing to live in, there are none.
    assert prune.code == 0 or (prune.code == 3 and "keys init" in prune.err)


def test_records_are_listed_shown_and_forgotten(desk: Desk) -> None:
    assert (desk("init").code, desk("init").code) == (0, 0)
    desk.fill()

    listed = desk("ls", "--json").json
    in_progress = desk("ls", "--state", "in-progress", "--worker", "shop/mail")
    shown = desk("show", key(2), "--json").json

    assert {record["key"] for record in listed} >= {key(1), key(2)}
    assert key(1) in in_progress.out
    assert "\x1b" not in in_progress.out
    assert (shown["state"], shown["result"], shown["expired"]) == (
        "completed",
        '{"total":7}',
        False,
    )
    assert desk("forget", key(2), "--dry-run").code == 0
    assert desk("forget", key(2)).code == 0
    assert desk("forget", key(2)).code == 1
    assert desk("show", key(2)).code == 1


def test_prune_leaves_what_is_live(desk: Desk) -> None:
    desk("init")
    desk.fill()

    assert desk("prune", "--dry-run").code == 0
    left: set[str] = {key(3)}
    give_up_at = SYSTEM_CLOCK.now() + 20.0
    # DynamoDB tells the time in whole seconds: what has just expired there may not have yet.
    while key(3) in left and SYSTEM_CLOCK.now() < give_up_at:
        assert desk("prune", "--batch", "1").code == 0
        left = {record["key"] for record in desk("ls", "--json").json}

    assert left == {key(1), key(2)}


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:9", "dynamodb://us-east-1/keys?endpoint_url=http://127.0.0.1:9"]
)
def test_a_store_that_does_not_answer_exits_with_3(
    url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "0")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "0")

    assert Desk(url, capfd)("ls").code == 3

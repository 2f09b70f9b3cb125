from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from brokerwq import connect
from brokerwq.message import Message, new_message_id
from tests.cli.program import Program
from tests.cli.stock import DEAD, QUEUE, Cli, Stock

TOO_LARGE = b"x" * 1_100_000


def some(count: int, body: bytes = b"{}") -> list[Message]:
    return [
        Message(id=new_message_id(), body=body, type="work", created_at=datetime.now(UTC))
        for _ in range(count)
    ]


class Move:
    """A stock, a place for its messages, and the arguments that name both."""

    def __init__(self, cli: Cli, stock: Stock, folder: Path) -> None:
        self.cli = cli
        self.stock = stock
        self.target = Stock()
        self.ledger = f"sqlite:///{folder}/ledger.db"

    def __call__(self, verb: str, *options: str) -> Any:
        return self.cli(
            "migrate", verb, self.stock.url, self.target.url, "--ledger", self.ledger, *options
        )


@pytest.fixture
def move(cli: Cli, stock: Stock, tmp_path: Path) -> Move:
    return Move(cli, stock, tmp_path)


@pytest.mark.slow
def test_a_whole_migration(move: Move) -> None:
    messages = some(30)
    move.stock.send(QUEUE, *messages)
    move.stock.send(DEAD, *some(2))

    plan = move("plan", "--sample", "all")
    assert plan.code == 0
    assert "orders" in plan.out
    assert "(to be made)" in plan.out

    run = move("run", "--settle", "0")
    assert run.code == 0
    assert run.out.startswith("32 moved in ")

    early = move("status")
    assert early.code == 1
    assert "not yet 1 min" in early.out
    status = move("status", "--settle", "0", "--json")
    assert status.code == 0
    assert [(q["moved"], q["empty"]) for q in status.json["queues"]] == [(30, True), (2, True)]

    verify = move("verify")
    assert (verify.code, verify.out.splitlines()[-1]) == (0, "it adds up")

    assert "not yet for 60 s" in move("finish").err
    assert move("finish", "--settle", "0", "--dry-run").out == "nothing speaks against it\n"
    assert move("finish", "--settle", "0").out == "finished\n"
    again = move("run")
    assert again.code == 2
    assert "was finished at" in again.err
    assert {m.id for m in move.target.take(QUEUE)} == {m.id for m in messages}


@pytest.mark.slow
def test_plan_names_each_misfit_and_moves_nothing(move: Move) -> None:
    move.target.url += "?like=sqs"
    misfits = some(3, TOO_LARGE)
    move.stock.send(QUEUE, *some(5), *misfits)

    plan = move("plan", "--json")

    assert plan.code == 1
    assert {m["id"] for m in plan.json["misfits"]} == {m.id for m in misfits}
    assert move("run", "--dry-run").code == 1
    assert move("plan").out.count("takes 1048576") == 3
    assert len(move.stock.take(QUEUE)) == 8
    assert move.target.queues() == []


@pytest.mark.slow
def test_run_leaves_misfits_and_says_so(move: Move) -> None:
    move.target.url += "?like=sqs"
    move.stock.send(QUEUE, *some(5), *some(1, TOO_LARGE))

    run = move("run", "--settle", "0")

    assert run.code == 1
    assert "5 moved, 1 do not fit and stay" in run.out
    assert "takes 1048576" in run.out
    finish = move("finish", "--settle", "0")
    assert finish.code == 1
    assert "keeps 1 messages that do not fit" in finish.err
    assert move("finish", "--settle", "0", "--leave-refused").code == 0


@pytest.mark.slow
def test_rollback_takes_the_same_arguments(move: Move) -> None:
    move.stock.send(QUEUE, *some(10))
    move("run", "--settle", "0")

    back = move("rollback", "--settle", "0", "--json")

    assert (back.code, back.json["moved"]) == (0, 10)
    assert len(move.stock.take(QUEUE)) == 10


@pytest.mark.slow
def test_a_proof_that_fails_is_exit_code_1(move: Move) -> None:
    move.stock.send(QUEUE, *some(10))
    move("run", "--settle", "0")
    gone = move.target.take(QUEUE)

    verify = move("verify")
    assert verify.code == 1
    assert all(f"{message.id}: not found" in verify.out for message in gone)
    assert verify.out.endswith("it does not add up\n")
    assert move("verify", "--workers-run", "--json").json["adds_up"] is True


@pytest.mark.slow
def test_queues_get_new_names(move: Move) -> None:
    move.stock.send(QUEUE, *some(4))

    assert move("run", "--settle", "0", "--queue", "orders=sales").code == 0

    assert len(move.target.take("sales")) == 4


@pytest.mark.parametrize("name", ["=x", "x=", "", "orders", "orders-dead"])
def test_odd_queue_names(move: Move, name: str) -> None:
    answer = move("plan", "--queue", "orders", "--queue", name)

    assert answer.code == 2
    assert answer.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("sqlite:///{0}/a.db", "sqlite:///{0}/a.db"),
        ("sqlite:///{0}/a.db", "sqlite:///{0}/../{1}/a.db"),
        ("sqlite:///{0}/a.db", "sqlite:///{0}/link.db"),
        ("sqlite:///{0}/a.db?poll=0.1", "sqlite:///{0}/a.db"),
        ("memory://{1}", "memory://{1}"),
    ],
)
def test_source_equals_target(cli: Cli, tmp_path: Path, source: str, target: str) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    urls = [url.format(tmp_path, tmp_path.name) for url in (source, target)]
    assert cli("queues", "declare", "orders", "--url", urls[0]).code == 0

    for verb in ("plan", "run"):
        answer = cli("migrate", verb, *urls, "--queue", "orders", "--ledger", _ledger(tmp_path))
        assert answer.code == 2
        assert "source and target are the same" in answer.err
        assert answer.err.count("\n") == 1


def _ledger(folder: Path) -> str:
    return f"sqlite:///{folder}/ledger.db"


@pytest.mark.slow
def test_a_queue_may_be_renamed_at_its_own_broker(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    cli("queues", "declare", "orders", "--url", url)

    answer = cli(
        *("migrate", "run", url, url, "--queue", "orders=new", "--settle", "0"),
        *("--ledger", _ledger(tmp_path)),
    )

    assert answer.code == 0


@pytest.mark.parametrize("side", [0, 1])
def test_an_unknown_scheme(cli: Cli, tmp_path: Path, side: int) -> None:
    urls = ["memory://one", "memory://two"]
    urls[side] = "kafka://broker"

    answer = cli("migrate", "run", *urls, "--queue", "orders", "--ledger", _ledger(tmp_path))

    assert answer.code == 2
    assert answer.err.startswith("brokerwq: no adapter serves kafka://")


def test_a_side_that_cannot_be_reached_is_named(cli: Cli, tmp_path: Path) -> None:
    answer = cli(
        *("migrate", "run", f"sqlite:///{tmp_path}/none/a.db", "memory://two"),
        *("--queue", "orders", "--ledger", _ledger(tmp_path)),
    )
    assert answer.code == 2
    assert "none/a.db" in answer.err


def test_a_source_that_has_no_such_queue(move: Move) -> None:
    answer = move("run", "--queue", "nope")

    assert answer.code == 3
    assert f"there is no queue nope at {move.stock.url}" in answer.err


@pytest.mark.parametrize("verb", ["status", "verify", "finish"])
def test_what_needs_a_ledger_says_so(move: Move, verb: str) -> None:
    answer = move(verb, "--queue", "orders")

    assert answer.code == 2
    assert "there is no ledger" in answer.err


@pytest.mark.slow
def test_a_ledger_of_another_migration(move: Move, cli: Cli) -> None:
    move.stock.send(QUEUE, *some(1))
    move("run", "--settle", "0")
    move.stock.send(QUEUE, *some(1))

    other = cli("migrate", "run", move.stock.url, "memory://other", "--ledger", move.ledger)
    turned = cli("migrate", "run", move.target.url, move.stock.url, "--ledger", move.ledger)

    assert (other.code, turned.code) == (2, 2)
    assert "belongs to another migration" in other.err
    assert f"the way back is: rollback {move.stock.url} {move.target.url}" in turned.err
    assert len(move.stock.take(QUEUE)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("times", [3])
def test_a_mover_may_be_killed_at_any_time(cli: Cli, tmp_path: Path, times: int) -> None:
    source, target = (f"sqlite:///{tmp_path}/{name}.db" for name in ("a", "b"))
    sent = _filled(source, 1500)
    arguments = (
        *("migrate", "run", source, target, "--queue", QUEUE, "--ledger", _ledger(tmp_path)),
        *("--settle", "0", "--lease", "2", "--rate", "400"),
    )
    for _ in range(times):
        program = Program(tmp_path, *arguments)
        program.wait_until_said("migrate: ")
        program.kill()

    last = cli(*arguments[:-2])

    assert last.code == 0
    verify = cli("migrate", "verify", source, target, "--ledger", _ledger(tmp_path), "--json")
    assert verify.code == 0
    (proof, _) = verify.json["queues"]
    assert (proof["known"], proof["at_target"], proof["at_both"]) == (1500, 1500, 0)
    arrived = _taken(target)
    assert {message.id for message, _ in arrived} == sent
    assert len(arrived) - len(sent) <= times * 600
    # A mover that is killed spends nobody's attempt.
    assert max(attempt for _, attempt in arrived) == 1


def _filled(url: str, count: int) -> set[str]:
    stock = Stock()
    stock.url = url
    stock.declare()
    messages = some(count)
    for start in range(0, count, 500):
        stock.send(QUEUE, *messages[start : start + 500])
    return {message.id for message in messages}


def _taken(url: str) -> list[tuple[Message, int]]:
    async def take() -> list[tuple[Message, int]]:
        async with connect(url) as broker:
            driver = await broker.driver()
            consumer = await driver.consume(QUEUE, lease=60, prefetch=1)
            found: list[tuple[Message, int]] = []
            while claimed := await consumer.claim(100, 0):
                found += [(delivery.message, delivery.attempt) for delivery in claimed]
            return found

    return anyio.run(take)


@pytest.mark.slow
def test_a_mover_that_is_told_to_stop_puts_back_what_it_holds(tmp_path: Path) -> None:
    source, target = (f"sqlite:///{tmp_path}/{name}.db" for name in ("a", "b"))
    sent = _filled(source, 1000)
    program = Program(
        tmp_path,
        *("migrate", "run", source, target, "--queue", QUEUE, "--ledger", _ledger(tmp_path)),
        *("--rate", "200", "--settle", "0"),
    )
    program.wait_until_said("migrate: ")
    program.signal(signal.SIGTERM)

    assert program.end() == 143
    left, arrived = _taken(source), _taken(target)
    assert len(left) + len(arrived) == len(sent)
    assert {message.id for message, _ in [*left, *arrived]} == sent
    assert max(attempt for _, attempt in [*left, *arrived]) == 1


def test_help_says_what_a_verb_does(cli: Cli) -> None:
    answer = cli("migrate", "--help")

    assert answer.code == 0
    for verb in ("plan", "run", "status", "verify", "finish", "rollback"):
        assert verb in answer.out


def test_a_verb_that_works_on_one_broker_asks_which(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_URL", "memory://a memory://b")

    answer = cli("queues", "ls")

    assert answer.code == 2
    assert "names several brokers: say by --url which of them is meant" in answer.err

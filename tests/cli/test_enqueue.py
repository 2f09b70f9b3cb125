from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from brokerwq.message import Message
from tests.cli.stock import Cli, Stock

JOBS = """
    from pydantic import BaseModel
    from brokerwq import App

    app = App({url!r})

    class Image(BaseModel):
        key: str
        width: int = 256

    @app.worker("orders")
    async def thumbnail(image: Image) -> None: ...

    @app.worker("orders")
    async def resize(*, key: str, width: int = 256) -> None: ...

    @app.worker("orders")
    async def raw(body: bytes) -> None: ...

    @app.worker("mails", name="twice")
    async def one(*, n: int) -> None: ...

    @app.worker("orders", name="twice")
    async def two(*, n: int) -> None: ...
"""


@pytest.fixture
def app(stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """MODULE:ATTR of an app on ``stock``, its module in the current directory."""
    name = f"jobs_{stock.url.rpartition('/')[2]}"
    (tmp_path / f"{name}.py").write_text(dedent(JOBS).format(url=stock.url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return f"{name}:app"


def bodies(messages: list[Message]) -> list[object]:
    return [json.loads(message.body) for message in messages]


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


@pytest.mark.parametrize("worker", ["thumbnail", "resize"])
def test_fields_become_a_message_of_the_workers_types(
    cli: Cli, stock: Stock, app: str, worker: str
) -> None:
    answer = cli("enqueue", app, worker, "key=a=b.jpg", "width=3")

    assert (answer.code, answer.out) == (0, "1 sent to orders\n")
    [message] = stock.take("orders")
    assert message.type == worker
    assert json.loads(message.body) == {"key": "a=b.jpg", "width": 3}


def test_a_field_can_be_given_as_json(cli: Cli, stock: Stock, app: str) -> None:
    cli("enqueue", app, "thumbnail", 'key:="7"', "width:=7")

    assert bodies(stock.take("orders")) == [{"key": "7", "width": 7}]


def test_a_payload_can_be_given_as_json(cli: Cli, stock: Stock, app: str) -> None:
    answer = cli("enqueue", app, "thumbnail", "--json", '{"key": "ä"}')

    assert answer.code == 0
    assert bodies(stock.take("orders")) == [{"key": "ä", "width": 256}]


@pytest.mark.parametrize("worker", ["thumbnail", "resize"])
def test_each_line_of_a_file_is_a_message(
    cli: Cli, stock: Stock, app: str, tmp_path: Path, worker: str
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f'{{"key": "{n}", "width": {n}}}\n\n' for n in range(250)))

    answer = cli("enqueue", app, worker, "--file", str(lines))

    assert answer.out == "250 sent to orders\n"
    assert "enqueue: 250 of 250 (100 %)" in answer.err
    assert bodies(stock.take("orders")) == [{"key": str(n), "width": n} for n in range(250)]


def test_each_line_of_a_pipe_is_a_message(
    cli: Cli, stock: Stock, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, '{"key": "a"}\r\n{"key": "b"}')

    assert cli("enqueue", app, "resize", "-").out == "2 sent to orders\n"
    assert bodies(stock.take("orders")) == [{"key": "a"}, {"key": "b"}]


def test_lines_for_a_worker_of_bytes_are_sent_as_they_are(
    cli: Cli, stock: Stock, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "plain\n")

    assert cli("enqueue", app, "raw", "-").code == 0
    assert [message.body for message in stock.take("orders")] == [b"plain"]


def test_lines_that_do_not_fit_are_named_and_the_others_are_sent(
    cli: Cli, stock: Stock, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, '{"key": "a"}\n{]\n{"width": 1}\n{"key": "b"}\n')

    answer = cli("enqueue", app, "thumbnail", "-")

    assert (answer.code, answer.out) == (2, "2 sent to orders\n")
    assert "brokerwq: line 2: " in answer.err
    assert "brokerwq: line 3: " in answer.err
    assert "2 lines do not fit thumbnail and were left out" in answer.err
    assert len(stock.take("orders")) == 2


def test_a_dry_run_checks_and_sends_nothing(
    cli: Cli, stock: Stock, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, '{"key": "a"}\n{}\n')
    many = cli("enqueue", app, "thumbnail", "-", "--dry-run")
    one = cli("enqueue", app, "thumbnail", "key=a", "--dry-run")

    assert (many.code, many.out) == (2, "1 would be sent to orders\n")
    assert (one.code, one.out) == (0, "1 would be sent to orders\n")
    assert stock.take("orders") == []


@pytest.mark.parametrize("worker", ["thumbnail", "resize"])
def test_a_delay_is_kept(cli: Cli, stock: Stock, app: str, worker: str) -> None:
    cli("enqueue", app, worker, "key=a", "--delay", "1h")

    assert stock.take("orders") == []
    assert cli("queues", "show", "orders", "--url", stock.url, "--json").json["delayed"] == 1


def test_a_name_on_two_queues_needs_the_queue(cli: Cli, stock: Stock, app: str) -> None:
    unclear = cli("enqueue", app, "twice", "n=1")
    clear = cli("enqueue", app, "twice", "n=1", "--queue", "mails")

    assert unclear.code == 2
    assert "name one with --queue mails|orders" in unclear.err
    assert clear.code == 0
    assert len(stock.take("mails")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("", "name a worker: raw, resize"),
        ("nobody", "has no worker 'nobody'; it has: raw (on orders)"),
        ("thumbnail", "key: missing"),
        ("thumbnail key", "'key' is no FIELD=TEXT"),
        ("thumbnail =a", "'=a' is no FIELD=TEXT"),
        ("thumbnail key=a key=b", "'key' is given twice"),
        ("thumbnail key=a width=wide", "width"),
        ("thumbnail key:={", "field 'key': this is no JSON"),
        ("thumbnail key=a --json {}", "only one of them"),
        ("thumbnail --json {", "JSON"),
        ("thumbnail --file nowhere", "'nowhere' does not exist"),
        ("thumbnail key=a --delay nan", "'nan' is no duration"),
        ("thumbnail key=a --delay 9999999d", "the limit is"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_sent(
    cli: Cli, stock: Stock, app: str, arguments: str, fault: str
) -> None:
    answer = cli("enqueue", app, *arguments.split())

    assert answer.code == 2
    assert fault in answer.err
    assert answer.err.count("\n") == 1
    assert stock.take("orders") == []


def test_messages_in_memory_end_with_the_command_and_it_says_so(cli: Cli, app: str) -> None:
    sent = cli("enqueue", app, "resize", "key=a")
    dry = cli("enqueue", app, "resize", "key=a", "--dry-run")

    assert sent.err == "brokerwq: memory:// ends with this command, and its messages with it\n"
    assert dry.err == ""

"""What a program is told by a broker that refuses it, or is not there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiormq.exceptions import ProbableAuthenticationError
from brokerwq_rabbitmq.errors import to_connect_error

from brokerwq import App, Runner
from brokerwq.errors import ConfigError, DriverError
from brokerwq.testing.servers.probe import free_port

MAX_LINES = 34
"""Of a traceback; half of it are asyncio's and the test's own."""


@asynccontextmanager
async def no_broker() -> AsyncGenerator[int]:
    """The port of a server of another kind: it refuses for good."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def app_at(port: int) -> App:
    app = App(f"amqp://somebody:secret@127.0.0.1:{port}/")
    app.settings = app.settings.load(url=app.url, connect_timeout=0.2)

    @app.worker("q")
    async def work(*, n: int) -> None: ...

    return app


def worker_of(app: App) -> Any:
    return app.workers[0]


async def connected(app: App) -> None:
    async with app:
        pass


DOORS: dict[str, Callable[[App], Awaitable[object]]] = {
    "run": lambda app: app.run(),
    "drain": lambda app: app.drain(),
    "Runner": lambda app: Runner(app).run(),
    "enqueue": lambda app: worker_of(app).enqueue(n=1),
    "enqueue_sync": lambda app: asyncio.to_thread(worker_of(app).enqueue_sync, n=1),
    "async with": connected,
}


def told(error: BaseException) -> str:
    """What a program that does not catch ``error`` prints, without this file's own frames."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("door", DOORS)
async def test_a_refusal_is_told_in_short(door: str) -> None:
    async with no_broker() as port:
        with pytest.raises(DriverError, match=f"127.0.0.1:{port} does not speak AMQP") as refused:
            await DOORS[door](app_at(port))

    text = told(refused.value)
    assert len(text.splitlines()) < MAX_LINES, text
    assert "brokerwq_rabbitmq/" not in text
    assert "secret" not in text
    assert "ExceptionGroup" not in text


@pytest.mark.parametrize("door", ["run", "drain", "Runner", "enqueue", "enqueue_sync"])
async def test_a_folder_that_is_not_there_is_told_in_short(door: str, tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/missing/jobs.db")

    @app.worker("q")
    async def work(*, n: int) -> None: ...

    with pytest.raises(ConfigError, match="there is no folder") as refused:
        await DOORS[door](app)

    text = told(refused.value)
    assert len(text.splitlines()) < MAX_LINES, text


@pytest.mark.slow
@pytest.mark.parametrize("door", ["enqueue", "enqueue_sync", "async with"])
async def test_a_broker_that_is_not_there_is_named_with_what_to_look_at(door: str) -> None:
    port = free_port()

    with pytest.raises(DriverError, match=f"127.0.0.1:{port} .*is it running") as refused:
        await DOORS[door](app_at(port))

    text = told(refused.value)
    assert len(text.splitlines()) < MAX_LINES, text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("user", "place", "reason", "way_out"),
    [
        ("ann", "mq:5672", None, "percent-encoded in the URL"),
        ("guest", "127.0.0.1:5672", None, "percent-encoded in the URL"),
        ("guest", "mq:5672", None, "from the broker's own machine"),
        ("ann", "mq:5672", "vhost a b not found", "rabbitmqctl add_vhost 'a b'"),
        (
            "ann",
            "mq:5672",
            "access to vhost 'a b' refused for user 'ann'",
            "rabbitmqctl set_permissions -p 'a b' ann",
        ),
        ("ann", "mq:5672", "access to vhost 'a b' refused: connection limit", "limit"),
    ],
)
def test_what_rabbitmq_refuses_names_the_user_and_the_way_out(
    user: str, place: str, reason: str | None, way_out: str
) -> None:
    exc = ProbableAuthenticationError("refused") if reason is None else ConnectionError()
    close_reason = None if reason is None else (530, f"NOT_ALLOWED - {reason}")

    error = to_connect_error(exc, place=place, user=user, vhost="a b", close_reason=close_reason)

    assert repr(user) in str(error)
    assert place in str(error)
    assert way_out in str(error)


@pytest.mark.slow
def test_a_program_without_logging_reads_which_broker_it_waits_for(tmp_path: Path) -> None:
    port = free_port()
    program = (
        "import asyncio\n"
        "from brokerwq import App\n"
        f"app = App('amqp://somebody:secret@127.0.0.1:{port}/')\n"
        "@app.worker('q')\n"
        "async def work(*, n: int) -> None: ...\n"
        "async def main():\n"
        "    async with asyncio.timeout(1):\n"
        "        await app.run()\n"
        "asyncio.run(main())\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    first = ended.stderr.splitlines()[0]
    assert "WARNING broker unreachable" in first
    assert f"127.0.0.1:{port}" in first
    assert "secret" not in ended.stderr

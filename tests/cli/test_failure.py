from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerwq.cli.failure import ExitCode, FinishedWithError, TerminatedError, report
from brokerwq.cli.loop import run_async
from brokerwq.errors import (
    AuthenticationError,
    ConfigError,
    ConnectionLostError,
    EnvelopeError,
    QueueMismatchError,
    QueueNotFoundError,
)
from tests.cli.stock import Cli, Stock


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (EnvelopeError("x"), 2),
        (ConnectionLostError("x"), 3),
        (AuthenticationError("x"), 3),
        (QueueNotFoundError("x"), 3),
        (QueueMismatchError("x"), 4),
        (RuntimeError("x"), 70),
        (TerminatedError(), 143),
        (KeyboardInterrupt(), 130),
        (FinishedWithError(ExitCode.DEAD_LETTERS), 1),
    ],
)
def test_each_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert report(error) == code


def test_an_error_is_one_line_without_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    report(ConnectionLostError("cannot reach\n  amqp://user:hunter2@host/vh"))

    assert capsys.readouterr().err == "brokerwq: cannot reach amqp://user:***@host/vh\n"


def test_a_fault_of_our_own_shows_its_traceback_only_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report(RuntimeError("oops"))
    quiet = capsys.readouterr().err
    monkeypatch.setenv("BROKERWQ_TRACEBACK", "1")
    report(RuntimeError("oops"))

    assert quiet.startswith("brokerwq: internal error: RuntimeError: oops (set BROKERWQ_TRACEBACK")
    assert "Traceback" not in quiet
    assert capsys.readouterr().err.startswith("RuntimeError: oops\n")


def test_a_group_without_a_verb_shows_its_help(cli: Cli) -> None:
    answer = cli("queues")

    assert "List, look into, declare and empty queues." in answer.out + answer.err


def test_a_verb_that_does_not_exist_is_said(cli: Cli) -> None:
    answer = cli("quues")

    assert answer.code == 2
    assert "No such command 'quues'" in answer.err


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(stock: Stock) -> None:
    del stock
    script = f"{sys.executable} -m brokerwq config show --json | head -c 1; echo; exit $PIPESTATUS"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert done.returncode in (0, 141)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        (">&-", 0, ""),
        (">/dev/full", 2, "brokerwq: the output cannot be written: No space left on device\n"),
    ],
)
def test_an_output_that_takes_nothing_is_no_fault_of_ours(
    output: str, code: int, said: str
) -> None:
    script = f"{sys.executable} -m brokerwq size --items 9 --seconds 1 --slots 1 {output}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert (done.stderr, done.returncode) == (said, code)


def test_sigterm_lets_a_verb_tidy_up(tmp_path: Path) -> None:
    import signal

    import anyio

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep(30)
        finally:
            (tmp_path / "tidy").touch()

    with pytest.raises(TerminatedError):
        run_async(work)

    assert (tmp_path / "tidy").exists()

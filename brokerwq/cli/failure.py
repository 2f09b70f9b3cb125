"""Exit codes, and one line for every error: what was wrong and the way out, no traceback."""

from __future__ import annotations

import os
import re
import sys
import traceback
from enum import IntEnum

import click

from brokerwq.errors import (
    BrokerwqError,
    ConfigError,
    DriverError,
    EnvelopeError,
    PayloadError,
    QueueMismatchError,
)


class ExitCode(IntEnum):
    """What the exit code of every verb means."""

    DONE = 0
    DEAD_LETTERS = 1
    """Finished, but with dead letters, or after the deadline."""
    USAGE = 2
    """A wrong argument, setting or input."""
    UNREACHABLE = 3
    """The broker or store cannot be reached, or refused."""
    DIFFERS = 4
    """A queue exists with other properties."""
    INTERNAL = 70
    """A fault of brokerwq itself (``EX_SOFTWARE`` of sysexits.h)."""
    INTERRUPTED = 130
    TERMINATED = 143


TRACEBACK = "BROKERWQ_TRACEBACK"
"""Environment variable: set it to anything to see where an error came from."""

_PASSWORD = re.compile(r"(://[^\s/:@]*):[^\s/@]+@")


class TerminatedError(Exception):
    """SIGTERM arrived while a verb was waiting."""


class FinishedWithError(Exception):
    """The verb has said all there is to say; only the exit code is left."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code)
        self.code = code


def say(text: str) -> None:
    """Write one line for people to standard error, beside the data on standard output."""
    click.echo(f"brokerwq: {one_line(text)}", err=True)


def one_line(text: str) -> str:
    """``text`` on one line, without passwords."""
    return _PASSWORD.sub(r"\1:***@", " ".join(text.split()))


def report(error: BaseException) -> ExitCode:
    """Tell people about ``error``; the exit code for it."""
    if os.environ.get(TRACEBACK) and not isinstance(error, FinishedWithError):
        traceback.print_exception(error, file=sys.stderr)
    match error:
        case FinishedWithError():
            return error.code
        case click.UsageError() if error.ctx and error.message == error.ctx.get_help():
            click.echo(error.message, err=True)  # a group was called without a verb
            return ExitCode.USAGE
        case click.ClickException():
            say(_of_click(error))
            return ExitCode.USAGE
        case TerminatedError():
            return ExitCode.TERMINATED
        case KeyboardInterrupt() | click.Abort():
            return ExitCode.INTERRUPTED
        case BrokerwqError():
            say(str(error) or type(error).__name__)
            return code_of(error)
        case _:
            say(
                f"internal error: {type(error).__name__}: {error} "
                f"(set {TRACEBACK}=1 to see where, and please report it)"
            )
            return ExitCode.INTERNAL


def code_of(error: BrokerwqError) -> ExitCode:
    """The exit code for ``error``."""
    match error:
        case ConfigError() | PayloadError() | EnvelopeError():
            return ExitCode.USAGE
        case QueueMismatchError():
            return ExitCode.DIFFERS
        case DriverError():
            return ExitCode.UNREACHABLE
        case _:
            return ExitCode.DEAD_LETTERS


def _of_click(error: click.ClickException) -> str:
    text = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text = f"{text.rstrip('.')} (see {error.ctx.command_path} --help)"
    return text

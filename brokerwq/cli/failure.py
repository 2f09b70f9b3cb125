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
    EnqueueError,
    EnvelopeError,
    PayloadError,
    QueueMismatchError,
    StoreError,
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

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def say(text: str) -> None:
    """Write one line for people to standard error, beside the data on standard output."""
    # Looked up anew each time: a progress bar puts its own stream there to stay below.
    print(f"brokerwq: {one_line(text)}", file=sys.stderr)  # noqa: T201


def one_line(text: str) -> str:
    """``text`` on one line, without passwords."""
    return _PASSWORD.sub(r"\1:***@", " ".join(text.split()))


def report(error: BaseException) -> int:
    """Tell people about ``error``; the exit code for it."""
    if isinstance(error, FinishedWithError):
        return error.code
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, click.UsageError) and _is_help(error):
        click.echo(error.message, err=True)
    elif text := _words(error):
        say(text)
    return code_of(error)


def _is_help(error: click.UsageError) -> bool:
    """Whether a group was called without a verb: then the message is its help."""
    return error.ctx is not None and error.message == error.ctx.get_help()


def _words(error: BaseException) -> str:
    match error:
        case TerminatedError() | KeyboardInterrupt() | click.Abort():
            return ""
        case click.UsageError() if error.ctx is not None:
            text = error.format_message().rstrip(".")
            return f"{text} (see {error.ctx.command_path} --help)"
        case click.ClickException():
            return error.format_message()
        case BrokerwqError():
            return str(error) or type(error).__name__
        case _:
            return (
                f"internal error: {type(error).__name__}: {error} "
                f"(set {TRACEBACK}=1 to see where, and please report it)"
            )


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (TerminatedError, ExitCode.TERMINATED),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (click.Abort, ExitCode.INTERRUPTED),
    (click.ClickException, ExitCode.USAGE),
    (ConfigError, ExitCode.USAGE),
    (PayloadError, ExitCode.USAGE),
    (EnvelopeError, ExitCode.USAGE),
    (QueueMismatchError, ExitCode.DIFFERS),
    (DriverError, ExitCode.UNREACHABLE),
    (EnqueueError, ExitCode.UNREACHABLE),
    (StoreError, ExitCode.UNREACHABLE),
)


def code_of(error: BaseException) -> ExitCode:
    """The exit code for ``error``."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.INTERNAL

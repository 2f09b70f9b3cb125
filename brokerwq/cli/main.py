"""The top of the command tree, and the one place where errors become exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Sequence

import click

from brokerwq.cli.config import config
from brokerwq.cli.conform import conform
from brokerwq.cli.demo import demo
from brokerwq.cli.dlq import dlq
from brokerwq.cli.dlq_change import delete, export, import_, redrive
from brokerwq.cli.doctor import doctor
from brokerwq.cli.drain import drain
from brokerwq.cli.enqueue import enqueue
from brokerwq.cli.failure import report
from brokerwq.cli.keys import keys
from brokerwq.cli.migrate import migrate
from brokerwq.cli.queues import queues
from brokerwq.cli.run import run
from brokerwq.cli.services import services
from brokerwq.cli.size import size
from brokerwq.errors import BrokerwqError
from brokerwq.version import __version__

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 done, 1 finished with dead letters or after the deadline, 2 usage, "
        "3 broker unreachable or refused, 4 queue differs, 130/143 stopped."
    ),
)
@click.version_option(__version__, prog_name="brokerwq", message="%(prog)s %(version)s")
def brokerwq() -> None:
    """One work queue over SQLite, RabbitMQ and Amazon SQS."""


for command in (redrive, delete, export, import_):
    dlq.add_command(command)
for command in (
    run,
    drain,
    enqueue,
    queues,
    dlq,
    keys,
    migrate,
    size,
    doctor,
    conform,
    config,
    services,
    demo,
):
    brokerwq.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. Never raises and never shows a traceback."""
    try:
        code = brokerwq.main(arguments, prog_name="brokerwq", standalone_mode=False)
        if sys.__stdout__ is not None:  # it is where the shell has closed it by ``>&-``
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()  # the reader has what it wanted
        return 128 + 13
    except OSError as error:
        if error.errno in _NO_ROOM:
            _drop_output()
            return report(click.ClickException(f"the output cannot be written: {error.strerror}"))
        return report(error)
    except asyncio.CancelledError:
        # ``run_async`` answers for signals, so nobody from outside has done this.
        return report(BrokerwqError("a worker cancelled the runner itself: it has stopped"))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  -- reported, not swallowed
        return report(error)
    return code if isinstance(code, int) else 0


def _drop_output() -> None:
    """Let what is left of it go nowhere: Python would complain once more at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

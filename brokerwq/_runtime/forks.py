"""A fork that comes back out of its handler is no runner, and must not go on as one."""

from __future__ import annotations

import os
from contextlib import suppress

_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
_WORDS = (
    b"brokerwq: a worker called os.fork() and the child returned from it; the child ends here: "
    b"let it end with os._exit()\n"
)


def end_if_forked(pid: int) -> None:
    """End this process at once if it is not the one of number ``pid``.

    A child that went on would settle its parent's messages, and would read from the pipe that
    wakes its parent's event loop.
    """
    if os.getpid() != pid:
        with suppress(OSError):
            os.write(2, _WORDS)
        os._exit(_EXIT_CODE)

"""The line between a runner process and the process that looks after it.

Two pipes: one ends when the parent is gone, whatever ended it; the other carries the child's
news, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brokerwq.health import Watched

VARIABLE = "BROKERWQ_LINK"
_POLL = 0.1


class Link:
    """The child's end."""

    def __init__(self, watched_fd: int, news_fd: int) -> None:
        self._watched_fd = watched_fd
        self._news_fd = news_fd

    @classmethod
    def from_environment(cls) -> Link | None:
        """The link that the parent has made; None in a process that nobody looks after."""
        # Taken out, so that what a handler starts does not take itself for a runner's child.
        text = os.environ.pop(VARIABLE, None)
        if text is None:
            return None
        watched_fd, news_fd = map(int, text.split(","))
        for fd in (watched_fd, news_fd):
            os.set_inheritable(fd, False)  # noqa: FBT003  -- takes no names
        return cls(watched_fd, news_fd)

    def stop_with_parent(self) -> None:
        """From now on, stop this process as SIGTERM does when the parent is gone."""

        def wait() -> None:
            with suppress(OSError):
                os.read(self._watched_fd, 1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="brokerwq-parent", daemon=True).start()

    def follow(self, runner: Watched) -> None:
        """From now on, tell the parent the state of ``runner`` whenever it has changed."""
        pause = threading.Event()

        def look() -> None:
            told: tuple[str, tuple[str, ...]] | None = None
            while True:
                now = (runner.state, runner.reasons)
                if now != told:
                    told = now
                    self.tell(state=now[0], reasons=list(now[1]))
                if now[0] == "stopped":
                    return
                pause.wait(_POLL)

        threading.Thread(target=look, name="brokerwq-news", daemon=True).start()

    def tell(self, **news: Any) -> None:
        """Send one line of news; without a parent it goes nowhere."""
        with suppress(OSError):
            os.write(self._news_fd, json.dumps(news).encode() + b"\n")

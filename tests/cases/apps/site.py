"""The app that subprocess tests run: it does what a message says, and notes it where a crash
cannot undo it.

``BROKERWQ_URL`` says where the messages are, ``SITE_QUEUE`` in which queue instead of ``q``,
``SITE_NOTES`` the file for the notes, and ``SITE_ATTEMPTS``, ``SITE_LEASE`` and ``SITE_BASE`` the
workers' properties.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable

from brokerwq import App, DeadLetter, Job, RetryPolicy, Snooze

_notes = os.open(os.environ["SITE_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(*words: object) -> None:
    """One line, in one system call: whole, or not there."""
    line = " ".join(map(str, (f"{time.monotonic():.6f}", os.getpid(), *words)))
    os.write(_notes, f"{line}\n".encode())


app = App(lease=float(os.environ.get("SITE_LEASE", "60")))
retry = RetryPolicy(
    max_attempts=int(os.environ.get("SITE_ATTEMPTS", "3")),
    base=float(os.environ.get("SITE_BASE", "0.01")),
    jitter="none",
)


QUEUE = os.environ.get("SITE_QUEUE", "q")


@app.worker(QUEUE, retry=retry)
async def work(job: Job, *, n: int, act: str = "", seconds: float = 0.0) -> None:
    """Do ``act``, one of ``ACTS``; anything else is the reason of a dead letter."""
    note("start", n, job.attempt, act or "-")
    try:
        await _act(job, act, seconds)
    except asyncio.CancelledError:
        note("cancelled", n, job.attempt, "lost" if job.lease.lost else "-")
        raise
    note("end", n, job.attempt)


async def _act(job: Job, act: str, seconds: float) -> None:
    if act not in ACTS:
        raise DeadLetter(act)
    await ACTS[act](job, seconds)


async def _exit(_: Job, seconds: float) -> None:
    await asyncio.sleep(seconds)
    os._exit(9)


async def _fail_once(job: Job, seconds: float) -> None:
    if job.attempt == 1:
        raise ValueError(job.id)
    await asyncio.sleep(seconds)


async def _block(_: Job, seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 -- as a careless handler does


async def _ignore(_: Job, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            time.sleep(0.01)  # noqa: ASYNC251 -- or the loop would do nothing but cancel


async def _quit(_: Job, seconds: float) -> None:
    sys.exit(int(seconds))


async def _stop(job: Job, _: float) -> None:
    while not job.stopping:
        await asyncio.sleep(0.01)
    raise Snooze(0)


async def _sleep(_: Job, seconds: float) -> None:
    await asyncio.sleep(seconds)


ACTS: dict[str, Callable[[Job, float], Awaitable[None]]] = {
    "": _sleep,
    "exit": _exit,
    "fail once": _fail_once,
    "block": _block,
    "ignore": _ignore,
    "quit": _quit,
    "stop": _stop,
}


@app.worker("plain", retry=retry)
def plain(job: Job, *, n: int, seconds: float = 0.0) -> None:
    """Take ``seconds`` in a thread, whatever anybody says."""
    note("start", n, job.attempt, "-")
    threading.Event().wait(seconds)
    note("end", n, job.attempt)


@app.worker("p", name="work", retry=retry)
async def other(job: Job, *, n: int, act: str = "", seconds: float = 0.0) -> None:
    """The same on another queue."""
    await work(job, n=n, act=act, seconds=seconds)

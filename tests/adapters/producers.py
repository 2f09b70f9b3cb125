"""Programs that only send, and never say that they are done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

PROGRAM = """
import asyncio, atexit, gc, os, sys
from brokerwq import App

app = App(sys.argv[1])

@app.worker(sys.argv[2])
async def thumbnail(*, key: str) -> None: ...

async def suspended():
    async with app:
        yield await thumbnail.enqueue(key="a")

async def left_open():
    app.kept = suspended()
    await anext(app.kept)

if sys.argv[3] == "sync":
    atexit.register(lambda: thumbnail.enqueue_sync(key="the last word"))
    thumbnail.enqueue_sync(key="a")
elif sys.argv[3] == "loops":
    asyncio.run(thumbnail.enqueue(key="a"))
    asyncio.run(left_open())
elif sys.argv[3] == "by hand":
    for key in "ab":
        loop = asyncio.new_event_loop()
        loop.run_until_complete(thumbnail.enqueue(key=key))
        loop.close()
        del loop
    gc.collect()
elif sys.argv[3] == "fork":
    thumbnail.enqueue_sync(key="a")
    if child := os.fork():
        os.waitpid(child, 0)
    thumbnail.enqueue_sync(key="of both")
else:
    thumbnail.enqueue_sync(key="a")
    sys.exit("on purpose")
"""


def check_silence(url: str, queue: str, environment: Mapping[str, str] | None = None) -> None:
    """Let them run on ``url``, and see that they leave nothing behind but their messages."""
    processes = {
        way: subprocess.Popen(
            # From 3.12 on Python warns of every fork beside a thread.
            [
                sys.executable,
                "-W",
                "ignore:This process:DeprecationWarning",
                "-c",
                PROGRAM,
                url,
                queue,
                way,
            ],
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for way in ("sync", "loops", "by hand", "fork", "exit")
    }
    said = {way: process.communicate(timeout=60)[0] for way, process in processes.items()}
    assert said == {"sync": "", "loops": "", "by hand": "", "fork": "", "exit": "on purpose\n"}

"""Forks that end as scripts do, with every destructor run: ``python -m … FOLDER ACT``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.cases.ring import Ring


def main() -> None:
    ring = Ring(Path(sys.argv[1]))
    ring.work.enqueue_sync(n=0)
    pid = os.fork()
    if not pid:
        match sys.argv[2]:
            case "send":
                ring.work.enqueue_sync(n=1)
            case "send async":
                asyncio.run(ring.work.enqueue(n=1))
            case "drain":
                asyncio.run(_drain(ring))
            case _:
                pass
        return  # through the interpreter's own end
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        sys.exit(f"the child ended with {code}")
    ring.work.enqueue_sync(n=2)


async def _drain(ring: Ring) -> None:
    assert (await ring.app.drain(log=False)).done == 1


if __name__ == "__main__":
    main()

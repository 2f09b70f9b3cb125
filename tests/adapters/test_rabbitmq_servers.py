"""The servers that tests start, and what is left of them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from brokerwq.testing.servers.rabbitmq import Release
from tests.adapters.rabbit import RELEASES, node_or_skip
from tests.cases.lab import ROOT

pytestmark = pytest.mark.slow

CHILD = """
import sys, time
from tests.adapters.rabbit import node_or_skip
node = node_or_skip(sys.argv[1])
node.start()
print(node._folder, flush=True)
time.sleep(600)
"""


def belongings(folder: str) -> list[str]:
    """The processes that have ``folder`` in their arguments or their environment."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            about = words + (process / "environ").read_bytes()
        except OSError:
            continue
        if folder.encode() in about:
            found.append(words.replace(b"\0", b" ").decode(errors="replace")[:100])
    return found


@pytest.mark.parametrize("release", RELEASES[-1:])
def test_a_node_outlives_no_process_that_started_it(release: Release) -> None:
    node_or_skip(release).close()
    command = [sys.executable, "-c", CHILD, release]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        folder = child.stdout.readline().strip()
        started = belongings(folder) if folder else []
        child.kill()

    assert any("beam" in text for text in started)
    assert any("epmd" in text for text in started)
    give_up_at = time.monotonic() + 30
    while left := belongings(folder):
        assert time.monotonic() < give_up_at, left
        time.sleep(0.1)

"""Apps and brokers used from several loops, threads and processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator

import pytest

from brokerwq.message import new_message_id


@pytest.fixture
def _restless_threads() -> Generator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_restless_threads")
def test_ids_made_in_many_threads_are_all_different() -> None:
    made: list[list[str]] = [[] for _ in range(6)]

    def make(ids: list[str]) -> None:
        ids.extend(new_message_id() for _ in range(15_000))

    threads = [threading.Thread(target=make, args=(ids,)) for ids in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({each for ids in made for each in ids}) == 90_000

"""The memory broker keeps the contract."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from brokerwq.driver import Driver
from brokerwq.testing import FakeClock, Harness
from brokerwq.testing.pytest_suite import ConformanceSuite


@pytest.fixture
def harness() -> Harness:
    clock = FakeClock()
    lives = [Harness.from_url("memory://", clock=clock)]

    async def restart() -> None:
        lives.append(Harness.from_url("memory://", clock=clock))

    def connect() -> AbstractAsyncContextManager[Driver]:
        return lives[-1].connect()

    return replace(lives[0], connect=connect, restart=restart)


class TestMemory(ConformanceSuite):
    pass

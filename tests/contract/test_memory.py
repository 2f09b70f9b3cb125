"""The memory broker keeps the contract."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerwq.testing import FakeClock, Harness
from brokerwq.testing.pytest_suite import ConformanceSuite


@pytest.fixture
def harness() -> Harness:
    clock = FakeClock()
    lives = [Harness.from_url("memory://", clock=clock)]

    async def restart() -> None:
        lives.append(Harness.from_url("memory://", clock=clock))

    return replace(lives[0], connect=lambda: lives[-1].connect(), restart=restart)


class TestMemory(ConformanceSuite):
    pass

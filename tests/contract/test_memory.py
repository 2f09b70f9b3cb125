"""The memory broker keeps the contract."""

from __future__ import annotations

import pytest

from brokerwq.testing import FakeClock, Harness
from brokerwq.testing.pytest_suite import ConformanceSuite


class TestMemory(ConformanceSuite):
    @pytest.fixture
    def harness(self) -> Harness:
        return Harness.from_url("memory://", clock=FakeClock())

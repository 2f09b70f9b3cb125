"""The adapter keeps brokerwq's contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerwq.testing import FakeClock, Harness
from brokerwq.testing.pytest_suite import ConformanceSuite


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness.from_url(f"folder://{tmp_path}/spool", clock=FakeClock())


class TestConforms(ConformanceSuite):
    pass

from __future__ import annotations

import pytest

from tests.telemetry.lab import Lab


@pytest.fixture
def lab() -> Lab:
    return Lab()

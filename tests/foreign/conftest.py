from __future__ import annotations

import pytest

from tests.cases.lab import Place, memory


@pytest.fixture
def place() -> Place:
    """Memory, where time passes only when a test says so."""
    return memory()

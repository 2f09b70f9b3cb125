from __future__ import annotations

import pytest

from brokerwq.clock import SYSTEM_CLOCK
from tests.cases.lab import Place, memory


@pytest.fixture
def place() -> Place:
    """Memory, where time passes only when a test says so."""
    return memory()


@pytest.fixture
def real_time() -> Place:
    """Memory by the machine's clock: no fake one waits for the threads of a store."""
    return memory(SYSTEM_CLOCK)

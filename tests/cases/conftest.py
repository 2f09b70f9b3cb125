from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.cases.lab import Place, memory, sqlite


@pytest.fixture
def place() -> Place:
    """Memory, where time passes only when a test says so."""
    return memory()


@pytest.fixture
async def real(tmp_path: Path) -> AsyncGenerator[Place]:
    """SQLite, on the machine's clock."""
    place = sqlite(tmp_path)
    yield place
    await place.aclose()


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
async def both_slowly(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Place]:
    """The same for what has to wait at SQLite, or to try many values."""
    place = memory() if request.param == "memory" else sqlite(tmp_path)
    yield place
    await place.aclose()


@pytest.fixture(params=["memory", "sqlite"])
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Place]:
    """Memory on the fake clock, and SQLite on the machine's."""
    place = memory() if request.param == "memory" else sqlite(tmp_path)
    yield place
    await place.aclose()

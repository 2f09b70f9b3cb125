from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.idempotency.stores import RECORDS, STORES, TRANSACTIONAL, Bench


@pytest.fixture(params=RECORDS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Bench]:
    """Every store, one after the other."""
    async with STORES[request.param](tmp_path) as bench:
        yield bench


@pytest.fixture(params=TRANSACTIONAL)
async def tx_bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Bench]:
    """Every store in whose transactions work can be done."""
    async with STORES[request.param](tmp_path) as bench:
        yield bench

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from brokerwq.testing.stores import StoreBench
from tests.idempotency.stores import STORES, TRANSACTIONAL


@pytest.fixture(params=TRANSACTIONAL)
async def tx_bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[StoreBench]:
    """Every store in whose transactions work can be done."""
    async with STORES[request.param](tmp_path) as bench:
        yield bench

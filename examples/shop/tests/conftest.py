from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import pytest
from fake_bank import FakeBank


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def bank() -> FakeBank:
    return FakeBank()


@pytest.fixture
def bwq_lifespan(bank: FakeBank) -> Callable[[], AsyncGenerator[FakeBank]]:
    """What jobs find in ``job.state`` in place of the real bank."""

    async def lifespan() -> AsyncGenerator[FakeBank]:
        yield bank

    return lifespan

"""The SQLite broker keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from brokerwq.testing import Harness
from brokerwq.testing.pytest_suite import ConformanceSuite


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    path = tmp_path_factory.mktemp("sqlite") / "jobs.db"
    away = path.with_suffix(".away")

    @asynccontextmanager
    async def outage() -> AsyncGenerator[None]:
        path.rename(away)
        yield
        away.rename(path)

    return replace(Harness.from_url(f"sqlite:///{path}"), shortest_lease=0.1, outage=outage)


class TestSqlite(ConformanceSuite):
    pass

"""The SQLite broker keeps the contract."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerwq.testing import Harness
from brokerwq.testing.pytest_suite import ConformanceSuite


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    path = tmp_path_factory.mktemp("sqlite") / "jobs.db"
    return replace(Harness.from_url(f"sqlite:///{path}"), shortest_lease=0.1)


class TestSqlite(ConformanceSuite):
    pass

"""The PostgreSQL stores keep the contract, through every client library."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerwq.testing.stores import OpenBench
from brokerwq.testing.stores.pytest_suite import StoreConformanceSuite
from tests.idempotency.stores import STORES


class TestAsyncpg(StoreConformanceSuite):
    @pytest.fixture
    def open_bench(self, tmp_path: Path) -> OpenBench:
        return lambda: STORES["postgres, asyncpg"](tmp_path)


class TestPsycopg(StoreConformanceSuite):
    @pytest.fixture
    def open_bench(self, tmp_path: Path) -> OpenBench:
        return lambda: STORES["postgres, psycopg"](tmp_path)


class TestSqlalchemyOnAsyncpg(StoreConformanceSuite):
    @pytest.fixture
    def open_bench(self, tmp_path: Path) -> OpenBench:
        return lambda: STORES["postgres, sqlalchemy, asyncpg"](tmp_path)


class TestSqlalchemyOnPsycopg(StoreConformanceSuite):
    @pytest.fixture
    def open_bench(self, tmp_path: Path) -> OpenBench:
        return lambda: STORES["postgres, sqlalchemy, psycopg"](tmp_path)

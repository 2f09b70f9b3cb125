"""Records in DynamoDB: what every store promises, and what is DynamoDB's own."""

from __future__ import annotations

import pytest

from brokerwq.testing.stores import OpenBench
from brokerwq.testing.stores.pytest_suite import StoreConformanceSuite
from tests.idempotency.dynamodb import dynamodb_bench


class TestDynamodbStore(StoreConformanceSuite):
    @pytest.fixture
    def open_bench(self) -> OpenBench:
        return dynamodb_bench

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep in one process what shares a server, and what shares a file."""
    for item in items:
        file = item.path.relative_to(TESTS).as_posix()
        group = next((server for server in ("rabbitmq", "sqs", "postgres") if server in file), file)
        item.add_marker(pytest.mark.xdist_group(group))

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
SERVERS = ("rabbitmq", "sqs", "postgres", "redis", "dynamodb")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_configure(config: pytest.Config) -> None:
    """Know the marker set below where the project's own configuration is not there."""
    if "CI" not in os.environ:  # there hypothesis has a profile of its own that is like it
        # How long one example takes says more of the machine than of the code.
        hypothesis.settings.register_profile("patient", deadline=None)
        hypothesis.settings.load_profile("patient")
    config.addinivalue_line("markers", "server: needs a server")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, and begin with the files that take long.

    Processes take whole files: with a long one at the end all but one would have nothing to do.
    """
    for item in items:
        file = item.path.relative_to(TESTS).as_posix()
        about = f"{file} {item.name}".lower()
        server = next((name for name in SERVERS if name in about), None)
        if server in ("postgres", "redis", "dynamodb") or (
            server and item.get_closest_marker("slow")
        ):
            item.add_marker("server")
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason why tests were skipped: a server that is missing skips hundreds."""
    reports: list[pytest.TestReport] = terminalreporter.stats.get("skipped", [])
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in reports
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")

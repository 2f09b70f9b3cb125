"""Tools for tests: of programs that use brokerwq, and of adapters for other brokers.

Nothing here needs pytest, but ``brokerwq.testing.pytest_suite``; nothing needs hypothesis, but
``brokerwq.testing.stateful``.
"""

from brokerwq.testing.app import Dead, Enqueued, TestApp
from brokerwq.testing.bench import Bench, CheckFailedError
from brokerwq.testing.brokers import BrokerUnderTest
from brokerwq.testing.catalogue import Check
from brokerwq.testing.checks import all_checks
from brokerwq.testing.clock import FakeClock
from brokerwq.testing.endless import HangError
from brokerwq.testing.harness import Harness
from brokerwq.testing.idempotent import (
    IdempotencyReport,
    NotIdempotentError,
    assert_idempotent,
)
from brokerwq.testing.jobs import FakeJob, FakeLease, job
from brokerwq.testing.runner import CheckResult, Verdict, run_check, run_checks, select

__all__ = [
    "Bench",
    "BrokerUnderTest",
    "Check",
    "CheckFailedError",
    "CheckResult",
    "Dead",
    "Enqueued",
    "FakeClock",
    "FakeJob",
    "FakeLease",
    "HangError",
    "Harness",
    "IdempotencyReport",
    "NotIdempotentError",
    "TestApp",
    "Verdict",
    "all_checks",
    "assert_idempotent",
    "job",
    "run_check",
    "run_checks",
    "select",
]

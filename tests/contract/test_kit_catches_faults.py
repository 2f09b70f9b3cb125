"""The kit finds what is broken: each fault is caught by the checks that are named for it."""

from __future__ import annotations

import pytest

from brokerwq.testing import Verdict, all_checks, run_check
from tests.contract import broken_claims, broken_drivers, broken_returns, broken_settles
from tests.contract.broken import FAULTS
from tests.contract.sound import Broker

CHECKS = {check.name: check for check in all_checks()}
MODULES = (broken_claims, broken_drivers, broken_returns, broken_settles)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_is_caught(name: str) -> None:
    fault = FAULTS[name]
    broker = Broker(fault.can, driver_class=fault.driver, consumer_class=fault.consumer)

    passed: list[str] = []
    for check_name in fault.caught_by:
        result = await run_check(CHECKS[check_name], broker.harness(), limit=20.0)
        if result.verdict is not Verdict.FAILED:
            passed.append(f"{check_name}: {result.verdict.value} {result.reason}")

    assert not passed


def test_every_broken_class_is_listed() -> None:
    assert len(FAULTS) >= 60
    assert all(module.__name__ for module in MODULES)

"""The kit finds what is broken: each fault is caught by the checks that are named for it."""

from __future__ import annotations

from importlib import import_module

import pytest

from brokerwq.testing import Verdict, all_checks, run_check
from tests.contract.broken import FAULTS
from tests.contract.sound import Broker

for module in ("claims", "drivers", "returns", "sends", "settles"):
    import_module(f"tests.contract.broken_{module}")

CHECKS = {check.name: check for check in all_checks()}


@pytest.mark.slow
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


def test_every_check_is_there_to_catch_some_fault() -> None:
    named = {name for fault in FAULTS.values() for name in fault.caught_by}

    assert named == set(CHECKS)

"""The kit finds no fault where there is none, whatever a broker can or cannot do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from brokerwq.testing import Verdict, all_checks, run_checks
from tests.contract.sound import Broker
from tests.contract.sound_capabilities import SOUND
from tests.contract.sound_fifo import fifo_broker

BROKERS: dict[str, Callable[[], Broker]] = {
    **{name: partial(Broker, can) for name, can in SOUND.items()},
    "fifo": fifo_broker,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKERS)
async def test_a_sound_driver_passes_every_check_that_applies(name: str) -> None:
    harness = BROKERS[name]().harness()

    results = [result async for result in run_checks(harness)]

    failed = [f"{it.check.name}: {it.reason}" for it in results if it.verdict is Verdict.FAILED]
    assert not failed, "\n".join(failed)
    assert not [result for result in results if result.verdict is Verdict.NOT_RUN]


def test_every_check_applies_to_some_sound_driver() -> None:
    brokers = [make().can for make in BROKERS.values()]

    never = [check.name for check in all_checks() if all(map(check.unmet, brokers))]

    assert not never

"""How soon work that is under way elsewhere is looked at again."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerwq import App
from brokerwq.idempotency.looks import Looks
from brokerwq.testing import TestApp


def test_pauses_double_up_to_a_minute_and_never_outlast_the_lease() -> None:
    seen = Looks()

    pauses = [seen.pause(b"k", 3600.0) for _ in range(9)]

    for pause, wanted in zip(pauses, (1, 2, 4, 8, 16, 32, 60, 60, 60), strict=True):
        assert wanted <= pause <= wanted + min(wanted / 10, 1)
    assert 5.0 <= seen.pause(b"k", 5.0) <= 5.5
    assert 1.0 <= seen.pause(b"k", -1.0) <= 1.1
    assert seen.pause(b"t", -1.0, shortest=0.0) == 0.0


def test_a_key_that_was_free_in_between_is_looked_at_soon_again() -> None:
    seen = Looks()
    for _ in range(5):
        seen.pause(b"k", 60.0)

    seen.forget(b"k")

    assert seen.pause(b"k", 60.0) <= 1.1


def test_only_the_latest_keys_are_remembered() -> None:
    seen = Looks()
    for number in range(5000):
        seen.pause(number.to_bytes(2), 60.0)

    assert seen.pause((4999).to_bytes(2), 60.0) >= 2.0
    assert seen.pause((0).to_bytes(2), 60.0) <= 1.1


@pytest.mark.slow
async def test_a_copy_of_short_work_does_not_wait_for_the_rest_of_the_lease(tmp_path: Path) -> None:
    charged: list[int] = []
    app = App("memory://", name="shop", store=f"sqlite:///{tmp_path / 'keys.db'}")

    @app.worker("q", once="marker", key=lambda order: order)
    async def charge(order: int) -> None:
        await app.clock.sleep(0.5)
        charged.append(order)

    async with TestApp(app) as tested:
        await charge.enqueue(1)
        await charge.enqueue(1)
        report = await tested.drain()

    assert charged == [1]
    assert (report.done, report.duplicates) == (1, 1)
    assert report.put_back >= 1
    assert report.seconds < 20

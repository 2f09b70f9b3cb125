"""The app in memory; time passes only when a test says so."""

from __future__ import annotations

from datetime import timedelta

from fake_bank import FakeBank
from shop.jobs import Order, cart_left, charge, place_order, receipt, remind

from brokerwq.testing import TestApp

ORDER = Order(number=7, cents=1999)


async def test_an_order_is_charged_and_gets_its_receipt(bwq_app: TestApp, bank: FakeBank) -> None:
    await place_order(ORDER)
    assert bwq_app.enqueued(charge, number=7)
    assert not bwq_app.enqueued(receipt)

    report = await bwq_app.drain()

    assert (report.done, bank.charged, len(bank.letters)) == (2, {7: 1999}, 1)
    assert bwq_app.enqueued(receipt, ORDER)


async def test_a_bank_that_is_down_is_asked_again_after_10_and_20_seconds(
    bwq_app: TestApp, bank: FakeBank
) -> None:
    bank.failures = [ConnectionError("down"), ConnectionError("down")]
    await place_order(ORDER)

    assert (await bwq_app.advance(9)).failed == 1
    assert (await bwq_app.advance(2)).failed == 1
    assert (await bwq_app.advance(18)).done == 0
    assert (await bwq_app.advance(2)).done == 2


async def test_a_bank_that_stays_down_leaves_a_dead_letter(
    bwq_app: TestApp, bank: FakeBank
) -> None:
    bank.failures = [ConnectionError("down")] * 5
    await place_order(ORDER)

    await bwq_app.drain()

    (dead,) = bwq_app.dead
    assert (dead.payload, dead.reason, dead.attempts) == (ORDER, "failed", 5)
    assert dead.error == "ConnectionError: down"


async def test_a_declined_card_is_not_tried_again(bwq_app: TestApp, bank: FakeBank) -> None:
    bank.declined.add(7)
    await place_order(ORDER)

    report = await bwq_app.drain()

    assert report.dead == {"card-declined": 1}
    assert bwq_app.dead[0].attempts == 1


async def test_a_reminder_comes_a_day_later_and_in_the_daytime(
    bwq_app: TestApp, bank: FakeBank
) -> None:
    await cart_left("ada@example.com", cart=3)
    assert bwq_app.enqueued(remind, cart=3)[0].delay == timedelta(days=1).total_seconds()

    await bwq_app.advance(timedelta(days=1, hours=7.5))
    assert bank.letters == []

    await bwq_app.advance(timedelta(hours=1))
    assert bank.letters == ["ada@example.com: There is something left in cart 3."]

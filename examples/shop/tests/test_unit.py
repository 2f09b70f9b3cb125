"""A worker is a function: call it."""

from __future__ import annotations

import pytest
from fake_bank import FakeBank
from shop.bank import DeclinedError
from shop.jobs import Order, charge, receipt

from brokerwq.testing import job


async def test_the_card_is_charged(bank: FakeBank) -> None:
    await charge(job(state=bank), Order(number=7, cents=1999))

    assert bank.charged == {7: 1999}


async def test_a_charged_order_asks_for_its_receipt(bank: FakeBank) -> None:
    attempt = job(state=bank)

    await charge(attempt, Order(number=7, cents=1999))

    assert [child.queue for child in attempt.children] == ["letters"]


async def test_a_declined_card_is_told_by_an_exception(bank: FakeBank) -> None:
    bank.declined.add(7)

    with pytest.raises(DeclinedError):
        await charge(job(state=bank), Order(number=7, cents=1999))


def test_a_receipt_names_the_order_and_the_sum(bank: FakeBank) -> None:
    receipt(job(state=bank), Order(number=7, cents=1999))

    assert bank.letters == ["ada@example.com: Order 7: 19.99 EUR, thank you."]

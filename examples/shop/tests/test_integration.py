"""The app on a RabbitMQ and on an SQS, each test on a broker of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import pytest
from fake_bank import FakeBank
from shop.jobs import Order, app, charge, place_order

from brokerwq import App
from brokerwq.testing import BrokerUnderTest

Lifespan = Callable[[], AsyncGenerator[FakeBank]]


@pytest.fixture
async def shop(bwq_broker: BrokerUnderTest, bwq_lifespan: Lifespan) -> AsyncGenerator[App]:
    async with app.on(bwq_broker.url, lifespan=bwq_lifespan):
        yield app


async def test_an_order_goes_the_whole_way(shop: App, bank: FakeBank) -> None:
    await place_order(Order(number=7, cents=1999))

    report = await shop.drain(settle=1)

    assert (report.done, bank.charged, len(bank.letters)) == (2, {7: 1999}, 1)


async def test_what_fails_comes_back_and_what_is_declined_does_not(
    shop: App, bank: FakeBank
) -> None:
    bank.declined.add(8)
    await place_order(Order(number=8, cents=500))
    await place_order(Order(number=9, cents=700))

    report = await shop.drain(settle=1)

    assert (report.dead, bank.charged) == ({"card-declined": 1}, {9: 700})


async def test_a_hundred_orders_are_charged_once_each(shop: App, bank: FakeBank) -> None:
    await charge.enqueue_many(Order(number=number, cents=100) for number in range(100))

    report = await shop.drain(settle=1)

    assert report.done == 200
    assert sorted(bank.charged) == list(range(100))
    assert len(bank.letters) == 100

"""The shop's workers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta

from pydantic import BaseModel

from brokerwq import App, DeadLetter, Job, RetryPolicy, Snooze
from shop.bank import Bank, DeclinedError

app = App("amqp://shop@rabbitmq.shop.example/")

RETRY = RetryPolicy(
    max_attempts=5, base=10, jitter="none", on={DeclinedError: DeadLetter("card-declined")}
)


class Order(BaseModel):
    number: int
    cents: int
    email: str = "ada@example.com"


@app.lifespan
async def bank() -> AsyncGenerator[Bank]:
    """The real one; every test has another."""
    raise ConnectionRefusedError("https://bank.example")
    yield  # type: ignore[unreachable]


@app.worker("orders", retry=RETRY)
async def charge(job: Job, order: Order) -> None:
    """Charge the card; the receipt is sent when that is done, and only then."""
    bank: Bank = job.state
    await bank.charge(order.number, order.cents)
    job.enqueue(receipt, order)


@app.worker("letters")
def receipt(job: Job, order: Order) -> None:
    """A plain function: it runs in a thread."""
    bank: Bank = job.state
    bank.post(order.email, f"Order {order.number}: {order.cents / 100:.2f} EUR, thank you.")


@app.worker("reminders")
async def remind(job: Job, *, email: str, cart: int) -> None:
    """Remind of a cart a day later, but not in the night."""
    bank: Bank = job.state
    if not 8 <= app.clock.utcnow().hour < 22:
        raise Snooze(timedelta(hours=1))
    bank.post(email, f"There is something left in cart {cart}.")


async def place_order(order: Order) -> str:
    """What the web application calls."""
    return await charge.enqueue(order, id=f"order-{order.number}")


async def cart_left(email: str, cart: int) -> str:
    """The same, when somebody leaves."""
    return await remind.options(delay=timedelta(days=1)).enqueue(email=email, cart=cart)

"""The outbox: messages that are sent if and only if a transaction is committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from brokerwq.errors import DriverError
from brokerwq.events import Instrumentation
from brokerwq.idempotency.store import Outgoing, SendAll, TransactionalStore
from brokerwq.message import Message

SendOne: TypeAlias = Callable[[str, Message, float], Awaitable[None]]
"""Sends to a queue, with a delay in seconds."""

_AT_ONCE: Final = 100


def traced(outgoing: Outgoing, instrumentation: Instrumentation | None) -> Outgoing:
    """``outgoing`` with the trace that it is written in: whoever relays it is in none."""
    if instrumentation is None:
        return outgoing
    message = outgoing.message
    with instrumentation.sending(outgoing.queue, message.type, 1, message.id) as headers:
        carried = replace(message, headers={**headers, **message.headers})
    return replace(outgoing, message=carried)


async def relay(store: TransactionalStore, send: SendAll) -> int:
    """Send all that is in the outbox; how many were sent. What is refused stays."""
    total = 0
    while True:
        sent = await store.relay(send, _AT_ONCE)
        total += sent
        if sent < _AT_ONCE:
            return total


def each_by(send_one: SendOne) -> SendAll:
    """Sends one after the other; what the broker does not take counts as not sent."""

    async def send_all(outgoing: Sequence[Outgoing]) -> Sequence[bool]:
        accepted: list[bool] = []
        for each in outgoing:
            try:
                await send_one(each.queue, each.message, each.delay)
            except DriverError:
                accepted.append(False)
            else:
                accepted.append(True)
        return accepted

    return send_all

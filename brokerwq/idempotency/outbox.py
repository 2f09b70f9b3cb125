"""The outbox: messages that are sent if and only if a transaction is committed."""

from __future__ import annotations

from typing import Final

from brokerwq.idempotency.store import SendAll, TransactionalStore

_AT_ONCE: Final = 100


async def relay(store: TransactionalStore, send: SendAll) -> int:
    """Send all that is in the outbox; how many were sent. What is refused stays."""
    total = 0
    while True:
        sent = await store.relay(send, _AT_ONCE)
        total += sent
        if sent < _AT_ONCE:
            return total

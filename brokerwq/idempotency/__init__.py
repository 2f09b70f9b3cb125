"""Work that is done once: keys of finished work, in a store, around the handler.

A record keeps work from being repeated only as well as it is atomic with the effect. Beside
the effect (``once="marker"``) a crash in between repeats it; in the effect's own transaction
(``"transactional"``, ``"lease_tx"``) nothing does. ``docs/idempotency.md`` tells which to take.
"""

from brokerwq.idempotency.block import (
    KeyBusyError,
    PayloadMismatchError,
    Processed,
    processed,
)
from brokerwq.idempotency.guard import Guards
from brokerwq.idempotency.keys import NoKeyError
from brokerwq.idempotency.open import open_store
from brokerwq.idempotency.record import Record, State
from brokerwq.idempotency.store import (
    Store,
    TransactionAbortedError,
    TransactionalStore,
    TransactionConflictError,
)
from brokerwq.idempotency.stores.sqlite import SqliteStore

__all__ = [
    "Guards",
    "KeyBusyError",
    "NoKeyError",
    "PayloadMismatchError",
    "Processed",
    "Record",
    "SqliteStore",
    "State",
    "Store",
    "TransactionAbortedError",
    "TransactionConflictError",
    "TransactionalStore",
    "open_store",
    "processed",
]

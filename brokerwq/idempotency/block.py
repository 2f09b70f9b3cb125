"""``async with processed(…)``: a key around a unit of work that is not a job's."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.durations import Seconds, positive_seconds
from brokerwq.errors import BrokerwqError
from brokerwq.idempotency.borrowed import Borrowed, borrow
from brokerwq.idempotency.keys import digest_of, payload_digest
from brokerwq.idempotency.record import Answer, Busy, Claim, Claimed, Completed
from brokerwq.idempotency.results import result_text
from brokerwq.idempotency.store import TransactionAbortedError
from brokerwq.once import RETENTION


class KeyBusyError(BrokerwqError):
    """The work of a key is under way elsewhere, for ``remaining`` seconds more at most."""

    def __init__(self, message: str, *, remaining: float) -> None:
        super().__init__(message)
        self.remaining = remaining


class PayloadMismatchError(BrokerwqError):
    """The key is known with another payload."""


class Processed:
    """What ``processed`` found.

    Attributes:
        duplicate: The work was done before: leave the block.
        result: What was kept of it then, as JSON; None for nothing.
    """

    def __init__(self, connection: Borrowed, key: bytes, *, done: Completed | None) -> None:
        self.duplicate = done is not None
        self.result = None if done is None else done.result
        self._connection = connection
        self._key = key

    async def keep(self, result: object) -> None:
        """Keep a result with the key, as JSON of up to 4 KiB.

        Raises:
            ResultError: it cannot be kept.
        """
        await self._connection.keep_result(self._key, result_text(result))


@asynccontextmanager
async def processed(
    tx: Any,
    key: object,
    *,
    scope: str = "processed",
    payload: object = b"",
    retention: Seconds = RETENTION,
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncGenerator[Processed]:
    """Mark ``key`` in the transaction of ``tx``, and say whether it was marked before.

    Where a transaction is open on ``tx``, the mark becomes part of it, and its owner commits:
    nobody guards it then. Otherwise one is opened, guarded, and committed after the block; an
    exception rolls it back.

    Args:
        tx: A connection or session of a database that has the tables of a store.
        key: What makes two calls the same work; see ``brokerwq.idempotency.keys``.
        scope: What kind of work it is: equal keys of two scopes have nothing to do with each
            other.
        payload: ``bytes``, or a value that has JSON; another one for a known key is refused.
        retention: Seconds for which the key is remembered.
        clock: Time; for tests.

    Raises:
        NoKeyError: the key, or a part of it, is missing.
        KeyBusyError: somebody works on it.
        PayloadMismatchError: it is known with another payload.
        TransactionAbortedError: the block ended its transaction, or a statement in it failed.
        TransactionConflictError: the database gave it up for another one: repeat the block.
        StoreUnavailableError: whether it was committed cannot be told: repeat the block.
    """
    claim = Claim(
        key=digest_of(("processed", scope), key),
        worker=f"processed/{scope}",
        payload=payload_digest(_bytes(payload)),
        message_id="",
        generation=0,
        owner=os.urandom(16),
        lease=1.0,
        retention=positive_seconds(retention, "retention"),
    )
    connection = borrow(tx, clock)
    if connection.in_transaction:
        done = _done(await connection.mark(claim))
        yield Processed(connection, claim.key, done=done)
        return
    await connection.begin()
    try:
        done = _done(await connection.mark(claim))
        yield Processed(connection, claim.key, done=done)
        if done is None:
            await _check_sound(connection, claim)
        await connection.commit()
    except BaseException:
        await connection.rollback()
        raise


async def _check_sound(connection: Borrowed, claim: Claim) -> None:
    soundness = await connection.examine(claim)
    if soundness != "sound":
        msg = f"the transaction was {soundness} before the block had ended"
        raise TransactionAbortedError(msg)


def _bytes(payload: object) -> bytes:
    if isinstance(payload, bytes):
        return payload
    from pydantic_core import to_json  # noqa: PLC0415  -- only where it is needed

    return to_json(payload)


def _done(answer: Answer) -> Completed | None:
    match answer:
        case Claimed():
            return None
        case Completed():
            return answer
        case Busy(remaining=remaining):
            msg = f"somebody works on this key, for {remaining:.1f} seconds more at most"
            raise KeyBusyError(msg, remaining=remaining)
        case _:
            msg = "the key is known with another payload"
            raise PayloadMismatchError(msg)

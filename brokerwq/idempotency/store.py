"""What a store must be able to do. The tests have one suite for all stores, a check a rule.

1. A claim is one atomic step, on the store's own clock.
2. Every other change is a compare-and-set on the owner of a record in progress: False means
   that it is somebody else's. It looks at the owner, never at the lease: as long as nobody
   took over, a late completion is a good one.
3. A change that was made and is repeated by the same owner answers True.
4. An expired record is no record, whether it was pruned or not.
5. Native errors become ``StoreUnavailableError`` (trying again may help) or ``StoreError``.
6. Calls may come from any event loop and any thread, and several at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from brokerwq.errors import BrokerwqError
from brokerwq.idempotency.record import Answer, Claim, Record, State
from brokerwq.message import Message


class TransactionAbortedError(BrokerwqError):
    """A handler returned, but its transaction holds nothing.

    A statement in it failed and the handler went on, or the handler rolled it back, or COMMIT
    was refused: acking would lose work that was never done.
    """


class TransactionConflictError(TransactionAbortedError):
    """The database gave the transaction up for another one; repeating the whole may help."""


Soundness: TypeAlias = Literal["sound", "aborted", "escaped"]
"""What has become of a transaction at its end: it can be committed; a statement failed in it,
or the handler rolled it back; the handler committed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message in the outbox.

    Attributes:
        queue: Where it goes.
        message: The message.
        delay: Seconds from now until it may be claimed.
    """

    queue: str
    message: Message
    delay: float


SendAll: TypeAlias = Callable[[Sequence[Outgoing]], Awaitable[Sequence[bool]]]
"""Sends; one answer each: whether the broker has it."""


class Store(Protocol):
    """Keeps records."""

    @property
    def name(self) -> str:
        """What it is and where, for people, without a password."""
        ...

    async def check(self) -> None:
        """Make sure that it answers and has our schema.

        Raises:
            StoreUnavailableError: it does not answer.
            StoreError: its schema is missing or of another version, or it is not fit.
        """
        ...

    async def claim(self, claim: Claim, /) -> Answer:
        """Rule 1."""
        ...

    async def extend(self, key: bytes, owner: bytes, lease: float, /) -> bool:
        """The lease ends ``lease`` seconds from now."""
        ...

    async def complete(
        self, key: bytes, owner: bytes, retention: float, result: str | None, /
    ) -> bool:
        """The work is done; the record is kept ``retention`` seconds from now."""
        ...

    async def fail(self, key: bytes, owner: bytes, retention: float, reason: str, /) -> bool:
        """The message is given up on."""
        ...

    async def release(self, key: bytes, owner: bytes, /) -> bool:
        """Let others claim it at once. The record stays."""
        ...

    async def get(self, key: bytes, /) -> Record | None:
        """The record, expired or not."""
        ...

    async def list(
        self, limit: int, /, *, state: State | None, worker: str | None
    ) -> Sequence[Record]:
        """Up to ``limit`` records, the newest first."""
        ...

    async def forget(self, key: bytes, /) -> bool:
        """Remove a record whatever its state; False if there is none."""
        ...

    async def prune(self, limit: int, /) -> int:
        """Remove up to ``limit`` expired records; how many there were."""
        ...

    def schema(self) -> Sequence[str]:
        """The statements of ``init``; empty where there are none."""
        ...

    async def init(self) -> None:
        """Make what the records live in, if it is missing."""
        ...

    async def aclose(self) -> None:
        """Free what the calling event loop has opened."""
        ...


class Transaction(Protocol):
    """An open transaction of the user's database, with a record in it."""

    @property
    def conn(self) -> Any:
        """The driver's own connection."""
        ...

    @property
    def session(self) -> Any:
        """SQLAlchemy's session; raises ``RuntimeError`` where there is none."""
        ...

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """A block whose failure takes back only itself."""
        ...

    async def put_out(self, outgoing: Sequence[Outgoing], /) -> None:
        """Write into the outbox."""
        ...

    async def keep_result(self, result: str, /) -> None:
        """Write the result into the record."""
        ...

    async def examine(self) -> Soundness:
        """Whether the record is still part of it: the guard, right before ``commit``.

        Raises:
            TransactionAbortedError: its connection is gone, and it with that.
        """
        ...

    async def commit(self) -> None:
        """Commit.

        Raises:
            StoreUnavailableError: perhaps it was committed, perhaps not.
            TransactionConflictError: it was not, and repeating the whole may help.
            TransactionAbortedError: it was not.
        """
        ...

    async def rollback(self) -> None:
        """Roll back and free the connection; harmless once it has ended, and never raises."""
        ...


@runtime_checkable
class TransactionalStore(Store, Protocol):
    """Keeps records in the database in which the work is done."""

    @property
    def takes_threads(self) -> bool:
        """Whether ``conn`` may be used in a thread by a plain function."""
        ...

    def is_conflict(self, error: BaseException, /) -> bool:
        """Whether the database gave a transaction up for another one, with ``error``.

        A deadlock or a serialization failure: the whole must be repeated, from its first
        statement on. The driver's own error, or whatever was raised from it.
        """
        ...

    async def begin_marked(self, claim: Claim, /) -> Transaction | Answer:
        """A transaction whose first statement has marked the key as completed.

        Raises:
            StoreUnavailableError: it cannot be told.
        """
        ...

    async def begin_completing(
        self, key: bytes, owner: bytes, retention: float, /
    ) -> Transaction | None:
        """A transaction whose first statement has completed the record; None if it is not ours.

        Raises:
            StoreUnavailableError: it cannot be told.
        """
        ...

    async def relay(self, send: SendAll, limit: int, /) -> int:
        """Send up to ``limit`` messages of the outbox and remove them; how many were sent.

        Several may relay at once; none takes what another one is sending. A message may be
        sent twice, under one id.
        """
        ...

"""The three ways in which an admitted job ends."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from brokerwq._runtime.guard import Skip
from brokerwq.clock import Clock, move_on_after
from brokerwq.errors import BrokerwqError, LeaseLostError, StoreError, StoreUnavailableError
from brokerwq.events import Instrumentation, MarkerTrouble
from brokerwq.idempotency.looks import Looks
from brokerwq.idempotency.outbox import traced
from brokerwq.idempotency.record import ANSWERS, Claim, State
from brokerwq.idempotency.results import ResultError, result_text
from brokerwq.idempotency.store import (
    Outgoing,
    Store,
    Transaction,
    TransactionAbortedError,
    TransactionalStore,
)
from brokerwq.job import Child, Job
from brokerwq.message import child_message_id
from brokerwq.once import Once
from brokerwq.outcomes import DeadLetter, Discard, Outcome

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
_LEAST_PATIENCE: Final = 1.0
_MOST_REPEATS: Final = 3
_FIRST_REPEAT_PAUSE: Final = 0.01
_SHARE: Final = 0.8
"""Of what is left of the lease: an ack without a record must still be in time."""


class Holder(Protocol):
    """What has the app's store and clock; a test may change both."""

    @property
    def store(self) -> Store:
        """The store, at this moment."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock, at this moment."""
        ...


@dataclass(frozen=True, slots=True)
class Desk:
    """What the admissions of one worker share."""

    holder: Holder
    once: Once
    instrumentation: Instrumentation | None
    relay: Callable[[], Awaitable[int]]
    looks: Looks

    @property
    def store(self) -> Store:
        """The store, at this moment."""
        return self.holder.store

    @property
    def clock(self) -> Clock:
        """The clock, at this moment."""
        return self.holder.clock

    @property
    def retention(self) -> float:
        """Seconds."""
        return cast("float", self.once.retention)

    def result(self, job: Job, answer: object) -> str | None:
        """The result to keep; what cannot be kept is reported, and the work is done."""
        if not self.once.keep_result:
            return None
        try:
            return result_text(answer)
        except ResultError as exc:
            self.report(job, "no-result", exc)
            return None

    def report(self, job: Job, problem: str, error: BaseException) -> None:
        """Say that a finished job has no whole record."""
        if self.instrumentation is None:
            return
        self.instrumentation.emit(
            MarkerTrouble(
                queue=job.queue,
                type=job.type,
                id=job.id,
                problem=problem,
                error=f"{type(error).__name__}: {error}"[:200],
            )
        )

    async def reconsidered(self, claim: Claim) -> Skip:
        """What becomes of the message of an owner that was too late."""
        record = await self.store.get(claim.key)
        if record is not None and record.state is State.COMPLETED and not record.is_expired:
            return Skip(kind="duplicate")
        remaining = 0.0 if record is None else record.lease_left
        wait = self.looks.pause(claim.key, remaining)
        return Skip(kind="later", delay=wait, reason="busy")


class _Leased:
    """An admission whose record is held by a lease."""

    needs_extending = True

    def __init__(self, desk: Desk, job: Job, claim: Claim) -> None:
        self._desk = desk
        self._job = job
        self._claim = claim

    async def extend(self, seconds: float, /) -> bool:
        """See ``Admission.extend``."""
        return await self._desk.store.extend(self._claim.key, self._claim.owner, seconds)

    async def again(self, _error: BaseException, /) -> bool:
        """See ``Admission.again``: nothing that was done beside the record is taken back."""
        return False

    async def abandon(self, outcome: Outcome, /, *, is_last: bool) -> Skip | None:
        """See ``Admission.abandon``."""
        desk, key, owner = self._desk, self._claim.key, self._claim.owner
        # A store that cannot be told changes nothing: the lease ends by itself, and a redrive
        # is a newer claim.
        with suppress(StoreError):
            if isinstance(outcome, Discard):
                await desk.store.complete(key, owner, desk.retention, None)
            elif is_last:
                reason = outcome.reason if isinstance(outcome, DeadLetter) else "failed"
                await desk.store.fail(key, owner, desk.retention, reason)
            else:
                await desk.store.release(key, owner)
        return None


class MarkerAdmission(_Leased):
    """``once="marker"``: the record is completed when the work is done."""

    takes_children = False

    async def finish(self, answer: object, _children: Sequence[Child], /) -> Skip | None:
        """See ``Admission.finish``."""
        result = self._desk.result(self._job, answer)
        try:
            if await self._complete(result):
                return None
            return await self._desk.reconsidered(self._claim)
        except StoreError as exc:
            self._desk.report(self._job, "unmarked", exc)
            if self._desk.once.on_store_lost == "leave":
                raise
            return None

    async def _complete(self, result: str | None) -> bool:
        """Complete the record; as long as the lease lasts nobody else repeats the work."""
        clock = self._desk.clock
        deadline = clock.now() + max(self._job.lease.remaining * _SHARE, _LEAST_PATIENCE)
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._complete_before(deadline, result)
            except StoreUnavailableError:
                if clock.now() + pause >= deadline:
                    raise
            await clock.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _complete_before(self, deadline: float, result: str | None) -> bool:
        desk, claim = self._desk, self._claim
        with move_on_after(desk.clock, max(deadline - desk.clock.now(), _FIRST_PAUSE)):
            return await desk.store.complete(claim.key, claim.owner, desk.retention, result)
        msg = "the store did not answer while the lease lasted"
        raise StoreUnavailableError(msg)


class _InTransaction:
    """What the transaction of a job needs, for ``Tx`` and for its end."""

    takes_children = True

    def __init__(
        self, desk: Desk, job: Job, claim: Claim, transaction: Transaction | None = None
    ) -> None:
        self._desk = desk
        self._job = job
        self._claim = claim
        self._transaction: Transaction | None = transaction
        self._calls = 0
        self._has_outgoing = False
        self._is_aborted = False
        self._repeats = 0

    @property
    def conn(self) -> Any:
        """See ``Tx.conn``."""
        return self._open.conn

    @property
    def session(self) -> Any:
        """See ``Tx.session``."""
        return self._open.session

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """See ``Tx.savepoint``."""
        return self._savepoint()

    @asynccontextmanager
    async def _savepoint(self) -> AsyncGenerator[None]:
        async with self._open.savepoint():
            yield

    async def enqueue(self, worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> str:
        """See ``Tx.enqueue``."""
        child_id = child_message_id(f"tx:{self._claim.key.hex()}", self._calls)
        self._calls += 1
        child: Child = worker.child(child_id, self._job.id, args, kwargs)
        await self._put_out(await self.begin_open(), [child])
        return child_id

    def abort(self) -> None:
        """See ``Tx.abort``."""
        self._is_aborted = True

    async def begin_open(self) -> Transaction:
        """The transaction, opened if it is not yet."""
        return self._open

    async def _put_out(self, transaction: Transaction, children: Sequence[Child]) -> None:
        self._has_outgoing = True
        await transaction.put_out(
            [
                traced(
                    Outgoing(queue=child.queue, message=child.message, delay=child.delay),
                    self._desk.instrumentation,
                )
                for child in children
            ]
        )

    @property
    def _open(self) -> Transaction:
        if self._transaction is None:
            msg = "the transaction is not open: it was not begun, or has ended"
            raise RuntimeError(msg)
        return self._transaction

    async def _commit(self, answer: object, children: Sequence[Child]) -> None:
        transaction = self._open
        try:
            if self._is_aborted:
                msg = "the handler called tx.abort()"
                raise TransactionAbortedError(msg)
            result = self._desk.result(self._job, answer)
            soundness = await transaction.examine()
            if soundness == "aborted":
                msg = "a statement in the transaction failed, or the handler rolled it back"
                raise TransactionAbortedError(msg)
            if soundness == "escaped":
                raise DeadLetter("transaction-escaped")
            if children:
                await self._put_out(transaction, children)
            if result is not None:
                await transaction.keep_result(result)
            await transaction.commit()
        finally:
            self._transaction = None
            await transaction.rollback()
        if self._has_outgoing:
            # What cannot be sent now stays in the outbox, for any runner.
            with suppress(BrokerwqError):
                await self._desk.relay()

    def _may_repeat(self, error: BaseException) -> bool:
        store = cast("TransactionalStore", self._desk.store)
        return self._repeats < _MOST_REPEATS and store.is_conflict(error)

    async def again(self, error: BaseException, /) -> bool:
        """See ``Admission.again``: the database gave this transaction up for another one."""
        if not self._may_repeat(error):
            return False
        await self._roll_back()
        self._job.take_children()
        self._calls, self._has_outgoing, self._is_aborted = 0, False, False
        # Those who got into each other's way must not come back in step.
        pause = random.uniform(0.5, 1.5) * _FIRST_REPEAT_PAUSE * 2**self._repeats  # noqa: S311
        self._repeats += 1
        await self._desk.clock.sleep(pause)
        return await self._open_again()

    async def _open_again(self) -> bool:
        """Whether the handler has a transaction again, or can open one."""
        return True

    async def _roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await transaction.rollback()


class TxAdmission(_InTransaction):
    """``once="transactional"``: the record is completed in the transaction of the work."""

    needs_extending = False

    async def begin(self) -> Any:
        """See ``Tx.begin``."""
        return self.conn

    async def extend(self, _seconds: float, /) -> bool:
        """See ``Admission.extend``: the transaction is the lease."""
        return True

    async def finish(self, answer: object, children: Sequence[Child], /) -> Skip | None:
        """See ``Admission.finish``."""
        await self._commit(answer, children)
        return None

    async def _open_again(self) -> bool:
        store = cast("TransactionalStore", self._desk.store)
        begun = await store.begin_marked(self._claim)
        if isinstance(begun, ANSWERS):
            return False  # a copy got in between; the redelivery hears of it
        self._transaction = begun
        return True

    async def abandon(self, _outcome: Outcome, /, *, is_last: bool) -> Skip | None:
        """See ``Admission.abandon``."""
        await self._roll_back()
        return None


class LeaseTxAdmission(_InTransaction, _Leased):
    """``once="lease_tx"``: the transaction of the work begins by completing the record."""

    def __init__(self, desk: Desk, job: Job, claim: Claim) -> None:
        _InTransaction.__init__(self, desk, job, claim)
        self._fenced = False

    async def extend(self, seconds: float, /) -> bool:
        """See ``Admission.extend``: an open transaction keeps others out, and our heartbeat too."""
        return self._transaction is not None or await _Leased.extend(self, seconds)

    async def begin(self) -> Any:
        """See ``Tx.begin``."""
        return (await self.begin_open()).conn

    async def begin_open(self) -> Transaction:
        """The transaction, opened if it is not yet."""
        if self._transaction is None:
            store = cast("TransactionalStore", self._desk.store)
            begun = await store.begin_completing(
                self._claim.key, self._claim.owner, self._desk.retention
            )
            if begun is None:
                self._fenced = True
                msg = "another owner took this work over; what was done here must not count"
                raise LeaseLostError(msg)
            self._transaction = begun
        return self._transaction

    async def finish(self, answer: object, children: Sequence[Child], /) -> Skip | None:
        """See ``Admission.finish``."""
        try:
            await self.begin_open()
        except LeaseLostError:
            return await self._desk.reconsidered(self._claim)
        await self._commit(answer, children)
        return None

    async def abandon(self, outcome: Outcome, /, *, is_last: bool) -> Skip | None:
        """See ``Admission.abandon``."""
        await self._roll_back()
        if self._fenced:
            return await self._desk.reconsidered(self._claim)
        return await _Leased.abandon(self, outcome, is_last=is_last)

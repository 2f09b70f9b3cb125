"""Guards: one worker's keys in the app's store, and what each answer of the store means."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from brokerwq._runtime.guard import Admission, Skip
from brokerwq.clock import Clock
from brokerwq.errors import ConfigError
from brokerwq.events import Instrumentation
from brokerwq.idempotency import outbox
from brokerwq.idempotency.admissions import Desk, LeaseTxAdmission, MarkerAdmission, TxAdmission
from brokerwq.idempotency.keys import NoKeyError, digest_of, payload_digest
from brokerwq.idempotency.looks import LONGEST_WAIT, SHORTEST_WAIT, Looks
from brokerwq.idempotency.open import open_store
from brokerwq.idempotency.record import (
    ANSWERS,
    Answer,
    Busy,
    Claim,
    Claimed,
    Completed,
    Failed,
    Mismatch,
    State,
)
from brokerwq.idempotency.store import Store, Transaction, TransactionalStore
from brokerwq.job import Job
from brokerwq.message import Message
from brokerwq.once import Once
from brokerwq.tx import Tx


class Guards:
    """Makes the guards of one app.

    Args:
        store: The app's store, or its URL.
        app: The app's name.
        clock: Time.
        instrumentation: Told of trouble with records.
        send_one: Sends a message to a queue, after so many seconds.
    """

    def __init__(
        self,
        store: Store | str,
        app: str | None,
        clock: Clock,
        instrumentation: Instrumentation | None,
        send_one: outbox.SendOne,
    ) -> None:
        self.store: Store = open_store(store, clock=clock) if isinstance(store, str) else store
        self._app = app
        self.clock: Clock = clock
        self._instrumentation = instrumentation
        self._send_all = outbox.each_by(send_one)

    def use(self, clock: Clock, store: Store | str | None) -> Callable[[], None]:
        """Take another clock and store; calling what is returned takes the former ones back.

        Args:
            clock: Time.
            store: None keeps the store.

        Raises:
            ConfigError: the store has no transactions, and the former one has.
        """
        former = self.store, self.clock
        if store is not None:
            given = open_store(store, clock=clock) if isinstance(store, str) else store
            if _has_tx(self.store) and not _has_tx(given):
                msg = f"{given.name} cannot stand in for {self.store.name}: it has no transactions"
                raise ConfigError(msg)
            self.store = given
        self.clock = clock

        def restore() -> None:
            self.store, self.clock = former

        return restore

    def __call__(
        self,
        worker: str,
        once: Once,
        key_version: int,
        read_key: Callable[[Any], object] | None,
        /,
        *,
        is_async: bool,
    ) -> StoreGuard:
        """The guard of ``worker``.

        Raises:
            ConfigError: the app has no name, or the store no transactions.
        """
        if self._app is None:
            msg = (
                "once needs App(name=…): it keeps this application's keys apart from others' "
                "in the same store, now and after every move"
            )
            raise ConfigError(msg)
        if once.has_tx:
            store = self.store
            if not isinstance(store, TransactionalStore):
                msg = (
                    f'once="{once.strategy}" needs a store in whose transactions the work is '
                    f'done: SQLite or PostgreSQL. {store.name} has none; take once="marker"'
                )
                raise ConfigError(msg)
            if not is_async and not store.takes_threads:
                msg = f"write async def: the connections of {store.name} belong to its loop"
                raise ConfigError(msg)
        desk = Desk(self, once, self._instrumentation, self.relay, Looks())
        scope = (self._app, worker)
        return StoreGuard(desk, scope, key_version, read_key)

    async def relay(self) -> int:
        """Send what is in the outbox."""
        if isinstance(self.store, TransactionalStore):
            return await outbox.relay(self.store, self._send_all)
        return 0


@dataclass(frozen=True, slots=True)
class StoreGuard:
    """See ``brokerwq._runtime.guard.Guard``.

    Attributes:
        desk: What its admissions share.
        scope: The app's name and the worker's.
        key_version: The worker's.
        read_key: The key's value in a payload; None where the message says it.
    """

    desk: Desk
    scope: tuple[str, str]
    key_version: int
    read_key: Callable[[Any], object] | None

    @property
    def longest_wait(self) -> float:
        """See ``Guard.longest_wait``."""
        return LONGEST_WAIT + 1.0

    async def check(self) -> None:
        """See ``Guard.check``."""
        await self.desk.store.check()

    async def aclose(self) -> None:
        """See ``Guard.aclose``."""
        await self.desk.store.aclose()

    def digest(self, value: object, *, version: int | None = None) -> bytes:
        """The key of ``value``.

        Raises:
            NoKeyError: it has none.
        """
        return digest_of((*self.scope, version or self.key_version), value)

    async def admit(self, job: Job, payload: object, lease: float, /) -> Admission | Skip:
        """See ``Guard.admit``."""
        once, message = self.desk.once, job.message
        stale = self._stale(message)
        if stale is not None:
            return stale
        try:
            value = self._value(message, payload)
            claim = Claim(
                key=self.digest(value),
                worker="/".join(self.scope),
                payload=payload_digest(message.body),
                message_id=message.id,
                generation=message.redrives,
                owner=os.urandom(16),
                lease=lease,
                retention=cast("float", once.retention),
                takes_over=once.on_owner_lost == "rerun",
            )
        except NoKeyError as exc:
            return Skip(kind="dead", reason="no-key", text=str(exc))
        job.idempotency_key = claim.key.hex()
        earlier = await self._earlier_version(claim, value)
        if earlier is not None:
            return await self._skip(earlier, claim.key)
        return await self._admit(job, claim)

    async def _admit(self, job: Job, claim: Claim) -> Admission | Skip:
        once, store = self.desk.once, self.desk.store
        if once.strategy == "transactional":
            answer = await cast("TransactionalStore", store).begin_marked(claim)
            if not isinstance(answer, ANSWERS):
                return self._with_tx(job, claim, answer)
        else:
            answer = await self._claim(claim)
        if not isinstance(answer, Claimed):
            return await self._skip(answer, claim.key)
        self.desk.looks.forget(claim.key)
        job.fence, job.takeover = answer.fence, answer.takeover
        if once.strategy == "marker":
            return MarkerAdmission(self.desk, job, claim)
        admission = LeaseTxAdmission(self.desk, job, claim)
        job.tx = Tx(admission)
        return admission

    def _with_tx(self, job: Job, claim: Claim, transaction: Transaction) -> Admission:
        admission = TxAdmission(self.desk, job, claim, transaction)
        job.tx = Tx(admission)
        return admission

    async def _claim(self, claim: Claim) -> Answer:
        store = self.desk.store
        answer = await store.claim(claim)
        if isinstance(answer, Mismatch) and self.desk.once.on_mismatch == "ack":
            record = await store.get(claim.key)
            if record is not None:
                return await store.claim(replace(claim, payload=record.payload))
        return answer

    def _stale(self, message: Message) -> Skip | None:
        once = self.desk.once
        if once.stale == "run" or message.created_at is None:
            return None
        age = (self.desk.clock.utcnow() - message.created_at).total_seconds()
        if age <= cast("float", once.retention):
            return None
        text = (
            f"sent {age:.0f} seconds ago; keys are kept {once.retention:.0f} seconds, so that "
            "whether this work was done can no longer be told"
        )
        return Skip(kind="dead", reason="older-than-dedup-window", text=text)

    def _value(self, message: Message, payload: object) -> object:
        if self.read_key is not None:
            try:
                return self.read_key(payload)
            except Exception as exc:
                msg = f"{exc}"
                raise NoKeyError(msg) from exc
        if message.key:
            return ("key", message.key)
        if message.id:
            return ("id", message.id)
        msg = "the message has neither a key nor an id: give the worker key=…"
        raise NoKeyError(msg)

    async def _earlier_version(self, claim: Claim, value: object) -> Answer | None:
        """What the version before this one says of this very message, if it was on its way."""
        if self.key_version == 1:
            return None
        old = self.digest(value, version=self.key_version - 1)
        record = await self.desk.store.get(old)
        if record is None or record.is_expired or record.message_id != claim.message_id:
            return None
        if record.state is State.COMPLETED:
            return Completed(result=record.result)
        if record.state is State.IN_PROGRESS and record.owner and record.lease_left > 0:
            return Busy(remaining=record.lease_left)
        return None

    async def _skip(self, answer: Answer, key: bytes) -> Skip:
        if isinstance(answer, Busy):
            shortest = 0.0 if self.desk.once.strategy == "transactional" else SHORTEST_WAIT
            wait = self.desk.looks.pause(key, answer.remaining, shortest=shortest)
            return Skip(kind="later", delay=wait, reason="busy")
        self.desk.looks.forget(key)
        match answer:
            case Completed():
                if self.desk.once.has_tx:
                    await self.desk.relay()
                return Skip(kind="duplicate")
            case Failed(reason=reason):
                return Skip(kind="dead", reason=reason)
            case Mismatch(payload=payload):
                if self.desk.once.on_mismatch == "ack":
                    return Skip(kind="duplicate")
                text = f"the key is known with another payload, whose digest is {payload.hex()}"
                return Skip(kind="dead", reason="payload-mismatch", text=text)
            case _:
                text = "its owner vanished in the middle of the work; redrive it to run it again"
                return Skip(kind="dead", reason="owner-lost", text=text)


def _has_tx(store: Store) -> bool:
    return isinstance(store, TransactionalStore)

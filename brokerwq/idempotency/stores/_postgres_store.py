"""Records in PostgreSQL, whatever the client library; see ``_postgres`` and ``_postgres_link``."""

from __future__ import annotations

import abc
import asyncio
import os
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlsplit
from uuid import UUID
from weakref import WeakKeyDictionary

from brokerwq.durations import Seconds, positive_seconds
from brokerwq.errors import StoreError, StoreUnavailableError
from brokerwq.idempotency.record import Answer, Busy, Claim, Claimed, Record, State, refusal
from brokerwq.idempotency.store import SendAll, Transaction
from brokerwq.idempotency.stores import _postgres as pg
from brokerwq.idempotency.stores._lasting import no_outage
from brokerwq.idempotency.stores._postgres_errors import Translated, kind_of
from brokerwq.idempotency.stores._postgres_link import Link, Pool, Rows
from brokerwq.idempotency.stores._postgres_transaction import PostgresTransaction

T = TypeVar("T")

BUSY_SECONDS: Final = 0.5
CONNECT_SECONDS: Final = 5
"""A whole number, which is what libpq takes."""
POOL_SECONDS: Final = 60.0
"""For so long a job waits for a connection of the pool."""

_TRIES: Final = 20


class PostgresStore(abc.ABC):
    """What the stores of all client libraries have in common.

    Each event loop has connections of its own: the runner's for the jobs, and the one that
    sends heartbeats, which must get through while a job blocks.

    Attributes:
        lost: The library's errors that carry no SQLSTATE and mean a lost connection.
    """

    takes_threads: Final = False
    lost: ClassVar[tuple[type[BaseException], ...]] = ()

    def __init__(self, url: str, idle_timeout: Seconds, command_timeout: Seconds) -> None:
        self._url = url
        self._idle = positive_seconds(idle_timeout, "idle_timeout")
        self._timeout = positive_seconds(command_timeout, "command_timeout")
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()
        self._opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self._pid = os.getpid()
        self._is_first = True

    @abc.abstractmethod
    async def _open_pool(self, *, is_first: bool) -> Pool:
        """Connections for the running loop.

        Args:
            is_first: No other loop has asked before: a pool of the user's own belongs to it.
        """

    def __repr__(self) -> str:
        """For people, without the password."""
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        """See ``Store.name``."""
        parts = urlsplit(self._url)
        return f"postgresql://{parts.hostname or ''}:{parts.port or 5432}{parts.path}"

    async def check(self) -> None:
        """See ``Store.check``."""
        with no_outage():
            try:
                rows = await self.fetch(pg.SCHEMA_VERSION)
            except StoreError as exc:
                if kind_of(exc, self.lost) == "tables":
                    pg.check_version(None)
                raise
        pg.check_version(rows[0][0] if rows else None)

    async def claim(self, claim: Claim, /) -> Answer:
        """See ``Store.claim``."""
        for _ in range(_TRIES):
            try:
                rows = await self._claim_rows(pg.claim_values(claim, State.IN_PROGRESS))
            except StoreError as exc:
                kind = kind_of(exc, self.lost)
                if kind == "locked":
                    return Busy(remaining=BUSY_SECONDS)
                if kind == "conflict":
                    continue
                raise
            if rows:
                return Claimed(fence=rows[0][0], attempt=rows[0][1], takeover=rows[0][2])
            answer = await self._refusal(claim)
            if answer is not None:
                return answer
        return Busy(remaining=BUSY_SECONDS)  # it changes hands faster than we can look

    async def _claim_rows(self, values: Sequence[Any]) -> Rows:
        pool = await self._pool()
        if not pool.is_borrowed:
            return await self.fetch(pg.CLAIM, *values)
        # Its sessions would wait without a bound for a transaction that has the key.
        link = await self._take()
        try:
            with self.translated():
                rows = await self.within(self._first(link, pg.CLAIM, values))
                await link.commit()
        except BaseException:
            await _drop(link)
            raise
        await link.give_back(is_sound=True)
        return rows

    async def _refusal(self, claim: Claim) -> Answer | None:
        record = await self.get(claim.key)
        return None if record is None else refusal(record, claim)

    async def extend(self, key: bytes, owner: bytes, lease: float, /) -> bool:
        """See ``Store.extend``."""
        return bool(await self.fetch(pg.EXTEND, UUID(bytes=key), owner, lease))

    async def complete(
        self, key: bytes, owner: bytes, retention: float, result: str | None, /
    ) -> bool:
        """See ``Store.complete``."""
        return await self._finish(key, owner, State.COMPLETED, retention, result)

    async def fail(self, key: bytes, owner: bytes, retention: float, reason: str, /) -> bool:
        """See ``Store.fail``."""
        return await self._finish(key, owner, State.FAILED, retention, reason)

    async def _finish(
        self, key: bytes, owner: bytes, state: State, retention: float, result: str | None
    ) -> bool:
        values = (UUID(bytes=key), owner, int(state), retention, result)
        return bool(await self.fetch(pg.FINISH, *values))

    async def release(self, key: bytes, owner: bytes, /) -> bool:
        """See ``Store.release``."""
        return bool(await self.fetch(pg.RELEASE, UUID(bytes=key), owner))

    async def get(self, key: bytes, /) -> Record | None:
        """See ``Store.get``."""
        rows = await self.fetch(pg.FIND, UUID(bytes=key))
        return pg.record_of(rows[0]) if rows else None

    async def list(
        self, limit: int, /, *, state: State | None = None, worker: str | None = None
    ) -> Sequence[Record]:
        """See ``Store.list``."""
        wanted = None if state is None else int(state)
        return [pg.record_of(row) for row in await self.fetch(pg.LIST, limit, wanted, worker)]

    async def forget(self, key: bytes, /) -> bool:
        """See ``Store.forget``."""
        return bool(await self.fetch(pg.FORGET, UUID(bytes=key)))

    async def prune(self, limit: int, /) -> int:
        """See ``Store.prune``."""
        return len(await self.fetch(pg.PRUNE, limit))

    def schema(self) -> Sequence[str]:
        """See ``Store.schema``."""
        return pg.SCHEMA

    async def init(self) -> None:
        """See ``Store.init``."""
        link = await self._take()
        try:
            with self.translated():
                await link.begin("")
                for statement in (pg.SCHEMA_LOCK, *pg.SCHEMA):
                    await link.fetch(statement, ())
                while (found := (await link.fetch(pg.SCHEMA_VERSION, ()))[0][0]) in pg.MIGRATIONS:
                    for statement in pg.MIGRATIONS[found]:
                        await link.fetch(statement, ())
                await link.commit()
        except BaseException:
            await _drop(link)
            raise
        else:
            await link.give_back(is_sound=True)

    async def aclose(self) -> None:
        """See ``Store.aclose``."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    # -- transactions ---------------------------------------------------------------------

    def is_conflict(self, error: BaseException, /) -> bool:
        """See ``TransactionalStore.is_conflict``."""
        return kind_of(error, self.lost) == "conflict"

    async def begin_marked(self, claim: Claim, /) -> Transaction | Answer:
        """See ``TransactionalStore.begin_marked``."""
        values = pg.claim_values(claim, State.COMPLETED)
        for _ in range(_TRIES):
            begun = await self._begin(claim.key, claim.owner, pg.CLAIM, values)
            if begun is not None:
                return begun
            answer = await self._refusal(claim)
            if answer is not None:
                return answer
        return Busy(remaining=BUSY_SECONDS)

    async def begin_completing(
        self, key: bytes, owner: bytes, retention: float, /
    ) -> Transaction | None:
        """See ``TransactionalStore.begin_completing``."""
        begun = await self._begin(
            key, owner, pg.COMPLETE_FIRST, (UUID(bytes=key), owner, retention)
        )
        if isinstance(begun, Busy):
            msg = "the record is locked by somebody else's transaction"
            raise StoreUnavailableError(msg)
        return begun

    async def _begin(
        self, key: bytes, owner: bytes, first: str, values: Sequence[Any]
    ) -> PostgresTransaction | Busy | None:
        """A transaction whose ``first`` statement answered a row; its id is the last but one."""
        for _ in range(_TRIES):
            link = await self._take()
            transaction = PostgresTransaction(self, link, key, owner)
            try:
                with self.translated():
                    rows = await self.within(self._first(link, first, values))
            except BaseException as exc:
                await transaction.rollback()
                kind = kind_of(exc, self.lost)
                if kind == "locked":
                    return Busy(remaining=BUSY_SECONDS)
                if kind == "conflict":
                    continue
                raise
            if not rows:
                await transaction.rollback()
                return None
            transaction.xid = rows[0][-2]
            return transaction
        msg = f"store {self.name}: a first statement was refused {_TRIES} times for others' sake"
        raise StoreUnavailableError(msg)

    async def _first(self, link: Link, statement: str, values: Sequence[Any]) -> Rows:
        await link.begin(self._settings_of(link))
        return await link.fetch(statement, values)

    def _settings_of(self, link: Link) -> str:
        """Statements that make a transaction on ``link`` safe; none where its session is ours."""
        return pg.local_settings(self._idle) if link.is_borrowed else ""

    async def relay(self, send: SendAll, limit: int, /) -> int:
        """See ``TransactionalStore.relay``."""
        link = await self._take()
        try:
            count = await self._relay(link, send, limit)
        except BaseException:
            await _drop(link)
            raise
        await link.give_back(is_sound=True)
        return count

    async def _relay(self, link: Link, send: SendAll, limit: int) -> int:
        with self.translated():
            await link.begin(self._settings_of(link))
            rows = await link.fetch(pg.TAKE_OUT, (limit,))
        accepted = await send([pg.outgoing_of(row) for row in rows]) if rows else ()
        sent = [row[0] for row, ok in zip(rows, accepted, strict=True) if ok]
        with self.translated():
            if sent:
                await link.fetch(pg.SENT_OUT, (sent,))
            await link.commit()
        return len(sent)

    # -- connections ----------------------------------------------------------------------

    async def fetch(self, statement: str, *values: Any) -> Rows:
        """The rows of one statement, outside of any transaction.

        Raises:
            StoreError: it failed; the driver's own error is its cause.
        """
        pool = await self._pool()
        with self.translated():
            return await self.within(pool.fetch(statement, values))

    async def within(self, call: Awaitable[T]) -> T:
        """``call``, for no longer than one statement of ours may take."""
        async with asyncio.timeout(self._timeout):
            return await call

    def translated(self) -> Translated:
        """A block whose native errors become ours."""
        return Translated(self.name, self.lost)

    async def _take(self) -> Link:
        pool = await self._pool()
        with self.translated():
            return await pool.take()

    async def _pool(self) -> Pool:
        if self._pid != os.getpid():
            self._pools, self._opening = WeakKeyDictionary(), WeakKeyDictionary()
            self._pid, self._is_first = os.getpid(), False
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is not None:
            return pool
        async with self._opening.setdefault(loop, asyncio.Lock()):
            pool = self._pools.get(loop)
            if pool is None:
                is_first, self._is_first = self._is_first, False
                with self.translated():
                    pool = self._pools[loop] = await self._open_pool(is_first=is_first)
        return pool


async def _drop(link: Link) -> None:
    """Roll back and close; the error that led here is the one to tell."""
    with suppress(Exception):
        await link.rollback()
    with suppress(Exception):
        await asyncio.shield(link.give_back(is_sound=False))

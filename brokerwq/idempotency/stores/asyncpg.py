"""Records in PostgreSQL through asyncpg: ``tx.conn`` is an ``asyncpg.Connection``."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit
from uuid import UUID
from weakref import WeakKeyDictionary

from brokerwq.durations import Seconds, positive_seconds
from brokerwq.errors import ConfigError, StoreError, StoreUnavailableError
from brokerwq.idempotency.record import Answer, Busy, Claim, Claimed, Record, State, refusal
from brokerwq.idempotency.store import Outgoing, SendAll, Soundness, Transaction
from brokerwq.idempotency.stores import _postgres as pg

try:
    # It has no types; what comes out of it is checked where it is used.
    asyncpg: Any = import_module("asyncpg")
except ModuleNotFoundError as exc:
    _MISSING = "AsyncpgStore needs asyncpg: pip install 'brokerwq[postgres]'"
    raise ConfigError(_MISSING) from exc

_BUSY_SECONDS: Final = 0.5
_TRIES: Final = 20
_PASSING: Final = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InvalidAuthorizationSpecificationError,
)


class AsyncpgStore:
    """Records in the database at ``dsn``; make its tables with ``brokerwq keys init``.

    Each event loop has connections of its own: the runner's for the jobs, and the one that
    sends heartbeats, which must get through while a job blocks.

    Args:
        dsn: ``postgresql://user:password@host:port/database``.
        connections: Most connections of one event loop. One job in a transaction takes one.
        idle_timeout: Seconds for which the server lets a transaction wait for its client; then
            it is rolled back. The longest pause of a transactional handler, and how long a
            frozen or cut-off runner keeps others from its key.
        command_timeout: Seconds for one statement of the store.

    Raises:
        ConfigError: ``dsn`` is no URL of PostgreSQL.
    """

    takes_threads: Final = False

    def __init__(
        self,
        dsn: str,
        *,
        connections: int = 10,
        idle_timeout: Seconds = 10.0,
        command_timeout: Seconds = 10.0,
    ) -> None:
        if not dsn.startswith(("postgresql://", "postgres://")):
            msg = "the dsn of AsyncpgStore must begin with postgresql://"
            raise ConfigError(msg)
        self._dsn = dsn
        self._connections = connections
        idle = positive_seconds(idle_timeout, "idle_timeout")
        self._session = {
            **pg.SESSION,
            "idle_in_transaction_session_timeout": f"{int(idle * 1000)}ms",
        }
        self._timeout = positive_seconds(command_timeout, "command_timeout")
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        self._opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self._pid = os.getpid()

    def __repr__(self) -> str:
        """For people, without the password."""
        return f"<AsyncpgStore {self.name}>"

    @property
    def name(self) -> str:
        """See ``Store.name``."""
        parts = urlsplit(self._dsn)
        return f"postgresql://{parts.hostname or ''}:{parts.port or 5432}{parts.path}"

    async def check(self) -> None:
        """See ``Store.check``."""
        try:
            rows = await self.fetch(pg.SCHEMA_VERSION)
        except StoreError as exc:
            if isinstance(exc.__cause__, asyncpg.UndefinedTableError):
                pg.check_version(None)
            raise
        pg.check_version(rows[0][0] if rows else None)

    async def claim(self, claim: Claim, /) -> Answer:
        """See ``Store.claim``."""
        for _ in range(_TRIES):
            try:
                rows = await self.fetch(pg.CLAIM, *pg.claim_values(claim, State.IN_PROGRESS))
            except StoreError as exc:
                if isinstance(exc.__cause__, asyncpg.LockNotAvailableError):
                    return Busy(remaining=_BUSY_SECONDS)
                raise
            if rows:
                return Claimed(fence=rows[0][0], attempt=rows[0][1], takeover=rows[0][2])
            record = await self.get(claim.key)
            answer = None if record is None else refusal(record, claim)
            if answer is not None:
                return answer
        return Busy(remaining=_BUSY_SECONDS)  # it changes hands faster than we can look

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
        async with self._connection() as connection, connection.transaction():
            for statement in pg.SCHEMA:
                await connection.execute(statement)

    async def aclose(self) -> None:
        """See ``Store.aclose``."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), 5.0)
            except Exception:  # noqa: BLE001 -- whatever is wrong with it, it is given up
                pool.terminate()

    # -- transactions ---------------------------------------------------------------------

    async def begin_marked(self, claim: Claim, /) -> Transaction | Answer:
        """See ``TransactionalStore.begin_marked``."""
        values = pg.claim_values(claim, State.COMPLETED)
        for _ in range(_TRIES):
            begun = await self._begin(claim.key, claim.owner, pg.CLAIM, values, -2)
            if begun is not None:
                return begun
            record = await self.get(claim.key)
            answer = None if record is None else refusal(record, claim)
            if answer is not None:
                return answer
        return Busy(remaining=_BUSY_SECONDS)

    async def begin_completing(
        self, key: bytes, owner: bytes, retention: float, /
    ) -> Transaction | None:
        """See ``TransactionalStore.begin_completing``."""
        values = (UUID(bytes=key), owner, retention)
        begun = await self._begin(key, owner, pg.COMPLETE_FIRST, values, 0)
        return begun if not isinstance(begun, Busy) else None

    async def _begin(
        self, key: bytes, owner: bytes, first: str, values: Sequence[Any], at: int
    ) -> _Transaction | Busy | None:
        """A transaction whose ``first`` statement answered a row, its id in column ``at``."""
        pool = await self._pool()
        with _translated(self.name):
            connection = await pool.acquire()
        transaction = _Transaction(self, pool, connection, key, owner)
        try:
            with _translated(self.name):
                await transaction.native.start()
                row = await connection.fetchrow(first, *values, timeout=self._timeout)
        except StoreError as exc:
            await transaction.rollback()
            if isinstance(exc.__cause__, asyncpg.LockNotAvailableError):
                return Busy(remaining=_BUSY_SECONDS)
            raise
        except BaseException:
            await transaction.rollback()
            raise
        if row is None:
            await transaction.rollback()
            return None
        transaction.xid = row[at]
        return transaction

    async def relay(self, send: SendAll, limit: int, /) -> int:
        """See ``TransactionalStore.relay``."""
        failure: Exception | None = None
        async with self._connection() as connection, connection.transaction():
            rows = await connection.fetch(pg.TAKE_OUT, limit)
            if not rows:
                return 0
            sent: list[int] = []
            try:
                accepted = await send([pg.outgoing_of(row) for row in rows])
            except Exception as exc:  # noqa: BLE001 -- raised below, where it is not the store's
                failure = exc
            else:
                sent += [row[0] for row, ok in zip(rows, accepted, strict=True) if ok]
                await connection.execute(pg.SENT_OUT, sent)
        if failure is not None:
            raise failure
        return len(sent)

    # -- connections ----------------------------------------------------------------------

    async def fetch(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        """The rows of one statement, outside of any transaction.

        Raises:
            StoreError: it failed; the driver's own error is its cause.
        """
        pool = await self._pool()
        with _translated(self.name):
            rows: Sequence[Sequence[Any]] = await pool.fetch(
                statement, *values, timeout=self._timeout
            )
            return rows

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Any]:
        pool = await self._pool()
        with _translated(self.name):
            async with pool.acquire() as connection:
                yield connection

    async def _pool(self) -> Any:
        if self._pid != os.getpid():
            self._pools, self._opening = WeakKeyDictionary(), WeakKeyDictionary()
            self._pid = os.getpid()
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is not None:
            return pool
        async with self._opening.setdefault(loop, asyncio.Lock()):
            pool = self._pools.get(loop)
            if pool is None:
                with _translated(self.name):
                    pool = self._pools[loop] = await asyncpg.create_pool(
                        self._dsn,
                        min_size=0,
                        max_size=self._connections,
                        timeout=5.0,
                        server_settings=self._session,
                    )
        return pool


class _translated(contextlib.AbstractContextManager[None]):  # noqa: N801 -- read as a word
    """Native errors become ours."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, StoreError) or error is None:
            return
        text = f"store {self._name}: {type(error).__name__}: {error}"
        if isinstance(error, _PASSING):
            raise StoreUnavailableError(text) from error
        if isinstance(error, asyncpg.PostgresError):
            raise StoreError(text) from error


class _Transaction:
    """See ``brokerwq.idempotency.store.Transaction``."""

    def __init__(
        self, store: AsyncpgStore, pool: Any, connection: Any, key: bytes, owner: bytes
    ) -> None:
        self.native = connection.transaction()
        self.xid = ""
        self._store = store
        self._pool = pool
        self._connection: Any = connection
        self._key = UUID(bytes=key)
        self._owner = owner

    @property
    def conn(self) -> Any:
        if self._connection is None:
            msg = "the transaction has ended"
            raise RuntimeError(msg)
        return self._connection

    @property
    def session(self) -> NoReturn:
        msg = "tx.session is SQLAlchemy's; use tx.conn"
        raise RuntimeError(msg)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return self._savepoint()

    @asynccontextmanager
    async def _savepoint(self) -> AsyncGenerator[None]:
        async with self.conn.transaction():
            yield

    async def put_out(self, outgoing: Sequence[Outgoing], /) -> None:
        await self.conn.executemany(pg.PUT_OUT, [pg.outgoing_values(each) for each in outgoing])

    async def keep_result(self, result: str, /) -> None:
        await self.conn.execute(pg.KEEP_RESULT, self._key, result)

    async def examine(self) -> Soundness:
        with _translated(self._store.name):
            try:
                found = await self.conn.fetchval(pg.GUARD)
            except asyncpg.InFailedSQLTransactionError:
                return "aborted"
            if found == self.xid:
                return "sound"
            # The handler ended it. What it began after that goes with its connection.
            await self.rollback()
            marked = await self._store.fetch(pg.MARKED, self._key, self._owner)
            return "escaped" if marked else "aborted"

    async def commit(self) -> None:
        try:
            await self.native.commit()
        except Exception as exc:
            msg = f"whether the transaction was committed cannot be told: {exc}"
            raise StoreUnavailableError(msg) from exc
        finally:
            await self._give_back()

    async def rollback(self) -> None:
        if self._connection is None:
            return
        with contextlib.suppress(Exception):  # the connection is looked at when given back
            await self.native.rollback()
        await self._give_back()

    async def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with contextlib.suppress(Exception):  # a connection that was lost has left by itself
            if connection.is_in_transaction():
                connection.terminate()
            await asyncio.shield(self._pool.release(connection))

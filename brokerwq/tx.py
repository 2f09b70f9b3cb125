"""The transaction that a worker with ``once="transactional"`` or ``"lease_tx"`` is given."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, overload

from brokerwq.outcomes import Retry

if TYPE_CHECKING:
    from brokerwq.workers.worker import KeywordWorker, PayloadWorker, SendOptions

P = ParamSpec("P")
T = TypeVar("T")


class TxPort(Protocol):
    """What a ``Tx`` needs from whatever runs the job."""

    @property
    def conn(self) -> Any: ...  # noqa: D102

    @property
    def session(self) -> Any: ...  # noqa: D102

    async def begin(self) -> Any: ...  # noqa: D102

    def savepoint(self) -> AbstractAsyncContextManager[None]: ...  # noqa: D102

    async def enqueue(  # noqa: D102
        self, worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> str: ...

    def abort(self) -> None: ...  # noqa: D102


class Tx:
    """The transaction in which a job's effect and the record of its key become one.

    It is committed after the handler has returned and rolled back if it raises; it has no
    ``commit`` and no ``rollback`` of its own, and a handler that commits by itself is found
    out and dead-lettered (``transaction-escaped``).
    """

    __slots__ = ("_port",)

    def __init__(self, port: TxPort) -> None:
        self._port = port

    @property
    def conn(self) -> Any:
        """The driver's own connection, inside the transaction.

        ``sqlite3.Connection``, ``asyncpg.Connection``, ``psycopg.AsyncConnection`` or
        SQLAlchemy's ``AsyncConnection``, by the store.

        Raises:
            RuntimeError: with ``lease_tx``, before ``begin``; or after the job has ended.
            LeaseLostError: the job is somebody else's by now.
        """
        return self._port.conn

    @property
    def session(self) -> Any:
        """SQLAlchemy's ``AsyncSession`` on the same transaction; only with its store.

        Its ``commit()`` commits nothing early: it joins the transaction around it.

        Raises:
            RuntimeError: the store is not SQLAlchemy's, or as ``conn`` says.
        """
        return self._port.session

    async def begin(self) -> Any:
        """Open the transaction of a ``lease_tx`` job, when its slow part is over.

        The first statement in it completes the job's record, if that is still this job's, so
        that what a late owner writes afterwards can never be committed. With
        ``transactional`` it is open from the start.

        Returns:
            ``conn``.

        Raises:
            LeaseLostError: the job is somebody else's by now; let it pass.
        """
        return await self._port.begin()

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """A block whose failure takes back only itself: ``async with tx.savepoint(): …``."""
        return self._port.savepoint()

    @overload
    async def enqueue(
        self,
        worker: PayloadWorker[..., T, object],
        payload: T,
        /,
        **options: Unpack[SendOptions],
    ) -> str: ...
    @overload
    async def enqueue(
        self, worker: KeywordWorker[..., P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> str: ...
    async def enqueue(self, worker: Any, /, *args: Any, **kwargs: Any) -> str:
        """Write a message into the outbox: it is sent if and only if the transaction commits.

        Its id is derived from this job's key and the number of the call.

        Returns:
            The id it will have.
        """
        return await self._port.enqueue(worker, args, kwargs)

    def abort(self, reason: str = "") -> NoReturn:
        """Roll back, and count a failed attempt; also where the handler swallows what it raises.

        Raises:
            Retry: always.
        """
        self._port.abort()
        raise Retry(reason=reason)

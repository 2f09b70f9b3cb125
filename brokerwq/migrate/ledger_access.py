"""The way to a ledger's database: opened for one migration, and called from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from brokerwq.errors import ConfigError
from brokerwq.migrate.ledger_database import LedgerDatabase, Statements
from brokerwq.migrate.record import MigrationRecord, note_record, record_in

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Write:
    """Something to be written, and where its answer is waited for."""

    work: Callable[[Statements], Any]
    answer: asyncio.Future[Any]


class LedgerAccess:
    """See the module. What is to be written while something is written goes into one transaction.

    Args:
        database: Not connected yet.
    """

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._waiting: list[_Write] = []

    async def open(self, record: MigrationRecord, *, create: bool) -> None:
        """Open it and make sure that it is about this migration.

        Args:
            record: The migration; queues that the ledger does not know yet are added.
            create: Whether a missing ledger is made.

        Raises:
            ConfigError: it is about another migration, or missing and may not be made.
            StoreError: it is no ledger, or of another version.
        """
        await self._run(lambda: self._open(record, create=create))

    def _open(self, record: MigrationRecord, *, create: bool) -> None:
        db = self._database
        try:
            is_there = db.prepare(create=create)
            if is_there:
                db.write(lambda statements: note_record(statements, record, db.name))
        except BaseException:
            db.close()
            raise
        if not is_there:
            db.close()
            msg = f"there is no ledger {db.name}: nothing has been moved by one of that name"
            raise ConfigError(msg)

    async def known(self) -> MigrationRecord | None:
        """The migration that the ledger is about; None if there is no ledger yet.

        Raises:
            ConfigError, StoreError: it is no ledger.
        """
        return await self._run(self._known)

    def _known(self) -> MigrationRecord | None:
        db = self._database
        try:
            return db.read(record_in) if db.prepare(create=False) else None
        finally:
            db.close()

    async def aclose(self) -> None:
        """Close it."""
        await self._run(self._database.close)

    async def _read(self, work: Callable[[Statements], T]) -> T:
        return await self._run(lambda: self._database.read(work))

    async def _write(self, work: Callable[[Statements], T]) -> T:
        write = _Write(work, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        return await _carried_out(self._written(write))

    async def _written(self, write: _Write) -> Any:
        async with self._lock:
            if not write.answer.done():
                writes, self._waiting = self._waiting, []
                try:
                    answers = await asyncio.to_thread(
                        self._database.write, lambda db: [one.work(db) for one in writes]
                    )
                except BaseException as exc:  # noqa: BLE001 -- it is each waiter's
                    for one in writes:
                        one.answer.set_exception(exc)
                else:
                    for one, answer in zip(writes, answers, strict=True):
                        one.answer.set_result(answer)
        return write.answer.result()

    async def _run(self, work: Callable[[], T]) -> T:
        return await _carried_out(self._locked(work))

    async def _locked(self, work: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(work)


async def _carried_out(call: Coroutine[Any, Any, T]) -> T:
    """What ``call`` returns; it is carried out whole, though its caller be cancelled."""
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(BaseException):
            await task
        raise

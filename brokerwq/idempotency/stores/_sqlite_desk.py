"""The connection on which the transactions of one event loop take turns."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final

from brokerwq.idempotency.stores._sqlite_file import File, JoinedConnection

GUARD: Final = "brokerwq_guard"
"""The savepoint that is there for as long as the transaction in which it was set."""

_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05


class Desk:
    """One event loop's connection for transactions; they take it in turn.

    SQLite would let only one of them write anyway, and asks without an order who is next.
    """

    def __init__(self, file: File) -> None:
        self.file = file
        self._lock = asyncio.Lock()
        self._db: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brokerwq-commit")

    async def begin(self) -> sqlite3.Connection:
        """Open a transaction; whoever gets it calls ``end``.

        Raises:
            BusyFileError: another process writes.
        """
        await self._lock.acquire()
        try:
            return await self._begin()
        except BaseException as exc:
            self.end()
            translated = self.file.translate(exc) if isinstance(exc, Exception) else exc
            raise translated from exc

    async def _begin(self) -> sqlite3.Connection:
        db = self._db
        if db is None:
            db = self._db = await self._connect()
        clock = self.file.clock
        deadline = clock.now() + self.file.busy_timeout
        pause = _FIRST_PAUSE
        while True:
            # Asked without waiting, for a thread to wait in costs more than the answer.
            try:
                db.execute("BEGIN IMMEDIATE")
                db.execute(f"SAVEPOINT {GUARD}")
            except sqlite3.OperationalError as exc:
                is_busy = exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or clock.now() >= deadline:
                    raise
                await clock.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                return db

    async def _connect(self) -> sqlite3.Connection:
        loop = asyncio.get_running_loop()
        open_one = partial(self.file.connect, JoinedConnection)
        connecting = loop.run_in_executor(self._thread, open_one)
        try:
            connected = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close)  # nobody will have it
            raise
        connected.execute("PRAGMA busy_timeout = 0")
        return connected

    async def run(self, work: Any) -> Any:
        """Do ``work`` in the desk's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def end(self, *, is_broken: bool = False) -> None:
        """The transaction, if there still is one, never was; the next one may begin."""
        if self._db is not None:
            try:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            except sqlite3.Error:
                is_broken = True
            if is_broken:
                with suppress(sqlite3.Error):
                    self._db.close()
                self._db = None
        self._lock.release()

    def given_back_on_error(self) -> GivenBack:
        """A block after whose failure the transaction is over."""
        return GivenBack(self)

    def close(self) -> None:
        """Close the connection; a transaction that is open is rolled back."""
        if self._db is not None:
            self._db.close()
            self._db = None
        self._thread.shutdown(wait=False)


def _close(connecting: asyncio.Future[sqlite3.Connection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


class GivenBack:
    """See ``Desk.given_back_on_error``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        self._desk.end()
        if isinstance(error, sqlite3.Error):
            raise self._desk.file.translate(error) from error

"""A driver of one database file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import weakref
from collections.abc import Sequence
from typing import Final

from brokerwq.clock import Clock
from brokerwq.driver import (
    Capabilities,
    Consumer,
    Difference,
    QueueSpec,
    QueueStats,
    Results,
)
from brokerwq.driver.spec import check_plain_spec
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.errors import DriverError, MessageTooLargeError
from brokerwq.message import Message
from brokerwq_sqlite import declaration, statements
from brokerwq_sqlite.connection import check_sqlite
from brokerwq_sqlite.consumer import MAX_CLAIM, SqliteConsumer
from brokerwq_sqlite.engine import Engine
from brokerwq_sqlite.errors import closed
from brokerwq_sqlite.settings import SqliteSettings
from brokerwq_sqlite.wire import Row, message_of, row_of

_ROW_OVERHEAD_BYTES: Final = 4096
"""A row may not be longer than SQLite's limit; what it needs beside body and headers is less."""


class SqliteDriver:
    """See ``brokerwq.driver.Driver``. Works on any event loop and thread of its process."""

    def __init__(self, settings: SqliteSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._engine: Engine | None = None
        self._pid = 0
        self._consumers: weakref.WeakSet[SqliteConsumer] = weakref.WeakSet()
        self._capabilities = Capabilities(
            max_claim=MAX_CLAIM, max_settle=1000, max_send=500, lists_queues=True
        )

    @property
    def capabilities(self) -> Capabilities:
        """See ``Driver.capabilities``."""
        return self._capabilities

    async def open(self) -> None:
        """See ``Driver.open``. In a forked child it may be called again."""
        if self._engine is not None and self._pid == os.getpid():
            return
        check_sqlite()
        engine = Engine(self._settings, self._clock)
        engine.start()
        try:
            limit = await engine.call(lambda db, _: db.getlimit(sqlite3.SQLITE_LIMIT_LENGTH))
        except BaseException:
            engine.stop_soon()
            raise
        self._capabilities = Capabilities(
            max_claim=MAX_CLAIM,
            max_settle=1000,
            max_send=500,
            max_message_bytes=limit - _ROW_OVERHEAD_BYTES,
            lists_queues=True,
        )
        self._engine = engine
        self._pid = os.getpid()
        self._consumers = weakref.WeakSet()  # a parent's are none of a forked child's business
        # Whoever forgets to close a driver shall not keep its thread and its file for ever.
        weakref.finalize(self, engine.stop_soon).atexit = False

    async def aclose(self) -> None:
        """See ``Driver.aclose``."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        for consumer in list(self._consumers):
            consumer.close()
        await engine.stop()

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """See ``Driver.send``."""
        engine = self._opened()
        answers: list[DriverError | None] = [None] * len(messages)
        rows: list[Row] = []
        places: list[int] = []
        limit = self._capabilities.max_message_bytes
        for place, (message, delay) in enumerate(zip(messages, delays, strict=True)):
            wait = seconds_of(delay, "delay", floor=0.0) if delay else 0.0
            try:
                rows.append(row_of(message, wait, limit))
            except MessageTooLargeError as exc:
                answers[place] = exc
            else:
                places.append(place)
        sent = await engine.call(
            lambda db, moment: statements.send(db, moment, queue, rows, self._settings.path),
            feeds=True,
            weight=len(rows),
        )
        for place, answer in zip(places, sent, strict=True):
            answers[place] = answer
        return answers

    async def foresee(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """See ``brokerwq.driver.moving.Foresight``."""
        self._opened()
        answers: list[DriverError | None] = []
        for message, delay in zip(messages, delays, strict=True):
            try:
                row_of(message, delay, self._capabilities.max_message_bytes)
            except MessageTooLargeError as exc:
                answers.append(exc)
            else:
                answers.append(None)
        return answers

    async def identity(self, queue: str, /) -> str:
        """See ``brokerwq.driver.moving.Identified``. A file is one, whatever leads to it."""
        self._opened()
        found = await asyncio.to_thread(os.stat, self._settings.path)
        return f"file {found.st_dev}:{found.st_ino} {queue}"

    async def place(self, queue: str, /) -> str:
        """See ``brokerwq.driver.moving.Located``."""
        real = await asyncio.to_thread(os.path.realpath, self._settings.path)
        return f"sqlite:///{real}"

    async def read(self, queue: str, after: str, most: int, /) -> Sequence[tuple[str, Message]]:
        """See ``brokerwq.driver.moving.Readable``."""
        rows = await self._opened().call(
            lambda db, _: statements.read(db, queue, int(after or 0), most)
        )
        return [(str(row.seq), message_of(row)[0]) for row in rows]

    async def hasten(self, queue: str, beyond: float, /) -> int:
        """See ``brokerwq.driver.moving.Hastening``."""
        engine = self._opened()
        hastened, part = 0, statements.PURGE_CHUNK
        while part == statements.PURGE_CHUNK:
            part = await engine.call(
                lambda db, moment: statements.hasten(db, moment, queue, beyond),
                writes=True,
                weight=statements.PURGE_CHUNK,
            )
            hastened += part
        return hastened

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        """See ``Driver.consume``. There is nothing to prefetch."""
        engine = self._opened()
        if lease is not None:
            lease = positive_seconds(lease, "lease", limit=self._capabilities.max_lease)
        identifier, own_lease = await engine.call(
            lambda db, moment: declaration.find_queue(db, moment, queue)
        )
        consumer = SqliteConsumer(
            self, engine, (queue, identifier), lease or own_lease, self._clock
        )
        self._consumers.add(consumer)
        return consumer

    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """See ``Driver.declare``."""
        engine = self._opened()
        check_plain_spec(spec)
        if check_only:
            return await engine.call(lambda db, moment: declaration.check(db, moment, spec))
        return await engine.call(
            lambda db, moment: declaration.declare(db, moment, spec), writes=True
        )

    async def declare_dead_letter(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """See ``brokerwq.driver.doctor.DeadLetterMaker``."""
        engine = self._opened()
        check_plain_spec(spec)
        act = declaration.check_dead_letter if check_only else declaration.declare_dead_letter
        await engine.call(lambda db, moment: act(db, moment, spec), writes=not check_only)
        return []

    async def inspect(self, queue: str, /) -> QueueStats:
        """See ``Driver.inspect``. Counts an index: some 50 ms for a million messages."""
        return await self._opened().call(lambda db, moment: statements.inspect(db, moment, queue))

    async def purge(self, queue: str, /) -> None:
        """See ``Driver.purge``. In many short transactions; what is sent meanwhile stays."""
        engine = self._opened()
        last = await engine.call(lambda db, _: statements.last_seq(db))
        deleted = statements.PURGE_CHUNK
        while deleted == statements.PURGE_CHUNK:
            deleted = await engine.call(
                lambda db, moment: statements.purge(db, moment, queue, last),
                writes=True,
                weight=statements.PURGE_CHUNK,
            )

    async def queues(self) -> Sequence[str]:
        """See ``Driver.queues``."""
        return await self._opened().call(declaration.names)

    def _opened(self) -> Engine:
        if self._engine is None:
            raise closed("driver")
        return self._engine

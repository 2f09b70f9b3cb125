"""The thread that works on the file: group commit and waiting claims.

One transaction takes all that has come in while the one before it was being written, so that
many callers share one flush to the disk. Nothing is answered before the commit.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from brokerwq.clock import Clock
from brokerwq.errors import BrokerwqError, ClosedError, DriverError
from brokerwq_sqlite import neighbours, statements
from brokerwq_sqlite.connection import Connection
from brokerwq_sqlite.errors import closed, forked, keeps_connection, translate
from brokerwq_sqlite.operation import NOTHING, Answer, Claim, Operation, T, Work, deliver
from brokerwq_sqlite.settings import SqliteSettings
from brokerwq_sqlite.statements import Moment, Outlook
from brokerwq_sqlite.watch import Watch

_MOST_WEIGHT: Final = 5000
"""Rows that one transaction touches, about: other processes wait for its end."""

_SEEN_EVERY: Final = 1.0

_AnyOperation: TypeAlias = Operation[Any]


@dataclass(slots=True, eq=False, kw_only=True)
class _Marker:
    """Answered, like an operation, in its turn; does nothing, or ends the thread."""

    ends: bool
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[None] | None = None


class Engine:
    """Owns the thread and its connection."""

    def __init__(self, settings: SqliteSettings, clock: Clock) -> None:
        self.path = os.path.realpath(settings.path)  # as SQLite names the log beside it
        self.gate = threading.Lock()  # held while SQLite is at work: no fork then
        self._settings = settings
        self._clock = clock
        self._pid = os.getpid()
        self._inbox: SimpleQueue[_AnyOperation | _Marker | None] = SimpleQueue()
        self._lock = threading.RLock()  # a finalizer may strike while it is held
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="brokerwq-sqlite", daemon=True)
        # Below: touched with the gate held.
        self._connection: Connection | None = None
        self._was_open = False
        self._parked: list[Claim] = []
        self._in_hand: list[_AnyOperation] = []  # answers owed by this turn
        self._has_timers = False  # some parked claim knows when to look again
        self._must_look = False
        self._watch = Watch(self.path)
        self._seen = -inf

    def start(self) -> None:
        """Start the thread. Once."""
        neighbours.join(self)
        self._thread.start()

    @property
    def has_parked(self) -> bool:
        """See ``Neighbour.has_parked``."""
        return bool(self._parked)

    def poke(self) -> None:
        """See ``Neighbour.poke``."""
        self._inbox.put(None)

    def let_go(self) -> None:
        """See ``Neighbour.let_go``; the next turn connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def call(
        self, work: Work[T], *, writes: bool = False, feeds: bool = False, weight: int = 1
    ) -> T:
        """Have ``work`` done in a transaction; its answer, once that has been committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.submit(
            Operation(
                work=work,
                writes=writes or feeds,
                feeds=feeds,
                weight=weight,
                loop=loop,
                future=future,
            )
        )
        return await future

    def submit(self, operation: _AnyOperation) -> None:
        """Put ``operation`` in the row.

        Raises:
            ClosedError: the engine was stopped, or belongs to the parent process.
        """
        if self._pid != os.getpid():
            raise forked(self.path)
        with self._lock:
            if self._is_stopping:
                raise closed("driver")
            self._inbox.put(operation)

    async def stop(self) -> None:
        """Do what is in the row, close the file and end the thread."""
        if self._pid != os.getpid():
            return
        # A claim that was cancelled is taken back by its loop, when the answer gets there.
        # Once the first marker is back, all of those are in the row.
        for ends in (False, True):
            loop = asyncio.get_running_loop()
            marker = _Marker(ends=ends, loop=loop, future=loop.create_future())
            with self._lock:
                if self._is_stopping:
                    return
                self._is_stopping = ends
                self._inbox.put(marker)
            if marker.future is not None:
                await marker.future

    def stop_soon(self) -> None:
        """See ``Neighbour.stop_soon``."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                self._inbox.put(_Marker(ends=True))

    def join(self, patience: float, /) -> None:
        """See ``Neighbour.join``."""
        self._thread.join(patience)

    def _run(self) -> None:
        is_ending = False
        while not is_ending:
            operations, markers = self._take()
            if not operations and not markers and not self._has_reason_to_look():
                continue
            with self.gate:
                try:
                    self._turn(operations)
                except Exception as exc:  # noqa: BLE001  -- an answer is owed in any case
                    self._fail([*self._in_hand, *self._unpark_all()], exc)
                is_ending = any(marker.ends for marker in markers)
                if is_ending:
                    self.let_go()
                    self._fail(self._unpark_all(), closed("driver"))
            if is_ending:
                neighbours.leave(self)
            for marker in markers:
                _answer_marker(marker)

    def _take(self) -> tuple[list[_AnyOperation], list[_Marker]]:
        operations: list[_AnyOperation] = []
        markers: list[_Marker] = []
        weight = 0
        patience = 0.0 if self._must_look else self._settings.poll
        with suppress(Empty):
            taken = self._inbox.get(timeout=patience if self._parked else None)
            while True:
                if isinstance(taken, Operation):
                    operations.append(taken)
                    weight += taken.weight
                elif taken is not None:
                    markers.append(taken)
                else:
                    self._must_look = True
                if weight >= _MOST_WEIGHT:
                    break
                taken = self._inbox.get_nowait()
        return operations, markers

    def _has_reason_to_look(self) -> bool:
        """Whether a claim that waits may have something to find, or is to be answered."""
        if not self._parked:
            return False
        if not self._must_look:
            self._must_look = self._watch.has_news() or (
                self._has_timers and self._is_parked_claim_due()
            )
        return self._must_look

    def _is_parked_claim_due(self) -> bool:
        moment = self._moment()
        return any(claim.outlook is None or claim.outlook.is_due(moment) for claim in self._parked)

    def _park(self, claim: Claim, outlook: Outlook | None) -> None:
        claim.outlook = outlook
        self._parked.append(claim)
        self._has_timers = self._has_timers or outlook is None or outlook.has_timers

    def _turn(self, operations: Sequence[_AnyOperation]) -> None:
        self._in_hand = list(operations)
        connection = self._connected()
        claims = [operation for operation in operations if isinstance(operation, Claim)]
        if self._has_reason_to_look():
            self._must_look = False
            claims = self._unpark_all() + claims
            self._in_hand += claims
        group = [
            operation
            for operation in operations
            if operation.writes and not isinstance(operation, Claim)
        ]
        group += self._promising(connection, claims)
        if group:
            self._answer(self._commit(group))
            self._after_commit(group)
        for operation in operations:
            if not operation.writes:
                self._answer([self._read(operation)])

    def _connected(self) -> Connection:
        if self._connection is not None:
            try:
                self._connection.check_file()
            except DriverError:
                self.let_go()
                raise
            return self._connection
        self._connection = Connection(self._settings, self._clock, is_first=not self._was_open)
        self._was_open = True
        return self._connection

    def _moment(self) -> Moment:
        return Moment(self._clock.utcnow().timestamp(), self._clock.now())

    def _read(self, operation: _AnyOperation) -> Answer:
        try:
            connection = self._connected()
            return connection.patiently(lambda: self._read_once(connection.sqlite, operation))
        except Exception as exc:  # noqa: BLE001  -- the answer of this one, whatever it is
            return Answer(operation, error=self._broken(exc))

    def _read_once(self, db: sqlite3.Connection, operation: _AnyOperation) -> Answer:
        db.execute("BEGIN")
        try:
            return Answer(operation, operation.work(db, self._moment()))
        finally:
            if db.in_transaction:
                db.execute("COMMIT")

    def _promising(self, connection: Connection, claims: Sequence[Claim]) -> list[Claim]:
        """Those of ``claims`` that will find something; the others are parked or answered."""
        promising: list[Claim] = []
        outlooks: dict[int, Outlook] = {}
        moment = self._moment()
        for claim in claims:
            if claim.is_over:
                self._answer([Answer(claim, NOTHING)])
                continue
            if claim.queue not in outlooks:
                look = partial(statements.look, connection.sqlite, claim.queue)
                outlooks[claim.queue] = connection.patiently(look)
            outlook = outlooks[claim.queue]
            if outlook.has_work(moment):
                promising.append(claim)
            elif claim.waits and not claim.is_late:
                self._park(claim, outlook)
            else:
                self._answer([Answer(claim, NOTHING)])
        return promising

    def _commit(self, group: Sequence[_AnyOperation]) -> list[Answer]:
        try:
            connection = self._connected()
            db = connection.sqlite
            connection.patiently(partial(db.execute, "BEGIN IMMEDIATE"))
        except (DriverError, sqlite3.Error) as exc:
            error = self._broken(exc)
            return [Answer(operation, error=error) for operation in group]
        try:
            moment = self._moment()
            answers = [_attempt(db, moment, operation) for operation in group]
            self._note_seen(db, moment)
            db.execute("COMMIT")
        except Exception as exc:  # noqa: BLE001  -- also what our own work stumbles over
            if db.in_transaction:
                db.execute("ROLLBACK")
            if len(group) == 1:
                return [Answer(group[0], error=self._broken(exc))]
        else:
            return answers
        # One of them spoiled the transaction; the others shall not suffer for it.
        return [answer for operation in group for answer in self._commit([operation])]

    def _note_seen(self, db: sqlite3.Connection, moment: Moment) -> None:
        if moment.now - self._seen >= _SEEN_EVERY:
            db.execute("UPDATE machine SET seen = max(seen, ?)", (moment.now,))
            self._seen = moment.now

    def _after_commit(self, group: Sequence[_AnyOperation]) -> None:
        self._must_look = bool(self._parked)
        if any(operation.feeds for operation in group):
            neighbours.poke_others(self)

    def _broken(self, exc: Exception) -> BrokerwqError:
        """The error to report; the connection is given up unless ``exc`` leaves it sound."""
        if isinstance(exc, BrokerwqError):
            return exc
        if isinstance(exc, sqlite3.Error) and not keeps_connection(exc):
            self.let_go()
        error = translate(exc, self.path)
        error.__cause__ = exc
        return error

    def _unpark_all(self) -> list[Claim]:
        parked, self._parked = self._parked, []
        self._has_timers = False
        return parked

    def _fail(self, operations: Sequence[_AnyOperation], exc: Exception) -> None:
        error = self._broken(exc)
        self._answer([Answer(operation, error=error) for operation in operations])

    def _answer(self, answers: Sequence[Answer]) -> None:
        finished: list[Answer] = []
        for answer in answers:
            operation = answer.operation
            if isinstance(operation, Claim) and operation.must_wait(answer.result):
                self._park(operation, None)
            else:
                finished.append(answer)
        deliver(finished, self._undo)

    def _undo(self, answer: Answer) -> None:
        undoing = answer.operation.undo(answer.result)
        if undoing is not None:
            with suppress(ClosedError):  # too late: the leases end by themselves
                self.submit(undoing)


def _attempt(db: sqlite3.Connection, moment: Moment, operation: _AnyOperation) -> Answer:
    try:
        return Answer(operation, operation.work(db, moment))
    except DriverError as exc:
        return Answer(operation, error=exc)


def _answer_marker(marker: _Marker) -> None:
    if marker.loop is not None and marker.future is not None:
        with suppress(RuntimeError):  # the loop was closed
            marker.loop.call_soon_threadsafe(_resolve, marker.future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""A ledger in a schema of a PostgreSQL database, for movers on several machines.

A connection that is lost is made again, and what was under way on it is done again, unless the
server says that it had been done: a commit whose answer was lost is asked after by its number.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from brokerwq._runtime.pauses import Pauses
from brokerwq.clock import Clock
from brokerwq.driver.registry import redacted
from brokerwq.driver.support import split_url
from brokerwq.errors import ConfigError, StoreError, StoreUnavailableError
from brokerwq.idempotency.stores._postgres import as_options
from brokerwq.idempotency.stores._postgres_errors import kind_of, sqlstate_of
from brokerwq.migrate.schema import VERSION, tables

T = TypeVar("T")

DEFAULT_SCHEMA: Final = "brokerwq_migration"
_CALL_SECONDS: Final = 60.0
_PATIENCE: Final = 30.0
"""Seconds for which a server that was reached once is tried again: it may be starting anew."""
_LONGEST_PAUSE: Final = 2.0
_OLDEST: Final = 130000
_SCHEMA: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_PORT: Final = re.compile(r"[0-9,]*")
_SETTINGS: Final = {
    # A deletion that a crash takes back would make a later copy of the id look moved.
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "60s",
    "lock_timeout": "30s",
    # For so long a mover that is frozen, or cut off, keeps the others from writing.
    "idle_in_transaction_session_timeout": "10s",
}
_TRANSPORT: Final[dict[str, Any]] = {"connect_timeout": 5, "tcp_user_timeout": 10_000}
"""In seconds; in milliseconds."""
_FORBIDDEN: Final = "42501"
_LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)
_STATEMENTS: Final = (
    *tables(blob="BYTEA", number="INTEGER GENERATED ALWAYS AS IDENTITY"),
    "CREATE TABLE brokerwq_ledger (version INTEGER NOT NULL)",
)


class PostgresDatabase:
    """See ``LedgerDatabase``.

    Args:
        url: ``postgresql://…``, with options as libpq has them, and ``schema``.
        clock: For what lies between two readings of the server's clock.
        call_seconds: After so long a server that says nothing is given up on.
        patience: Seconds for which one that was reached before is tried again.

    Raises:
        ConfigError: ``url`` cannot be read, or has an unknown option.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        call_seconds: float = _CALL_SECONDS,
        patience: float = _PATIENCE,
    ) -> None:
        self.name = redacted(url)
        self._schema, self._conninfo = _parsed(url)
        self._clock = clock
        self._call_seconds = call_seconds
        self._patience = patience
        self._connection: psycopg.Connection | None = None
        self._was_connected = False
        self._ahead = 0.0
        digest = blake2b(f"brokerwq ledger {self._schema}".encode(), digest_size=8).digest()
        self._lock_key = int.from_bytes(digest, signed=True)

    # -- statements -----------------------------------------------------------------------

    def now(self) -> float:
        """See ``Statements.now``: the server's clock, since those of machines differ."""
        return self._clock.now() + self._ahead

    def fetch(self, statement: str, values: Sequence[Any] = (), /) -> list[tuple[Any, ...]]:
        """See ``Statements.fetch``."""
        return self._connected().execute(_translated(statement), _storable(values)).fetchall()

    def run(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        """See ``Statements.run``: all rows go in one round trip."""
        with self._connected().cursor() as cursor:
            cursor.executemany(_translated(statement), [_storable(row) for row in rows])

    # -- calls ----------------------------------------------------------------------------

    def prepare(self, *, create: bool) -> bool:
        """See ``LedgerDatabase.prepare``."""
        if not self.read(PostgresDatabase._is_there):
            if not create:
                return False
            self.write(PostgresDatabase._make)
        # By its whole name, so that a schema which may not be used is named as the reason.
        query = f'SELECT version FROM "{self._schema}".brokerwq_ledger'  # noqa: S608 -- checked
        ((version,),) = self.read(lambda db: db.fetch(query))
        if version != VERSION:
            msg = f"{self.name} is a ledger of version {version}; this brokerwq reads {VERSION}"
            raise StoreError(msg)
        return True

    def read(self, work: Callable[[PostgresDatabase], T], /) -> T:
        """See ``LedgerDatabase.read``."""

        def once() -> T:
            self._connected()
            return work(self)

        return self._patiently(once)

    def write(self, work: Callable[[PostgresDatabase], T], /) -> T:
        """See ``LedgerDatabase.write``."""
        unanswered: list[tuple[str, T]] = []

        def once() -> T:
            connection = self._connected()
            with _pipelined(connection):
                connection.execute("BEGIN")
                # As in a file, one writes at a time: two that meet cannot wait for each other.
                # Whoever has the lock knows that the transaction before it is over, too.
                locked = connection.execute(
                    "SELECT pg_current_xact_id()::text, pg_advisory_xact_lock(%s)",
                    (self._lock_key,),
                )
                for number, answer in unanswered:
                    if self.fetch("SELECT pg_xact_status(?::xid8)", (number,)) == [("committed",)]:
                        connection.execute("ROLLBACK")
                        return answer
                unanswered.clear()
                answer = work(self)
                ((number, _),) = locked.fetchall()
            unanswered.append((number, answer))
            connection.execute("COMMIT")
            return answer

        return self._patiently(once)

    def close(self) -> None:
        """See ``LedgerDatabase.close``."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    # -- making ---------------------------------------------------------------------------

    def _is_there(self) -> bool:
        ((relations, stamps),) = self.fetch(
            "SELECT count(*), count(*) FILTER (WHERE relname = 'brokerwq_ledger') FROM pg_class "
            "JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = ?",
            (self._schema,),
        )
        if relations and not stamps:
            msg = f"schema {self._schema} of {self.name} holds something else, no ledger"
            raise ConfigError(msg)
        return bool(stamps)

    def _make(self) -> None:
        if self._is_there():  # somebody has made it meanwhile
            return
        connection = self._connected()
        # Whoever may not make schemas may have got an empty one.
        if not self.fetch("SELECT 1 FROM pg_namespace WHERE nspname = ?", (self._schema,)):
            connection.execute(f'CREATE SCHEMA "{self._schema}"'.encode())
        for statement in _STATEMENTS:
            connection.execute(statement.encode())
        self.run("INSERT INTO brokerwq_ledger VALUES (?)", [(VERSION,)])

    # -- the connection -------------------------------------------------------------------

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            connection = psycopg.connect(self._conninfo, autocommit=True)
            self._connection = connection
            if connection.info.server_version < _OLDEST:
                msg = f"the ledger {self.name} needs PostgreSQL {_OLDEST // 10000} or newer"
                raise StoreError(msg)
            ((now,),) = self.fetch("SELECT extract(epoch FROM clock_timestamp())::float8")
            self._ahead = now - self._clock.now()
            self._was_connected = True
        return self._connection

    def _patiently(self, once: Callable[[], T]) -> T:
        pauses = Pauses(_LONGEST_PAUSE)
        patience = self._patience if self._was_connected else 0.0
        give_up_at = self._clock.now() + patience
        while True:
            try:
                with self._watched():
                    return once()
            except psycopg.Error as exc:
                self.close()
                kind = kind_of(exc, _LOST)
                is_passing = kind in ("passing", "conflict", "locked")
                if not is_passing or self._clock.now() >= give_up_at:
                    self._was_connected = False  # whoever comes next does not wait so long again
                    raise self._told(exc, is_passing=is_passing) from exc
            except BaseException:
                self.close()  # and what it had begun is undone
                raise
            time.sleep(pauses.next())

    def _told(self, exc: psycopg.Error, *, is_passing: bool) -> StoreError:
        text = exc.diag.message_primary or " ".join(str(exc).split())
        msg = f"the ledger {self.name} cannot be used: {text}"
        if sqlstate_of(exc) == _FORBIDDEN:
            msg += f"; have its schema made: CREATE SCHEMA {self._schema} AUTHORIZATION its user"
        return StoreUnavailableError(msg) if is_passing else StoreError(msg)

    @contextmanager
    def _watched(self) -> Generator[None]:
        """A block that does not last for ever, though the server say nothing."""
        timer = threading.Timer(self._call_seconds, self._hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _hang_up(self) -> None:
        connection = self._connection
        if connection is not None:
            # By a copy of the handle: the connection is another thread's.
            with (
                suppress(OSError, psycopg.Error),
                socket.socket(fileno=os.dup(connection.fileno())) as line,
            ):
                line.shutdown(socket.SHUT_RDWR)


def _parsed(url: str) -> tuple[str, str]:
    """The schema that ``url`` names, and the rest as libpq takes it.

    Raises:
        ConfigError: it cannot be read.
    """
    parts = split_url(url)
    if parts.fragment or parts.netloc.count("@") > 1 or "@" in parts.path + parts.query:
        # Nothing of it is shown, nor given to libpq, which would show a part of a password.
        raise _unreadable("write %40 for @, %2F for /, %3F for ?, %23 for #")
    options = [option for option in parts.query.split("&") if option]
    theirs = [option for option in options if not option.startswith("schema=")]
    schemas = {option.removeprefix("schema=") for option in options if option not in theirs}
    schema = schemas.pop() if schemas else DEFAULT_SCHEMA
    if schemas or not _SCHEMA.fullmatch(schema):
        msg = "schema of the ledger must be one name of at most 63 letters, digits and _"
        raise ConfigError(msg)
    try:
        parameters: dict[str, Any] = conninfo_to_dict(
            f"postgresql://{parts.netloc}{parts.path}?{'&'.join(theirs)}"
        )
    except psycopg.Error:
        known = {default.keyword.decode() for default in psycopg.pq.Conninfo.get_defaults()}
        unknown = {option.partition("=")[0] for option in theirs} - known
        why = f"unknown option {min(unknown)!r:.100}" if unknown else "it is no URL of PostgreSQL"
        raise _unreadable(why) from None
    if not _PORT.fullmatch(str(parameters.get("port", ""))):
        raise _unreadable("the port is no number")
    # Ours behind theirs, so that they hold.
    settings = as_options({**_SETTINGS, "search_path": f'"{schema}"'})
    parameters["options"] = f"{parameters.get('options', '')} {settings}".strip()
    parameters["client_encoding"] = "utf8"
    return schema, make_conninfo(**{**_TRANSPORT, **parameters})


def _unreadable(why: str) -> ConfigError:
    return ConfigError(f"the ledger's URL cannot be read: {why}")


@contextmanager
def _pipelined(connection: psycopg.Connection) -> Generator[None]:
    """A block in which nothing is waited for that is not asked for, where libpq can do that."""
    if not psycopg.Pipeline.is_supported():
        yield
        return
    failure: BaseException | None = None
    try:
        with connection.pipeline():
            try:
                yield
            except BaseException as exc:  # noqa: BLE001 -- raised below
                failure = exc  # else the library logs what it meets behind it
    except psycopg.Error as exc:
        failure = failure or exc
    if failure is not None:
        raise failure


def _translated(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


def _storable(row: Sequence[Any]) -> list[Any]:
    """``row`` without NUL, which no text of PostgreSQL may have: at worst one more copy is made."""
    return [
        value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value
        for value in row
    ]

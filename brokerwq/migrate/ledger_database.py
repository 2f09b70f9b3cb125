"""Where a ledger can be kept: what it needs of a database, and which one a URL names.

One set of statements serves all. They are written in what SQLite and PostgreSQL have in common,
with ``?`` for each value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from brokerwq.clock import Clock
from brokerwq.driver.registry import redacted
from brokerwq.errors import AdapterMissingError, ConfigError
from brokerwq.migrate.ledger_sqlite import SqliteDatabase

T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]


class Statements(Protocol):
    """What a piece of work does in the database; it may be carried out again from its start."""

    def now(self) -> float:
        """The time that all movers of the ledger go by, in seconds since 1970."""
        ...

    def fetch(self, statement: str, values: Sequence[object] = (), /) -> list[Row]:
        """The rows that a statement answers."""
        ...

    def run(self, statement: str, rows: Iterable[Sequence[object]], /) -> None:
        """Run a statement that answers nothing, once for the values of each row."""
        ...


class LedgerDatabase(Statements, Protocol):
    """A database with one ledger. Every call blocks, and belongs on a thread, one at a time.

    All raise ``StoreUnavailableError`` if it does not answer for longer than can be waited for,
    and ``StoreError`` if it refuses. What ``write`` was to do may then have been done, or not.
    """

    @property
    def name(self) -> str:
        """For people, without a password."""
        ...

    def prepare(self, *, create: bool) -> bool:
        """Connect; whether there is a ledger.

        Args:
            create: Whether a missing one is made.

        Raises:
            ConfigError: the place is taken by something else.
            StoreError: the ledger is of another version.
        """
        ...

    def read(self, work: Callable[[Statements], T], /) -> T:
        """What ``work`` finds."""
        ...

    def write(self, work: Callable[[Statements], T], /) -> T:
        """What ``work`` returns, with all that it wrote, or nothing of it.

        Only one such piece of work is under way at a time, whoever does it.
        """
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


def database_at(url: str, clock: Clock) -> LedgerDatabase:
    """The database that ``url`` names; nothing is connected yet.

    Raises:
        ConfigError: it names none.
        AdapterMissingError: its client library is not installed.
    """
    scheme, separator, path = url.partition("://")
    if scheme == "sqlite" and len(path) > 1 and path[0] == "/":
        return SqliteDatabase(path[1:], clock)
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        try:
            from brokerwq.migrate.ledger_postgres import PostgresDatabase  # noqa: PLC0415 -- extra
        except ModuleNotFoundError as exc:
            msg = "a ledger in PostgreSQL needs psycopg: pip install 'brokerwq[psycopg]'"
            raise AdapterMissingError(msg) from exc
        return PostgresDatabase(f"postgresql{separator}{path}", clock)
    msg = (
        f"ledger {redacted(url)!r:.200} must be a file (sqlite:///relative.db or "
        "sqlite:////absolute.db) or in PostgreSQL (postgresql://user@host/database)"
    )
    raise ConfigError(msg)

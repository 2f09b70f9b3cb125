"""What the PostgreSQL store needs of a client library; each library has its own translation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias

Rows: TypeAlias = Sequence[Sequence[Any]]


class Link(Protocol):
    """A connection; errors are the library's own."""

    @property
    def native(self) -> Any:
        """What handlers get as ``tx.conn``."""
        ...

    @property
    def session(self) -> Any:
        """What handlers get as ``tx.session``; raises ``RuntimeError`` where there is none."""
        ...

    @property
    def is_borrowed(self) -> bool:
        """Whether its session has settings of its owner's, and not ours."""
        ...

    @property
    def in_transaction(self) -> bool:
        """Whether one is open."""
        ...

    @property
    def begins_by_itself(self) -> bool:
        """Whether a statement outside of a transaction opens one, for its owner to commit."""
        ...

    async def begin(self, settings: str, /) -> None:
        """Open a transaction, and run ``settings`` in it if that is not empty."""
        ...

    async def fetch(self, statement: str, values: Sequence[Any], /) -> Rows:
        """The rows of one of our statements, whose placeholders are the server's own."""
        ...

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """See ``Transaction.savepoint``."""
        ...

    async def flush(self) -> None:
        """Send what the library still keeps to itself."""
        ...

    def is_ended(self, error: Exception, /) -> bool:
        """Whether the library itself says, with ``error``, that its transaction has ended."""
        ...

    async def commit(self) -> None:
        """Commit what ``begin`` has opened."""
        ...

    async def rollback(self) -> None:
        """Roll back what ``begin`` has opened, whatever its state."""
        ...

    async def give_back(self, *, is_sound: bool) -> None:
        """Hand the connection back to its pool; unless ``is_sound`` it is closed."""
        ...


class Pool(Protocol):
    """Connections of one event loop."""

    @property
    def is_borrowed(self) -> bool:
        """Whether its sessions have settings of their owner's, and not ours."""
        ...

    async def take(self) -> Link:
        """A connection, to be given back."""
        ...

    async def fetch(self, statement: str, values: Sequence[Any], /) -> Rows:
        """The rows of one statement, committed by itself."""
        ...

    async def aclose(self) -> None:
        """Free what is ours of it."""
        ...

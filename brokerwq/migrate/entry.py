"""What a ledger tells: small values."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from brokerwq.migrate.pair import Direction

_SILENT_SECONDS: Final = 60.0
"""A mover that has not shown itself for so long is taken for dead."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A message by its id, and the digest of what must not change on the way."""

    id: str
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Messages of one queue, by id.

    Attributes:
        moved: Accepted by the other side.
        copies: The same, each copy counted.
        pending: Moved, and possibly still at the old side too: a mover died in between.
        refused: Those that do not fit and stay where they are.
    """

    moved: int = 0
    copies: int = 0
    pending: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The last that was done with one message.

    Attributes:
        id: Its id.
        direction: Which way.
        digest: Of what must not change.
        pending: Copies sent whose originals may still be there.
        done: Copies sent whose originals are gone.
        refusal: Why it was not sent; empty if it was.
    """

    id: str
    direction: Direction
    digest: bytes
    pending: int
    done: int
    refusal: str

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        """What a row says, its columns in the order of the attributes."""
        id_, direction, digest, pending, done, refusal = row
        return cls(
            id=id_,
            direction=direction,
            digest=digest,
            pending=pending,
            done=done,
            refusal=refusal or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A mover, from its start to its end.

    Attributes:
        id: Its number in the ledger.
        direction: Which way it moves.
        place: Host and process id.
        started_at: When it began.
        is_alive: It works still, as far as can be told.
        has_ended: It ended in order. One that neither lives nor ended was killed.
    """

    id: int
    direction: Direction
    place: str
    started_at: datetime
    is_alive: bool
    has_ended: bool

    @classmethod
    def of(cls, row: tuple[Any, ...], now: float) -> Self:
        """The mover that a row of ``session`` is about, as it looks at ``now``."""
        id_, direction, host, pid, started, seen, ended = row
        is_silent = now - seen > _SILENT_SECONDS
        is_gone = host == socket.gethostname() and not _is_alive(pid)
        return cls(
            id=id_,
            direction=direction,
            place=f"{host}:{pid}",
            started_at=datetime.fromtimestamp(started, UTC),
            is_alive=ended is None and not is_silent and not is_gone,
            has_ended=ended is not None,
        )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

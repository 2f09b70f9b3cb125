"""What a store's author tells the conformance suite about a store of processed keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, TypeAlias

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.idempotency.record import Claim, Claimed
from brokerwq.idempotency.store import Store

OpenBench: TypeAlias = Callable[[], AbstractAsyncContextManager["StoreBench"]]
"""A store without any record, made ready, and freed at the end of the block."""


class Holder(Protocol):
    """Whoever holds an open transaction: ``Transaction`` of a store, or the ``Tx`` of a job."""

    @property
    def conn(self) -> Any: ...  # noqa: D102

    @property
    def session(self) -> Any: ...  # noqa: D102


class Own(Protocol):
    """A connection or session of the user's own on the store's database."""

    @property
    def tx(self) -> Any:
        """What ``processed`` and ``enqueue(tx=…)`` take."""
        ...

    async def begin(self) -> None:
        """Open a transaction."""
        ...

    async def end(self, word: str, /) -> None:
        """End it, with ``COMMIT`` or ``ROLLBACK``."""
        ...

    async def write(self, n: int, /) -> None:
        """One row in the effects table."""
        ...

    async def run(self, sql: str, /) -> None:
        """One statement, whatever it does to the transaction."""
        ...


Habit: TypeAlias = Callable[[Holder], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work side of a database whose transactions a record can be part of.

    It has a table ``effects`` with one column ``n``, which refuses 1,000 and more.

    Attributes:
        write: One row, as a handler writes it.
        run: One statement as the driver has it: COMMIT, ROLLBACK, BEGIN.
        effects: What is committed, in order.
        own: A connection of the user's own, closed at the end of the block.
        aborts: A failed statement spoils its whole transaction.
        implicit: A statement on ``own`` begins a transaction by itself.
        habits: What handlers do by habit to end a transaction; each must be refused or do
            nothing.
        lose_commit: Within the block the answer to each COMMIT is lost on its way, and the
            connection with it.
        defer: A statement whose constraint is looked at by COMMIT only, and is not met.
        conflict: Makes the open transaction fail as one does that must be repeated as a whole.
    """

    write: Callable[[Holder, int], Awaitable[object]]
    run: Callable[[Holder, str], Awaitable[object]]
    effects: Callable[[], Awaitable[list[int]]]
    own: Callable[[], AbstractAsyncContextManager[Own]]
    aborts: bool
    implicit: bool = False
    habits: Mapping[str, Habit] = field(default_factory=dict[str, Habit])
    lose_commit: Callable[[], AbstractAsyncContextManager[None]] | None = None
    defer: Habit | None = None
    conflict: Habit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBench:
    """One store under test. What is None cannot be checked, and is reported so.

    Attributes:
        store: The store.
        again: Another object on the same data, as another process has; freed with the bench.
        passes: Let so many seconds pass on the store's clock.
        lease: Seconds; the shortest lease that it keeps well. All waiting scales with it.
        skewed: Another object on the same data whose machine's wall clock is so many seconds
            ahead.
        bears_skew: Seconds by which the machines' clocks may differ.
        damage: Spoil the record of a key, as a hand in the database might.
        bare: A store where nothing has been made ready; None where there is nothing to make.
        outdate: Make the data another, later version's.
        outage: The store cannot be reached within the block.
        work: Where its transactions may hold work.
        where: What a process of a test's own needs to open the store; as the tests have it.
    """

    store: Store
    again: Callable[[], Store]
    passes: Callable[[float], Awaitable[object]] = SYSTEM_CLOCK.sleep
    lease: float = 0.3
    skewed: Callable[[float], Store] | None = None
    bears_skew: float = 0.0
    damage: Callable[[bytes], Awaitable[object]] | None = None
    bare: Callable[[], AbstractAsyncContextManager[Store]] | None = None
    outdate: Callable[[], Awaitable[object]] | None = None
    outage: Callable[[], AbstractAsyncContextManager[None]] | None = None
    work: Work | None = None
    where: str = ""

    @property
    def db(self) -> Work:
        """``work``, where a check has asked for it."""
        assert self.work is not None
        return self.work

    @property
    def transactional(self) -> Any:
        """The store, where a check has asked for ``work``."""
        return self.store

    async def over(self) -> None:
        """Let time pass until a lease of ``lease`` seconds is over."""
        await self.passes(self.lease * 1.4)

    def claim(self, key: int = 1, **values: Any) -> Claim:
        """A claim of a new owner, for ``lease`` seconds, see ``a_claim``."""
        return a_claim(key, **{"lease": self.lease, **values})

    async def claimed(self, key: int = 1, **values: Any) -> tuple[Claim, Claimed]:
        """A claim that is granted."""
        claim = self.claim(key, **values)
        answer = await self.store.claim(claim)
        assert isinstance(answer, Claimed), answer
        return claim, answer


_owners = count(1)


def a_claim(key: int = 1, **values: Any) -> Claim:
    """A claim of a new owner, on a key of its own for each number."""
    plain: dict[str, Any] = {
        "key": key.to_bytes(16, "big"),
        "worker": "shop/charge",
        "payload": b"p" * 16,
        "message_id": "m1",
        "generation": 0,
        "owner": next(_owners).to_bytes(16, "big"),
        "lease": 0.3,
        "retention": 1000.0,
    }
    return Claim(**{**plain, **values})

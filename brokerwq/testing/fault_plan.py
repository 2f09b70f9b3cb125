"""What can go wrong with a call, and the plan of what does."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.errors import ConnectionLostError, DriverError

Operation: TypeAlias = Literal[
    "open",
    "send",
    "consume",
    "declare",
    "inspect",
    "purge",
    "queues",
    "claim",
    "ack",
    "extend",
    "release",
    "put_back",
    "dead_letter",
    "quiesce",
]

ALL_OPERATIONS: tuple[Operation, ...] = get_args(Operation)


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise ``error``; the broker is not asked."""

    error: Exception


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Let the broker do it, then raise ``error``, as where a connection is cut too late."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait ``seconds`` on the clock of the faults, then go on."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hang:
    """Never answer; the broker is not asked."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Answer as if all were done; the broker is not asked. A claim brings nothing."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Ask the broker twice, answer what it said first. A claim brings everything twice."""


@dataclass(frozen=True, slots=True)
class Partly:
    """Do it for some items and answer ``error`` for the others.

    Attributes:
        error: The answer of an item that failed.
        share: How large a share of the items fails, each drawn on its own; 1 is all.
        items: Places of the items that fail; None draws by ``share``.
    """

    error: DriverError
    share: float = 0.5
    items: tuple[int, ...] | None = None


Fault: TypeAlias = Fail | LoseAnswer | Delay | Hang | Drop | Duplicate | Partly


@dataclass(slots=True)
class _Rule:
    operation: Operation
    fault: Fault
    skip: int
    times: int | None
    chance: float


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was made: which, on how many items, and what went wrong with it."""

    operation: Operation
    items: int
    fault: Fault | None


@dataclass(slots=True)
class Faults:
    """Which calls go wrong, and a record of all of them.

    Attributes:
        seed: Whatever is drawn at random is the same for the same seed.
        clock: For delays.
        calls: Every call so far, in the order in which they began.
    """

    seed: int = 0
    clock: Clock = SYSTEM_CLOCK
    calls: list[Call] = field(default_factory=list[Call])
    _rules: list[_Rule] = field(default_factory=list[_Rule], init=False)
    _draw: random.Random = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)  # noqa: S311  -- repeatable, not secret

    def add(
        self,
        operation: Operation,
        fault: Fault,
        *,
        skip: int = 0,
        times: int | None = 1,
        chance: float = 1.0,
    ) -> None:
        """Let calls of ``operation`` go wrong. Of several faults the one added first strikes.

        Args:
            operation: A method of ``Driver`` or ``Consumer``.
            fault: What goes wrong.
            skip: How many calls go well before.
            times: How many calls it strikes; None strikes for ever.
            chance: How likely it strikes a call that it may strike.
        """
        self._rules.append(_Rule(operation, fault, skip, times, chance))

    def clear(self) -> None:
        """Let nothing go wrong any more."""
        self._rules.clear()

    @contextmanager
    def outage(self) -> Generator[None]:
        """Within the block every call fails with ``ConnectionLostError``."""
        rules = self._rules
        self._rules = []
        for operation in ALL_OPERATIONS:
            error = ConnectionLostError("an outage on purpose")
            error.__cause__ = OSError("the network is gone")
            self.add(operation, Fail(error), times=None)
        try:
            yield
        finally:
            self._rules = rules

    def next(self, operation: Operation, items: int) -> Fault | None:
        """Note a call, and tell what goes wrong with it."""
        with self._lock:
            fault = self._strike(operation)
            self.calls.append(Call(operation, items, fault))
        return fault

    def _strike(self, operation: Operation) -> Fault | None:
        for rule in self._rules:
            if rule.operation != operation or rule.times == 0:
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if rule.chance < 1.0 and self._draw.random() >= rule.chance:
                continue
            if rule.times is not None:
                rule.times -= 1
            return rule.fault
        return None

    def failing(self, fault: Partly, items: int) -> set[int]:
        """The places of the items that fail."""
        if fault.items is not None:
            return set(fault.items)
        return {nth for nth in range(items) if self._draw.random() < fault.share}

"""Between a played process and the world: its broker and its store are behind a gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, cast

from brokerwq._runtime.guard import Admission, Guard, Skip
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.errors import ConnectionLostError
from brokerwq.job import Child, Job
from brokerwq.outcomes import Outcome, Retry


class Gate:
    """Between a process and the world: open, frozen, or shut for good.

    Attributes:
        state: Which of the three.
        asking: How many calls to the store are under way.
        asking_since: Since when, by the machine's clock.
    """

    def __init__(self) -> None:
        self.state: Literal["open", "frozen", "dead"] = "open"
        self.asking = 0
        self.asking_since = 0.0
        self._changed = asyncio.Event()

    def set(self, state: Literal["open", "frozen", "dead"]) -> None:
        """Change the state."""
        self.state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def passed(self) -> None:
        """Wait while it is frozen.

        Raises:
            ConnectionLostError: it is shut.
        """
        while self.state == "frozen":
            await self._changed.wait()
        if self.state == "dead":
            msg = "this process is dead"
            raise ConnectionLostError(msg)

    async def closed(self) -> None:
        """Wait until it is not open."""
        while self.state == "open":
            await self._changed.wait()

    @contextmanager
    def asking_the_store(self) -> Generator[None]:
        """The store is asked within the block, which takes the machine's time."""
        if not self.asking:
            self.asking_since = SYSTEM_CLOCK.now()
        self.asking += 1
        try:
            yield
        finally:
            self.asking -= 1


class GatedGuard:
    """A guard whose store a frozen process cannot reach. Satisfies ``Guard``."""

    def __init__(
        self, inner: Guard, gate: Gate, admitted: Callable[[GatedAdmission], object]
    ) -> None:
        self._inner = inner
        self._gate = gate
        self._admitted = admitted

    @property
    def longest_wait(self) -> float:
        """See ``Guard.longest_wait``."""
        return self._inner.longest_wait

    async def check(self) -> None:
        """See ``Guard.check``."""
        with self._gate.asking_the_store():
            await self._inner.check()

    async def aclose(self) -> None:
        """Nothing: the other processes are on this loop, too; the app frees the store."""

    async def admit(self, job: Job, payload: object, lease: float, /) -> Admission | Skip:
        """See ``Guard.admit``."""
        await self._gate.passed()
        with self._gate.asking_the_store():
            admitted = await self._inner.admit(job, payload, lease)
        if isinstance(admitted, Skip):
            return admitted
        gated = GatedAdmission(admitted, self._gate)
        self._admitted(gated)
        return cast("Admission", gated)  # by __getattr__ it has all that one has


class GatedAdmission:
    """Satisfies ``Admission``."""

    def __init__(self, inner: Admission, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate
        self._is_over = False

    @property
    def takes_children(self) -> bool:
        """See ``Admission.takes_children``."""
        return self._inner.takes_children

    @property
    def needs_extending(self) -> bool:
        """See ``Admission.needs_extending``."""
        return self._inner.needs_extending

    async def extend(self, seconds: float, /) -> bool:
        """See ``Admission.extend``."""
        await self._gate.passed()
        with self._gate.asking_the_store():
            return await self._inner.extend(seconds)

    async def finish(self, answer: object, children: Sequence[Child], /) -> Skip | None:
        """See ``Admission.finish``."""
        await self._gate.passed()
        self._is_over = True
        with self._gate.asking_the_store():
            return await self._inner.finish(answer, children)

    async def abandon(self, outcome: Outcome, /, *, is_last: bool) -> Skip | None:
        """See ``Admission.abandon``."""
        # Not even a frozen process is waited for: its server ends the transaction for it.
        if self._is_over:
            return None
        self._is_over = True
        with self._gate.asking_the_store():
            return await self._inner.abandon(outcome, is_last=is_last)

    def __getattr__(self, name: str) -> Any:
        """Whatever else an admission may be asked for."""
        return getattr(self._inner, name)

    async def give_up(self) -> None:
        """The process is gone."""
        with suppress(Exception):
            await self.abandon(Retry(), is_last=False)

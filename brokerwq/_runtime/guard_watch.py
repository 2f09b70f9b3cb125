"""While the store of processed keys is down nothing is claimed that needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from brokerwq._runtime.bridge import Bridge
from brokerwq._runtime.guard import Guard
from brokerwq._runtime.lifecycle import Lifecycle
from brokerwq._runtime.pauses import Pauses
from brokerwq.clock import Clock, move_on_after
from brokerwq.errors import StoreUnavailableError
from brokerwq.events import Event, StoreReached, StoreUnreachable

_TROUBLE = "store"
_CHECK_PATIENCE = 10.0


class GuardWatch:
    """Asks the store until it answers: at the start, and after each failure.

    Attributes:
        up: Set while it answers, as far as is known, and for ever once the runner stops.

    Args:
        guards: All guards; they share one store.
        clock: For pauses.
        lifecycle: Told of trouble.
        reconnect_cap: Longest pause between two questions, in seconds.
        emit: Told of outages.
    """

    def __init__(
        self,
        guards: Sequence[Guard],
        *,
        clock: Clock,
        lifecycle: Lifecycle,
        reconnect_cap: float,
        emit: Callable[[Event], object] | None,
    ) -> None:
        self.up = asyncio.Event()
        self._guards = guards
        self._clock = clock
        self._lifecycle = lifecycle
        self._pauses = Pauses(reconnect_cap)
        self._emit = emit
        self._task: asyncio.Task[None] | None = None
        self._pause = 0.0

    def start(self) -> None:
        """Ask for the first time; ``up`` is set once there is a good answer."""
        if self._guards:
            self._watch()
        else:
            self.up.set()

    def failed(self, error: BaseException) -> float:
        """A call of the store has failed with ``error``; seconds until it is worth trying."""
        if self._task is None:
            self.up.clear()
            return self._report(error)
        return self._pause

    async def free(self, bridge: Bridge) -> None:
        """Free what the I/O loop has opened of the store; nothing is extended any more."""
        for guard in self._guards:
            await bridge.call(guard.aclose)

    async def aclose(self) -> None:
        """Stop asking, and hold nobody up."""
        self.up.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _report(self, error: BaseException) -> float:
        pause = self._pause = self._pauses.next()
        text = f"{type(error).__name__}: {error}"[:200]
        self._lifecycle.trouble(_TROUBLE, f"store: {text}")
        if self._emit is not None:
            self._emit(StoreUnreachable(error=text, retry_in=pause))
        if self._task is None:
            self._watch(pause)
        return pause

    def _watch(self, pause: float = 0.0) -> None:
        self._task = asyncio.get_running_loop().create_task(self._ask(pause))

    async def _ask(self, pause: float) -> None:
        while True:
            if pause:
                await self._clock.sleep(pause)
            try:
                await self._ask_once()
                break
            except StoreUnavailableError as error:
                pause = self._report(error)
            except Exception as error:  # noqa: BLE001 -- anything else is there to stay
                self._task = None
                self._lifecycle.fail(error)
                return
        self._task = None
        self._recovered()

    async def _ask_once(self) -> None:
        answered = False
        with move_on_after(self._clock, _CHECK_PATIENCE):
            for guard in self._guards:
                await guard.check()
            answered = True
        if not answered:
            msg = f"no answer within {_CHECK_PATIENCE:g} seconds"
            raise StoreUnavailableError(msg)

    def _recovered(self) -> None:
        self.up.set()
        self._pauses.reset()
        if self._lifecycle.clear(_TROUBLE) and self._emit is not None:
            self._emit(StoreReached())

"""A claim on the source: messages in hand, kept by heartbeats, deleted or put back in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from brokerwq._runtime.bridge import InlineBridge
from brokerwq._runtime.leases import Held, LeaseKeeper
from brokerwq._runtime.pauses import Pauses
from brokerwq.clock import Clock, move_on_after
from brokerwq.dead_letters.returning import return_chunk
from brokerwq.driver.protocol import Delivery, Driver, Mark, capabilities_of
from brokerwq.errors import DriverError, LeaseLostError

_CLOSE_SECONDS = 10.0
_TRIES = 5
_LONGEST_PAUSE = 2.0


class Holding:
    """One consumer at the source.

    Args:
        driver: Open.
        queue: Its name.
        prefetch: How many messages a broker that pushes may send ahead: a mover that is killed
            costs each of them a receive.
        lease: Seconds after which what a killed mover held comes back, where the connection does
            not say that it is gone.
        clock: For everything.
        mark_of: What leaves a message as if it had not been claimed.
    """

    def __init__(
        self,
        driver: Driver,
        queue: str,
        *,
        prefetch: int,
        lease: float,
        clock: Clock,
        mark_of: Callable[[Delivery], Mark],
    ) -> None:
        self._driver = driver
        self._queue = queue
        self._prefetch = prefetch
        self._lease = lease
        self._clock = clock
        self._mark_of = mark_of
        self._keeper: LeaseKeeper | None = None
        self._held: dict[Held, None] = {}

    @property
    def count(self) -> int:
        """How many messages are in hand."""
        return len(self._held)

    async def open(self) -> None:
        """Start to receive.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        lease = min(self._lease, self._driver.capabilities.max_lease)
        consumer = await self._driver.consume(self._queue, lease=lease, prefetch=self._prefetch)
        self._keeper = LeaseKeeper(
            consumer,
            capabilities_of(consumer, self._driver),
            clock=self._clock,
            bridge=InlineBridge(),
            heartbeat=True,
            emit=None,
        )

    async def claim(self, most: int, wait: float) -> list[Held]:
        """Up to ``most`` messages.

        Raises:
            DriverError: the broker could not be asked.
        """
        helds = await self._opened().claim(most, wait)
        self._held.update(dict.fromkeys(helds))
        return helds

    async def delete(self, helds: Sequence[Held]) -> list[DriverError | None]:
        """Delete these at the source; one answer each. One that failed comes back by itself."""
        keeper = self._opened()
        await keeper.stop_beating(helds)
        results: list[DriverError | None] = [None] * len(helds)
        waiting = list(range(len(helds)))
        pauses = Pauses(_LONGEST_PAUSE)
        for _ in range(_TRIES):
            for part in _parts(waiting, keeper.capabilities.max_settle):
                deliveries = [helds[n].delivery for n in part]
                try:
                    answers = await keeper.consumer.ack(deliveries)
                except DriverError as error:
                    answers = [error] * len(part)
                for n, answer in zip(part, answers, strict=True):
                    # What was sent although the lease was over may have been deleted, or not:
                    # it stays open in the ledger.
                    results[n] = answer
            waiting = [n for n in waiting if (e := results[n]) is not None and e.retryable]
            if not waiting:
                break
            await self._clock.sleep(pauses.next())
        self._forget(helds)
        return results

    async def put_back(self, helds: Sequence[Held], delays: Sequence[float]) -> None:
        """Return these, not counted; those that cannot be returned come back by themselves."""
        keeper = self._opened()
        await keeper.stop_beating(helds)
        for part in _parts(range(len(helds)), keeper.capabilities.max_settle):
            limit = keeper.capabilities.max_release_delay
            await return_chunk(
                keeper.consumer,
                [helds[n].delivery for n in part],
                [min(delays[n], limit) for n in part],
                [self._mark_of(helds[n].delivery) for n in part],
                self._clock,
            )
        self._forget(helds)

    async def aclose(self) -> None:
        """Put back what is in hand, and stop to receive."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        with move_on_after(self._clock, _CLOSE_SECONDS) as scope:
            scope.shield = True
            with suppress(DriverError):
                await keeper.consumer.quiesce()
            self._keeper = keeper
            helds = [held for held in self._held if not held.lost]
            await self.put_back(helds, [0.0] * len(helds))
            self._keeper = None
            await keeper.aclose()
            with suppress(DriverError):
                await keeper.consumer.aclose()
        self._held.clear()

    def _forget(self, helds: Sequence[Held]) -> None:
        keeper = self._opened()
        for held in helds:
            keeper.let_go(held)
            self._held.pop(held, None)

    def _opened(self) -> LeaseKeeper:
        if self._keeper is None:
            msg = "the holding is not open"
            raise RuntimeError(msg)
        return self._keeper


def is_lost(error: DriverError | None) -> bool:
    """Whether a deletion failed because the message is no longer ours: it will be met again."""
    return isinstance(error, LeaseLostError)


def _parts(places: Sequence[int], size: int) -> list[Sequence[int]]:
    return [places[start : start + size] for start in range(0, len(places), size)]

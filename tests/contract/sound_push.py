"""A consumer to which messages are pushed, whether or not anybody claims them."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence

from brokerwq.clock import Clock, move_on_after
from brokerwq.driver import Consumer, Delivery, Mark, Results
from brokerwq.errors import ClosedError
from brokerwq.message import DeadLetterNote


class PushedConsumer:
    """Holds up to ``prefetch`` messages of the consumer inside, claimed and unclaimed together."""

    def __init__(self, inner: Consumer, prefetch: int, clock: Clock) -> None:
        self._inner = inner
        self._prefetch = prefetch
        self._clock = clock
        self._buffer: deque[Delivery] = deque()
        self._claimed = 0
        self._has_changed = asyncio.Event()
        self._is_quiesced = False
        self._is_closed = False
        self._pump = asyncio.ensure_future(self._receive())

    @property
    def lease(self) -> float:
        return self._inner.lease

    async def _receive(self) -> None:
        while True:
            room = self._prefetch - self._claimed - len(self._buffer)
            if room > 0:
                self._buffer.extend(await self._inner.claim(room, math.inf))
                self._change()
            else:
                await self._changed()

    def _change(self) -> None:
        self._has_changed.set()
        self._has_changed = asyncio.Event()

    async def _changed(self) -> None:
        await self._has_changed.wait()

    async def claim(self, max_items: int, wait: float, /) -> Sequence[Delivery]:
        with move_on_after(self._clock, wait if wait > 0 else 0.001):
            while not (self._buffer or self._is_quiesced or self._is_closed):
                await self._changed()
        if self._is_closed:
            raise ClosedError("closed")
        got = [self._buffer.popleft() for _ in range(min(max_items, len(self._buffer)))]
        self._claimed += len(got)
        return got

    def _settled(self, results: Results) -> Results:
        self._claimed -= sum(result is None for result in results)
        self._change()
        return results

    async def ack(self, deliveries: Sequence[Delivery], /) -> Results:
        return self._settled(await self._inner.ack(deliveries))

    async def extend(self, deliveries: Sequence[Delivery], seconds: float, /) -> Results:
        return await self._inner.extend(deliveries, seconds)

    async def release(self, deliveries: Sequence[Delivery], delays: Sequence[float], /) -> Results:
        return self._settled(await self._inner.release(deliveries, delays))

    async def put_back(
        self, deliveries: Sequence[Delivery], delays: Sequence[float], marks: Sequence[Mark], /
    ) -> Results:
        return self._settled(await self._inner.put_back(deliveries, delays, marks))

    async def dead_letter(
        self, deliveries: Sequence[Delivery], notes: Sequence[DeadLetterNote], /
    ) -> Results:
        return self._settled(await self._inner.dead_letter(deliveries, notes))

    async def quiesce(self) -> None:
        self._is_quiesced = True
        self._pump.cancel()
        await asyncio.wait({self._pump})
        left = list(self._buffer)
        self._buffer.clear()
        await self._inner.put_back(left, [0.0] * len(left), [Mark()] * len(left))
        self._change()

    async def lose(self) -> None:
        """Return what was not claimed, counted, as a lost connection does."""
        left = list(self._buffer)
        self._buffer.clear()
        await self._inner.release(left, [0.0] * len(left))
        self._change()

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._pump.cancel()
        await asyncio.wait({self._pump})
        await self.lose()
        await self._inner.aclose()

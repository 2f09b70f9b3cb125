"""Messages on their way into a queue, at once or through its delay queues."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence

from brokerwq.clock import Clock
from brokerwq.driver import Results
from brokerwq.driver.rules import rabbitmq as rules
from brokerwq.errors import (
    DriverError,
    MessageRefusedError,
    PermissionDeniedError,
    QueueNotFoundError,
    TransientError,
    UnsupportedError,
)
from brokerwq.message import Message, new_message_id
from brokerwq_rabbitmq import wire
from brokerwq_rabbitmq.publisher import RIGHT, Publisher
from brokerwq_rabbitmq.topology import level_for, level_name
from brokerwq_rabbitmq.transport import Outgoing


class Copier:
    """Sends new messages and copies of received ones; see ``wire`` for the difference."""

    def __init__(self, publisher: Publisher, clock: Clock, timeout: float) -> None:
        self._publisher = publisher
        self._clock = clock
        self._timeout = timeout

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float]
    ) -> Results:
        """Send each message, claimable after its own delay; one answer each.

        Raises:
            DriverError: nothing was sent.
        """
        results: list[DriverError | None] = [None] * len(messages)
        items: list[Outgoing] = []
        places: list[int] = []
        for nth, (message, delay) in enumerate(zip(messages, delays, strict=True)):
            try:
                items.append(self._outgoing(queue, message, delay))
            except (MessageRefusedError, UnsupportedError) as exc:
                results[nth] = exc
            else:
                places.append(nth)
        if items:
            answers = await self._publisher.publish(items, self._timeout)
            for nth, item, answer in zip(places, items, answers, strict=True):
                results[nth] = _about_levels(answer, queue) if item.queue != queue else answer
        return results

    def _outgoing(self, queue: str, message: Message, delay: float) -> Outgoing:
        if delay > rules.LONGEST_DELAY:
            raise rules.delay_refusal(delay)
        due = 0
        if delay > 0:
            level = level_for(delay)
            queue = level_name(queue, level)
            due = math.ceil(self.wall_clock_ms() + delay * 1000) if delay > level else 0
        properties = wire.encode(message, due=due)
        return Outgoing(queue, properties.encode(), message.body, properties.text("message_id"))

    def refusal(
        self, queue: str, message: Message, delay: float, max_frame: int
    ) -> DriverError | None:
        """Why ``send`` would refuse the message for good; None if it would not."""
        try:
            outgoing = self._outgoing(queue, message, delay)
        except (MessageRefusedError, UnsupportedError) as exc:
            return exc
        return wire.size_error(
            outgoing.properties,
            outgoing.body,
            max_body=self._publisher.max_body,
            max_frame=max_frame,
        )

    async def denial(self, words: str) -> PermissionDeniedError | None:
        """Why nothing may be published, as far as the broker says; ``words`` need that.

        It is asked with a message for a queue that nobody has, which it returns.

        Raises:
            TransientError: it takes nothing at all for now.
        """
        answer = await self._sent_nowhere()
        if not isinstance(answer, PermissionDeniedError):
            # Short of memory, it takes the first message of a connection and says so after it.
            answer = await self._sent_nowhere()
        if isinstance(answer, TransientError):
            raise answer
        if not isinstance(answer, PermissionDeniedError):
            return None
        error = PermissionDeniedError(f"the user needs permission to {RIGHT}, to {words}")
        error.__cause__ = answer
        return error

    async def _sent_nowhere(self) -> DriverError | None:
        message = Message(id=new_message_id(), body=b"")
        try:
            (answer,) = await self.send(f"brokerwq-{uuid.uuid4()}", [message], [0.0])
        except DriverError as exc:
            return exc
        return answer

    def wall_clock_ms(self) -> float:
        """Now, as ``due`` is written."""
        return self._clock.utcnow().timestamp() * 1000


def _about_levels(error: DriverError | None, queue: str) -> DriverError | None:
    if not isinstance(error, QueueNotFoundError):
        return error
    better = UnsupportedError(f"queue {queue} has no delay queues; declare it with brokerwq first")
    better.__cause__ = error
    return better

"""Receipt handles as Amazon SQS sees them: which are good, which are over, how many are out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brokerwq.clock import Clock
from brokerwq.driver.rules import sqs
from brokerwq.testing import sqs_checks as checks
from brokerwq.testing.sqs_checks import Refusal


@dataclass(slots=True, eq=False)
class Receipt:
    """One receive of one message.

    Attributes:
        handle: Its handle.
        queue: URL of its queue.
        message: Id of the message.
        taken_at: Clock reading before it was asked for.
        until: Clock reading at which its visibility timeout ends.
        is_deleted: The message was deleted by it.
    """

    handle: str
    queue: str
    message: str
    taken_at: float
    until: float
    is_deleted: bool = False


@dataclass(slots=True)
class Queue:
    """What is remembered of a queue.

    Attributes:
        name: Its name.
        attributes: Its attributes, as they were set.
        latest: The last receipt of each message.
        purged_at: Clock reading of the last purge.
    """

    name: str
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    latest: dict[str, Receipt] = field(default_factory=dict[str, Receipt])
    purged_at: float = -math.inf

    @property
    def is_fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return self.name.endswith(sqs.FIFO)

    def number(self, name: str, default: int) -> int:
        """A numeric attribute."""
        return int(self.attributes.get(name, default))

    def in_flight(self, now: float) -> int:
        """How many messages are received and neither deleted nor visible again."""
        return sum(receipt.until > now for receipt in self.latest.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A handle was used that is not the message's latest, or whose time is over.

    The service answers 200, and it may or may not do what was asked.

    Attributes:
        operation: Of the client.
        queue: Its URL.
        is_reclaimed: Somebody has received the message since.
    """

    operation: str
    queue: str
    is_reclaimed: bool


class Receipts:
    """All handles that were given out.

    Args:
        clock: Time.

    Attributes:
        stale: Uses of outdated handles on standard queues, which have no effect here.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._given: dict[str, Receipt] = {}
        self.stale: list[Stale] = []

    def note(
        self, queue: Queue, url: str, message: Mapping[str, Any], taken_at: float, lease: float
    ) -> None:
        """A message was received."""
        # Counted from after the answer: what is refused must be over for certain.
        until = self._clock.now() + lease
        receipt = Receipt(message["ReceiptHandle"], url, message["MessageId"], taken_at, until)
        self._given[receipt.handle] = queue.latest[receipt.message] = receipt

    def use(
        self, operation: str, queue: Queue, url: str, entry: Mapping[str, Any]
    ) -> tuple[Refusal | None, bool]:
        """Why a handle may not be used, and whether its use shall have no effect."""
        handle = str(entry.get("ReceiptHandle", ""))
        receipt = self._given.get(handle)
        if receipt is None or receipt.queue != url:
            words = f'The input receipt handle "{handle:.60}" is not a valid receipt handle.'
            return Refusal("ReceiptHandleIsInvalid", words), False
        if receipt.is_deleted:
            return None, True
        is_reclaimed = queue.latest.get(receipt.message, receipt) is not receipt
        is_over = is_reclaimed or receipt.until <= self._clock.now()
        if is_over and queue.is_fifo:
            reason = "The receipt handle has expired."
            return checks.parameter("ReceiptHandle", handle, reason), False
        if is_over:
            self.stale.append(Stale(operation=operation, queue=url, is_reclaimed=is_reclaimed))
            # Deleting what nobody else has received works.
            return None, is_reclaimed or "delete" not in operation
        return None, False

    def change(
        self, operation: str, queue: Queue, url: str, entry: Mapping[str, Any]
    ) -> tuple[Refusal | None, bool]:
        """The same of a change of visibility, which is noted."""
        seconds = entry.get("VisibilityTimeout")
        if seconds is None:
            return checks.missing("VisibilityTimeout"), False
        refusal, is_idle = self.use(operation, queue, url, entry)
        receipt = self._given.get(str(entry.get("ReceiptHandle", "")))
        if refusal is not None or receipt is None:
            return refusal, False
        now = self._clock.now()
        refusal = checks.visibility(seconds, now - receipt.taken_at)
        if refusal is None and receipt.is_deleted:
            reason = "Message does not exist or is not available for visibility timeout change."
            refusal = checks.parameter("ReceiptHandle", receipt.handle, reason)
        if refusal is None and not is_idle:
            receipt.until = now + int(seconds)
        return refusal, is_idle and refusal is None

    def deleted(self, queue: Queue, entry: Mapping[str, Any]) -> None:
        """A message was deleted by its handle."""
        receipt = self._given[str(entry["ReceiptHandle"])]
        if queue.latest.get(receipt.message) is receipt:
            del queue.latest[receipt.message]
        receipt.is_deleted = True

"""Which queue a name means: its URL, its limits and its dead-letter queue, looked up once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from brokerwq.driver import QueueSpec, dead_letter_name
from brokerwq.driver.rules.sqs import MAX_BYTES
from brokerwq.errors import PermissionDeniedError
from brokerwq_sqs.client import Api
from brokerwq_sqs.names import QueueName, queue_name, short_name
from brokerwq_sqs.settings import SqsSettings

_SMALLEST_LIMIT: Final = 1024
"""Bytes; no queue can be set to take less (API reference, SetQueueAttributes)."""


@dataclass(slots=True)
class Queue:
    """A queue that exists.

    Attributes:
        label: What brokerwq calls it.
        url: What SQS calls it.
        is_fifo: Whether it keeps groups in order.
        limit: Bytes one message may have; None until it was asked for.
        dead_letter: Where its dead letters go; None until it was asked for.
    """

    label: str
    url: str
    is_fifo: bool
    limit: int | None = None
    dead_letter: Queue | None = None


class Queues:
    """The queues a driver has met."""

    def __init__(self, api: Api, settings: SqsSettings) -> None:
        self._api = api
        self._settings = settings
        self._found: dict[str, Queue] = {}
        self._declared: dict[str, str] = {}

    def named(self, queue: str) -> QueueName:
        """What ``queue`` means. Raises ``ConfigError``."""
        return queue_name(queue, self._settings)

    async def find(self, queue: str) -> Queue:
        """The queue called ``queue``.

        Raises:
            QueueNotFoundError: there is none.
            ConfigError: SQS takes no such name.
        """
        found = self._found.get(queue)
        if found is None:
            name = self.named(queue)
            url = name.url
            if url is None:
                owner: dict[str, Any] = (
                    {} if name.account is None else {"QueueOwnerAWSAccountId": name.account}
                )
                answer = await self._api("get_queue_url", queue, QueueName=name.name, **owner)
                url = str(answer["QueueUrl"])
            found = self.add(queue, url)
        return found

    def add(self, queue: str, url: str) -> Queue:
        """Remember that ``queue`` is at ``url``."""
        self._found[queue] = Queue(queue, url, self.named(queue).is_fifo)
        return self._found[queue]

    def forget(self, queue: str) -> None:
        """Look ``queue`` up again the next time: it may have been made anew."""
        self._found.pop(queue, None)

    def remember(self, spec: QueueSpec) -> None:
        """The dead-letter queue of ``spec`` is the one that ``dead_letter`` sends to.

        Of somebody else's queue that names none, the redrive policy says it.
        """
        if spec.declare == "never" and spec.dead_letter is None:
            return
        self._declared[spec.name] = spec.dead_letter_queue
        found = self._found.get(spec.name)
        if found is not None:
            found.dead_letter = None

    async def attributes(self, queue: Queue, *names: str) -> Mapping[str, str]:
        """Attributes of ``queue``; needs ``sqs:GetQueueAttributes``."""
        answer = await self._api(
            "get_queue_attributes", queue.label, QueueUrl=queue.url, AttributeNames=list(names)
        )
        attributes: dict[str, str] = answer.get("Attributes") or {}
        return attributes

    async def limit(self, queue: Queue, largest: int) -> int:
        """Bytes one message of ``queue`` may have, asked for only if ``largest`` may be above.

        Without the permission to ask it is the service's own limit, and SQS has the last word.
        """
        if queue.limit is None:
            if largest <= _SMALLEST_LIMIT:
                return MAX_BYTES
            found: Mapping[str, str] = {}
            with suppress(PermissionDeniedError):
                found = await self.attributes(queue, "MaximumMessageSize")
            queue.limit = int(found.get("MaximumMessageSize", MAX_BYTES))
        return queue.limit

    async def dead_letter(self, queue: Queue) -> Queue:
        """Where dead letters of ``queue`` go.

        What was declared; else what its redrive policy says; else the default name.

        Raises:
            QueueNotFoundError: it does not exist.
        """
        if queue.dead_letter is None:
            name = self._declared.get(queue.label) or await self._redrive_target(queue)
            queue.dead_letter = await self.find(name or dead_letter_name(queue.label))
        return queue.dead_letter

    async def _redrive_target(self, queue: Queue) -> str | None:
        try:
            policy = redrive_policy(await self.attributes(queue, "RedrivePolicy"))
        except PermissionDeniedError:
            return None
        arn: str | None = policy.get("deadLetterTargetArn")
        return arn and self.name_of(arn)

    def name_of(self, arn: str) -> str:
        """What brokerwq calls the queue at ``arn``: short, if the prefix reaches it."""
        return short_name(arn.rpartition(":")[2], self._settings) or arn


def redrive_policy(attributes: Mapping[str, str]) -> dict[str, Any]:
    """The redrive policy among ``attributes``; empty if there is none."""
    return json_attribute(attributes.get("RedrivePolicy"))


def json_attribute(text: str | None) -> dict[str, Any]:
    """An attribute that holds a JSON object; empty where it does not."""
    try:
        found: object = json.loads(text) if text else {}
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

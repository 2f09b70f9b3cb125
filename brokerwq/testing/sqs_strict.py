"""An SQS client that is as strict as the service: it refuses what emulators let through.

Put between a program and LocalStack or moto, by itself or as ``SqsSettings.clients``::

    strict = StrictSqs(SdkClients(settings))
    SqsSettings(..., clients=strict.clients)

or in a URL: ``sqs://…?clients=brokerwq.testing.sqs_strict:clients``. What the service would refuse
never reaches the emulator: the call raises botocore's ``ClientError``, or the entry is in
``Failed``, with the service's code.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeAlias, cast

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver.rules import sqs
from brokerwq.testing import sqs_checks as checks
from brokerwq.testing.sqs_checks import Refusal
from brokerwq.testing.sqs_receipts import Queue, Receipts, Stale

Factory: TypeAlias = Callable[[Any, Any], AbstractAsyncContextManager[Any]]
Arguments: TypeAlias = dict[str, Any]

MAX_IN_FLIGHT: Final = 120_000
"""Messages of a standard queue that are received and not deleted."""
MAX_IN_FLIGHT_FIFO: Final = 20_000
"""The same of a FIFO queue; a newer quota is higher, and not everywhere."""

_BLOCKED: Final = 60.0
"""Seconds for which a purge, and the name of a deleted queue, is blocked."""


class StrictSqs:
    """The service's rules, and what it remembers for them.

    Args:
        inner: A factory of clients, as ``SqsSettings.clients``.
        in_flight: Messages in flight that a standard queue takes.
        in_flight_fifo: The same of a FIFO queue.
        clock: Time.

    Attributes:
        refused: Every refusal so far, as code and operation.
    """

    def __init__(
        self,
        inner: Factory,
        *,
        in_flight: int = MAX_IN_FLIGHT,
        in_flight_fifo: int = MAX_IN_FLIGHT_FIFO,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._inner = inner
        self._limits = {False: in_flight, True: in_flight_fifo}
        self._clock = clock
        self._queues: dict[str, Queue] = {}
        self._deleted: dict[str, float] = {}
        self._receipts = Receipts(clock)
        self.refused: list[tuple[str, str]] = []

    @property
    def stale(self) -> Sequence[Stale]:
        """Uses of outdated handles on standard queues, which have no effect here."""
        return tuple(self._receipts.stale)

    @asynccontextmanager
    async def clients(self, settings: Any, role: Any) -> AsyncGenerator[Any]:
        """A client factory, see ``SqsSettings.clients``."""
        async with self._inner(settings, role) as client:
            yield self.around(client)

    def around(self, client: Any) -> Any:
        """``client``, made strict: one of aiobotocore or aioboto3."""
        return _StrictClient(client, self)

    # -- queues ----------------------------------------------------------------------------

    async def create_queue(self, client: Any, arguments: Arguments) -> Any:
        """``CreateQueue``."""
        name = str(arguments.get("QueueName", ""))
        attributes: dict[str, str] = arguments.get("Attributes") or {}
        self._require(
            "create_queue",
            checks.queue_name(name, attributes)
            or checks.queue_attributes(name, attributes)
            or self._deleted_recently(name),
        )
        answer = await client.create_queue(**arguments)
        queue = Queue(name, dict(attributes))
        self._queues.setdefault(answer["QueueUrl"], queue)
        return answer

    def _deleted_recently(self, name: str) -> Refusal | None:
        if self._clock.now() - self._deleted.get(name, -math.inf) >= _BLOCKED:
            return None
        return Refusal(
            "QueueDeletedRecently",
            "You must wait 60 seconds after deleting a queue before you can create another with "
            "the same name.",
        )

    async def delete_queue(self, client: Any, arguments: Arguments) -> Any:
        """``DeleteQueue``."""
        queue = await self._queue(client, arguments)
        answer = await client.delete_queue(**arguments)
        self._deleted[queue.name] = self._clock.now()
        self._queues.pop(arguments["QueueUrl"], None)
        return answer

    async def set_queue_attributes(self, client: Any, arguments: Arguments) -> Any:
        """``SetQueueAttributes``."""
        queue = await self._queue(client, arguments)
        attributes: dict[str, str] = arguments.get("Attributes") or {}
        self._require("set_queue_attributes", checks.queue_attributes(queue.name, attributes))
        answer = await client.set_queue_attributes(**arguments)
        queue.attributes.update(attributes)
        return answer

    async def purge_queue(self, client: Any, arguments: Arguments) -> Any:
        """``PurgeQueue``."""
        queue = await self._queue(client, arguments)
        if self._clock.now() - queue.purged_at < _BLOCKED:
            words = f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds."
            self._require("purge_queue", Refusal("PurgeQueueInProgress", words))
        answer = await client.purge_queue(**arguments)
        queue.purged_at = self._clock.now()
        return answer

    async def _queue(self, client: Any, arguments: Arguments) -> Queue:
        url = str(arguments.get("QueueUrl", ""))
        queue = self._queues.get(url)
        if queue is None:
            found = await client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
            name = url.rpartition("/")[2]
            queue = self._queues.setdefault(url, Queue(name, dict(found.get("Attributes") or {})))
        return queue

    # -- messages --------------------------------------------------------------------------

    async def send_message(self, client: Any, arguments: Arguments) -> Any:
        """``SendMessage``."""
        queue = await self._queue(client, arguments)
        self._require("send_message", self._check_message(queue, arguments))
        return await client.send_message(**arguments)

    async def send_message_batch(self, client: Any, arguments: Arguments) -> Any:
        """``SendMessageBatch``."""
        queue = await self._queue(client, arguments)
        entries = _entries(arguments)
        self._require("send_message_batch", checks.batch(entries))
        total = sum(map(checks.size_of_message, entries))
        if total > sqs.MAX_BYTES:
            words = (
                f"Batch requests cannot be longer than {sqs.MAX_BYTES} bytes. "
                f"You have sent {total} bytes."
            )
            self._require("send_message_batch", Refusal("BatchRequestTooLong", words))
        return await self._batch(
            "send_message_batch",
            client,
            arguments,
            lambda entry: self._check_message(queue, entry),
        )

    def _check_message(self, queue: Queue, entry: Mapping[str, Any]) -> Refusal | None:
        return checks.message(
            entry,
            queue.number("MaximumMessageSize", sqs.MAX_BYTES),
            is_fifo=queue.is_fifo,
            dedups=queue.attributes.get("ContentBasedDeduplication", "false") == "true",
        )

    async def receive_message(self, client: Any, arguments: Arguments) -> Any:
        """``ReceiveMessage``."""
        queue = await self._queue(client, arguments)
        self._require("receive_message", checks.receive(arguments, is_fifo=queue.is_fifo))
        room = self._limits[queue.is_fifo] - queue.in_flight(self._clock.now())
        if room <= 0:
            # A long poll, and any poll of a FIFO queue, just finds nothing.
            if not queue.is_fifo and not arguments.get("WaitTimeSeconds"):
                self._require("receive_message", Refusal("OverLimit", "Too many in flight."))
            await self._clock.sleep(float(arguments.get("WaitTimeSeconds", 0)))
            return {}
        asked = {**arguments}
        asked["MaxNumberOfMessages"] = min(arguments.get("MaxNumberOfMessages", 1), room)
        taken_at = self._clock.now()
        answer = await client.receive_message(**asked)
        lease = arguments.get("VisibilityTimeout", queue.number("VisibilityTimeout", 30))
        kept: list[Any] = []
        for message in answer.get("Messages") or ():
            if self._is_too_old(queue, message):
                handle = message["ReceiptHandle"]
                await client.delete_message(QueueUrl=arguments["QueueUrl"], ReceiptHandle=handle)
                continue
            kept.append(message)
            self._receipts.note(queue, arguments["QueueUrl"], message, taken_at, float(lease))
        return {**answer, "Messages": kept} if kept else _without(answer, "Messages")

    def _is_too_old(self, queue: Queue, message: Mapping[str, Any]) -> bool:
        system: Mapping[str, str] = message.get("Attributes") or {}
        sent = system.get("SentTimestamp")
        if sent is None:
            return False
        age = self._clock.utcnow().timestamp() - int(sent) / 1000
        return age > queue.number("MessageRetentionPeriod", 345_600)

    # -- receipts --------------------------------------------------------------------------

    async def delete_message(self, client: Any, arguments: Arguments) -> Any:
        """``DeleteMessage``."""
        queue = await self._queue(client, arguments)
        refusal, is_idle = self._receipts.use(
            "delete_message", queue, arguments["QueueUrl"], arguments
        )
        self._require("delete_message", refusal)
        answer: Any = None if is_idle else await client.delete_message(**arguments)
        self._receipts.deleted(queue, arguments)
        return answer or dict[str, Any]()

    async def delete_message_batch(self, client: Any, arguments: Arguments) -> Any:
        """``DeleteMessageBatch``."""
        queue = await self._queue(client, arguments)
        self._require("delete_message_batch", checks.batch(_entries(arguments)))
        idle: list[Any] = []

        def check(entry: Mapping[str, Any]) -> Refusal | None:
            refusal, is_idle = self._receipts.use(
                "delete_message_batch", queue, arguments["QueueUrl"], entry
            )
            idle.extend([entry] if is_idle else ())
            return refusal

        answer = await self._batch("delete_message_batch", client, arguments, check, idle)
        done = {each["Id"] for each in answer.get("Successful") or ()}
        for entry in _entries(arguments):
            if entry["Id"] in done:
                self._receipts.deleted(queue, entry)
        return answer

    async def change_message_visibility(self, client: Any, arguments: Arguments) -> Any:
        """``ChangeMessageVisibility``."""
        queue = await self._queue(client, arguments)
        refusal, is_idle = self._receipts.change(
            "change_message_visibility", queue, arguments["QueueUrl"], arguments
        )
        self._require("change_message_visibility", refusal)
        return {} if is_idle else await client.change_message_visibility(**arguments)

    async def change_message_visibility_batch(self, client: Any, arguments: Arguments) -> Any:
        """``ChangeMessageVisibilityBatch``."""
        operation = "change_message_visibility_batch"
        queue = await self._queue(client, arguments)
        self._require(operation, checks.batch(_entries(arguments)))
        idle: list[Any] = []

        def check(entry: Mapping[str, Any]) -> Refusal | None:
            refusal, is_idle = self._receipts.change(operation, queue, arguments["QueueUrl"], entry)
            idle.extend([entry] if is_idle else ())
            return refusal

        return await self._batch(operation, client, arguments, check, idle)

    # -- answers ---------------------------------------------------------------------------

    async def _batch(
        self,
        operation: str,
        client: Any,
        arguments: Arguments,
        check: Callable[[Mapping[str, Any]], Refusal | None],
        idle: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """Pass on the entries that are sound and have an effect; answer for the others."""
        entries = _entries(arguments)
        refusals = {str(entry["Id"]): check(entry) for entry in entries}
        failed = [
            {"Id": key, "Code": refusal.code, "Message": refusal.message, "SenderFault": True}
            for key, refusal in refusals.items()
            if refusal is not None
        ]
        self.refused += [(str(each["Code"]), operation) for each in failed]
        passed = [
            entry for entry in entries if refusals[str(entry["Id"])] is None and entry not in idle
        ]
        answer: dict[str, Any] = {}
        if passed:
            answer = await getattr(client, operation)(**{**arguments, "Entries": passed})
        without_effect = [{"Id": entry["Id"]} for entry in idle]
        successful = [*(answer.get("Successful") or ()), *without_effect]
        failures = [*(answer.get("Failed") or ()), *failed]
        return {
            **answer,
            **({"Successful": successful} if successful else {}),
            **({"Failed": failures} if failures else {}),
        }

    def _require(self, operation: str, refusal: Refusal | None) -> None:
        if refusal is None:
            return
        self.refused.append((refusal.code, operation))
        from botocore.exceptions import ClientError  # noqa: PLC0415  -- of the extra

        error = {
            "Code": refusal.code,
            "QueryErrorCode": refusal.code,
            "Message": refusal.message,
            "Type": "Sender",
        }
        status = 403 if refusal.code in ("OverLimit", "PurgeQueueInProgress") else 400
        answer = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}
        raise ClientError(cast("Any", answer), operation)


class _StrictClient:
    def __init__(self, client: Any, rules: StrictSqs) -> None:
        self._client = client
        self._rules = rules

    def __getattr__(self, operation: str) -> Any:
        strict = getattr(self._rules, operation, None) if operation in _STRICT else None
        if strict is None:
            return getattr(self._client, operation)

        async def call(**arguments: Any) -> Any:
            return await strict(self._client, arguments)

        return call


_STRICT: Final = frozenset(
    {
        "create_queue",
        "delete_queue",
        "set_queue_attributes",
        "purge_queue",
        "send_message",
        "send_message_batch",
        "receive_message",
        "delete_message",
        "delete_message_batch",
        "change_message_visibility",
        "change_message_visibility_batch",
    }
)


def clients(settings: Any, role: Any) -> AbstractAsyncContextManager[Any]:
    """Strict clients for a URL: ``?clients=brokerwq.testing.sqs_strict:clients``.

    All that are made in this process share what they remember.
    """
    return _shared.clients(settings, role)


@asynccontextmanager
async def _sdk(settings: Any, role: Any) -> AsyncGenerator[Any]:
    from importlib import import_module  # noqa: PLC0415  -- the adapter, which this must not know

    sdk: Any = import_module("brokerwq_sqs.client")
    async with sdk.SdkClients(settings)(settings, role) as client:
        yield client


_shared: Final = StrictSqs(_sdk)


def _entries(arguments: Arguments) -> Sequence[dict[str, Any]]:
    return cast("Sequence[dict[str, Any]]", arguments.get("Entries") or ())


def _without(answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != name}

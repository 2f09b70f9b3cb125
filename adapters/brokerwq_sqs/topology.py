"""How a queue and its dead-letter queue should be at SQS: compared first, then made."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from brokerwq.driver import Difference, QueueSpec
from brokerwq.driver.rules import sqs as rules
from brokerwq.driver.rules.sqs import LONGEST_RETENTION
from brokerwq.driver.support import no_dead_letter_queue
from brokerwq.errors import PermissionDeniedError, QueueMismatchError, QueueNotFoundError
from brokerwq_sqs.client import Api
from brokerwq_sqs.names import name_of_arn
from brokerwq_sqs.queues import Queue, Queues, json_attribute, redrive_policy

Attributes = Mapping[str, str]


def check_spec(spec: QueueSpec, queues: Queues) -> None:
    """Refuse what SQS will never take, before anything is asked.

    Raises:
        ConfigError: a name or number is out of its range, or the two queues do not fit.
    """
    name = queues.named(spec.name)
    dead = queues.named(spec.dead_letter_queue)
    rules.check_spec(spec, name.name, dead.name)


class Topology:
    """Looks at queues and makes them."""

    def __init__(self, api: Api, queues: Queues) -> None:
        self._api = api
        self._queues = queues

    async def declare(self, spec: QueueSpec, *, check_only: bool) -> Sequence[Difference]:
        """See ``Driver.declare``."""
        check_spec(spec, self._queues)
        if spec.declare == "never":
            # Somebody else's: it has to be there, and is as it is.
            adopted = await self._queues.find(spec.name)
            if check_only and spec.on_dead != "hold":
                await self._require_dead_letter(spec, adopted)
            return []
        may_create = spec.declare == "create" and not check_only
        found = await self._look(spec.name, must_exist=not may_create)
        dead = await self._look(spec.dead_letter_queue, must_exist=not may_create)
        differences = differences_of(spec, found, dead, self._queues)
        if differences or not may_create:
            return differences
        # The dead-letter queue first, since the other one names it: nothing is left half-made.
        arn = await self._make_dead(spec) if dead is None else dead["QueueArn"]
        if found is None:
            try:
                await self._create(spec.name, wanted_attributes(spec, arn))
            except QueueMismatchError:
                # Somebody else was quicker, with another lease perhaps, which does not matter.
                found = await self._look(spec.name, must_exist=True)
                return differences_of(spec, found, None, self._queues)
        return []

    async def _require_dead_letter(self, spec: QueueSpec, found: Queue) -> None:
        self._queues.remember(spec)
        try:
            await self._queues.dead_letter(found)
        except QueueNotFoundError as exc:
            raise no_dead_letter_queue(spec) from exc
        except PermissionDeniedError:
            pass  # it may be there: the first dead letter tells

    async def declare_dead_letter(
        self, spec: QueueSpec, *, check_only: bool
    ) -> Sequence[Difference]:
        """See ``brokerwq.driver.doctor.DeadLetterMaker``."""
        check_spec(spec, self._queues)
        dead = await self._look(spec.dead_letter_queue, must_exist=check_only)
        if dead is None:
            await self._make_dead(spec)
        return []

    async def _look(self, queue: str, *, must_exist: bool) -> Attributes | None:
        try:
            found = await self._queues.find(queue)
            return await self._queues.attributes(found, "All")
        except QueueNotFoundError:
            self._queues.forget(queue)
            if must_exist:
                raise
            return None

    async def _make_dead(self, spec: QueueSpec) -> str:
        name = spec.dead_letter_queue
        await self._create(name, {"MessageRetentionPeriod": str(LONGEST_RETENTION)})
        made = await self._queues.attributes(await self._queues.find(name), "QueueArn")
        arn = made["QueueArn"]
        source = f"{arn.rpartition(':')[0]}:{self._queues.named(spec.name).name}"
        allow = {"redrivePermission": "byQueue", "sourceQueueArns": [source]}
        await self._api(
            "set_queue_attributes",
            name,
            QueueUrl=(await self._queues.find(name)).url,
            Attributes={"RedriveAllowPolicy": json.dumps(allow)},
        )
        return arn

    async def _create(self, queue: str, attributes: dict[str, str]) -> None:
        name = self._queues.named(queue)
        if name.is_fifo:
            attributes = {**attributes, "FifoQueue": "true"}
        answer = await self._api("create_queue", queue, QueueName=name.name, Attributes=attributes)
        self._queues.add(queue, str(answer["QueueUrl"]))


def wanted_attributes(spec: QueueSpec, dead_arn: str) -> dict[str, str]:
    """What the queue of ``spec`` is created with; encryption and tags are left alone."""
    policy = {"deadLetterTargetArn": dead_arn, "maxReceiveCount": spec.broker_limit}
    wanted = {
        "MessageRetentionPeriod": str(_retention(spec)),
        "RedrivePolicy": json.dumps(policy),
    }
    if spec.lease is not None:
        wanted["VisibilityTimeout"] = str(math.ceil(spec.lease))
    return wanted


def differences_of(
    spec: QueueSpec, found: Attributes | None, dead: Attributes | None, queues: Queues
) -> list[Difference]:
    """What of the existing queues is not as ``spec`` says; None stands for a missing queue."""
    differences: list[Difference] = []
    if spec.ordered and not queues.named(spec.name).is_fifo:
        fix = f"call it {spec.name}.fifo, or write ?fifo=true in the URL"
        differences.append(
            Difference(queue=spec.name, property="ordered", wanted=True, found=False, fix=fix)
        )

    def compare(queue: str, name: str, wanted: object, actual: object) -> None:
        if wanted != actual:
            differences.append(Difference(queue=queue, property=name, wanted=wanted, found=actual))

    if found is not None:
        actual = _number(found, "MessageRetentionPeriod")
        compare(spec.name, "retention", _retention(spec), actual)
        policy = redrive_policy(found)
        target = policy.get("deadLetterTargetArn")
        compare(
            spec.name,
            "dead_letter",
            queues.named(spec.dead_letter_queue).name,
            target and name_of_arn(str(target)),
        )
        if target:
            limit = policy.get("maxReceiveCount")
            compare(spec.name, "broker_limit", spec.broker_limit, limit and int(limit))
    if dead is not None:
        name = spec.dead_letter_queue
        # A dead letter's age counts from its first sending: kept less long than the queue
        # keeps a message, it may be gone on arrival.
        kept = _number(dead, "MessageRetentionPeriod")
        if kept < _retention(spec):
            compare(name, "retention", _retention(spec), kept)
        compare(name, "redrive allowed", True, _allows(spec, dead, queues))  # noqa: FBT003
    return differences


def _allows(spec: QueueSpec, dead: Attributes, queues: Queues) -> bool:
    policy = json_attribute(dead.get("RedriveAllowPolicy"))
    kind = policy.get("redrivePermission", "allowAll")
    if kind != "byQueue":
        return bool(kind == "allowAll")
    sources = [name_of_arn(str(arn)) for arn in policy.get("sourceQueueArns") or ()]
    return queues.named(spec.name).name in sources


def _retention(spec: QueueSpec) -> int:
    if spec.retention is None or spec.retention == math.inf:
        return LONGEST_RETENTION
    return math.ceil(spec.retention)


def _number(attributes: Attributes, name: str) -> int:
    return int(attributes.get(name, 0))

"""What ``brokerwq doctor`` says about a queue at SQS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from brokerwq.driver import Difference, QueueSpec
from brokerwq.driver.doctor import Finding
from brokerwq.driver.rules.sqs import LONGEST_RETENTION
from brokerwq.driver.support import declare_command
from brokerwq.errors import PermissionDeniedError, QueueNotFoundError
from brokerwq_sqs.queues import Queues, redrive_policy
from brokerwq_sqs.topology import differences_of

_Level: TypeAlias = Literal["ok", "warning", "error"]

_DAY: Final = 86_400

_WORK: Final = (
    "GetQueueUrl",
    "ReceiveMessage",
    "DeleteMessage",
    "ChangeMessageVisibility",
    "SendMessage",
)
_DEAD: Final = ("GetQueueUrl", "SendMessage")
_LOOK: Final = ("GetQueueAttributes",)
_MAKE: Final = ("CreateQueue",)


async def examine(spec: QueueSpec, queues: Queues) -> list[Finding]:
    """Look at the queue of ``spec``, its dead-letter queue, and say what they need."""
    is_adopted = spec.declare == "never"
    fix = declare_command(spec)
    theirs = f"its owner makes it; if it is yours: {fix}"
    found, findings = await _look(spec.name, queues, theirs if is_adopted else fix)
    dead_name, dead = spec.dead_letter_queue, None
    if is_adopted:
        if spec.dead_letter is None:
            dead_name = _redrive_target(found or {}, queues) or dead_name
        fix = declare_command(spec, dead_letters_only=True)
    if spec.on_dead != "hold":
        dead, more = await _look(dead_name, queues, fix)
        findings += more
    differences = differences_of(spec, found or None, dead or None, queues)
    if is_adopted:
        # The rest is its owner's affair, and no run looks at it.
        differences = [each for each in differences if each.property == "broker_limit"]
    for name, attributes in ((spec.name, found), (dead_name, dead)):
        if attributes is None:
            continue
        own = [
            _different(item, is_ours=not is_adopted) for item in differences if item.queue == name
        ]
        findings += own + _properties(name, attributes, is_ours=not is_adopted)
        if attributes and not own:
            text = "is there, and is as its owner wants it" if is_adopted else "as it should be"
            findings.append(_finding(name, "ok", text))
    findings += permissions(spec, queues)
    return findings


def _redrive_target(found: Mapping[str, str], queues: Queues) -> str | None:
    arn: str | None = redrive_policy(found).get("deadLetterTargetArn")
    return arn and queues.name_of(arn)


async def _look(
    name: str, queues: Queues, fix: str
) -> tuple[Mapping[str, str] | None, list[Finding]]:
    """The attributes of a queue: None if it is not there, empty if they cannot be read."""
    try:
        queues.forget(name)
        return await queues.attributes(await queues.find(name), "All"), []
    except QueueNotFoundError:
        return None, [_finding(name, "error", "does not exist", fix)]
    except PermissionDeniedError as exc:
        text = f"cannot be compared: {exc}"
        return {}, [_finding(name, "warning", text, "see the permissions below")]


def _properties(name: str, attributes: Mapping[str, str], *, is_ours: bool) -> list[Finding]:
    findings: list[Finding] = []
    if attributes.get("FifoQueue") == "true":
        text = "a FIFO queue: no delayed enqueue; a stop and a snooze count as attempts"
        findings.append(_finding(name, "ok", text))
    if attributes.get("KmsMasterKeyId"):
        text = "encrypted with a KMS key: also needs kms:Decrypt and kms:GenerateDataKey on it"
        findings.append(_finding(name, "ok", text))
    kept = int(attributes.get("MessageRetentionPeriod", LONGEST_RETENTION))
    if kept < LONGEST_RETENTION:
        text = f"forgets messages after {kept / _DAY:g} days, also those in work"
        fix = f"set MessageRetentionPeriod to {LONGEST_RETENTION}" if is_ours else ""
        findings.append(_finding(name, "warning", text, fix))
    return findings


def _different(difference: Difference, *, is_ours: bool) -> Finding:
    wanted, found = difference.wanted, difference.found
    text, fix = f"{difference.property} is {found!r}, wanted {wanted!r}", difference.fix
    if difference.property == "broker_limit":
        text = f"SQS gives up by itself after {found} receives, without a note; wanted {wanted}"
        fix = f"set maxReceiveCount in its RedrivePolicy to {wanted}"
    elif difference.property == "dead_letter" and found is None:
        text = "has no redrive policy: what kills its process before it is counted comes for ever"
        fix = f"set its RedrivePolicy to the ARN of {wanted}"
    elif difference.property == "redrive allowed":
        text = "its RedriveAllowPolicy refuses the queue"
        fix = "add the queue's ARN to sourceQueueArns"
    return _finding(difference.queue, "warning", text, fix if is_ours else "")


def permissions(spec: QueueSpec, queues: Queues) -> Sequence[Finding]:
    """Which actions a runner needs on which queue; exactly those that ``spec`` makes it use."""
    looks = _LOOK if spec.declare != "never" or spec.lease is None else ()
    work, dead = (*_WORK, *looks), (*_DEAD, *looks)
    if spec.declare == "create":
        work, dead = (*work, *_MAKE), (*dead, *_MAKE, "SetQueueAttributes")
    names = queues.named(spec.name).name, queues.named(spec.dead_letter_queue).name
    return [
        Finding(
            subject=f"permissions on {name}",
            level="ok",
            text=f"a runner with declare={spec.declare!r} needs {_actions(actions)}",
        )
        for name, actions in zip(names, (work, dead), strict=True)
    ]


def _actions(actions: Sequence[str]) -> str:
    return ", ".join(f"sqs:{action}" for action in dict.fromkeys(actions))


def _finding(queue: str, level: _Level, text: str, fix: str = "") -> Finding:
    return Finding(subject=f"queue {queue}", level=level, text=text, fix=fix)

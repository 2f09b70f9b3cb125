"""What Amazon SQS refuses of a single request, with the codes and words of the service.

From the API reference and from answers recorded at AWS; emulators let most of it through.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from brokerwq.driver.rules import sqs
from brokerwq.driver.rules.sqs_wire import is_legal, is_legal_name, size_of, size_of_text

_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ID: Final = re.compile(r"[!-~]{1,128}")
_TYPE: Final = re.compile(r"(String|Number|Binary)(\..{1,249})?")

_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "DelaySeconds": (0, sqs.MAX_DELAY),
    "MaximumMessageSize": (1024, sqs.MAX_BYTES),
    "MessageRetentionPeriod": (sqs.SHORTEST_RETENTION, sqs.LONGEST_RETENTION),
    "ReceiveMessageWaitTimeSeconds": (0, sqs.LONGEST_POLL),
    "VisibilityTimeout": (0, sqs.LONGEST_VISIBILITY),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of the service."""

    code: str
    message: str


def parameter(name: str, value: object, reason: str) -> Refusal:
    """``InvalidParameterValue`` in the service's words."""
    return Refusal(
        "InvalidParameterValue",
        f"Value {value!s:.100} for parameter {name} is invalid. Reason: {reason}",
    )


def missing(name: str) -> Refusal:
    """``MissingParameter`` in the service's words."""
    return Refusal("MissingParameter", f"The request must contain the parameter {name}.")


def queue_name(name: str, attributes: Mapping[str, str]) -> Refusal | None:
    """What is wrong with a name for ``CreateQueue``."""
    stem = name.removesuffix(sqs.FIFO)
    if len(name) > sqs.MAX_NAME or not _QUEUE_NAME.fullmatch(stem):
        return Refusal(
            "InvalidParameterValue",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )
    is_fifo = attributes.get("FifoQueue", "false").lower() == "true"
    if is_fifo != name.endswith(sqs.FIFO):
        return Refusal(
            "InvalidParameterValue",
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or "
            "underscores, must end with .fifo suffix and be 1 to 80 in length",
        )
    return None


def queue_attributes(name: str, attributes: Mapping[str, str]) -> Refusal | None:
    """What is wrong with attributes of a queue, for ``CreateQueue`` and ``SetQueueAttributes``."""
    is_fifo = name.endswith(sqs.FIFO)
    for each, (least, most) in _RANGES.items():
        text = attributes.get(each)
        if text is not None and not _is_within(text, least, most):
            return Refusal("InvalidAttributeValue", f"Invalid value for the parameter {each}.")
    policy = attributes.get("RedrivePolicy")
    return _redrive_policy(policy, is_fifo=is_fifo) if policy else None


def _redrive_policy(text: str, *, is_fifo: bool) -> Refusal | None:
    try:
        policy: Any = json.loads(text)
        count = str(policy["maxReceiveCount"])
        target = str(policy["deadLetterTargetArn"])
    except (ValueError, KeyError, TypeError):
        return parameter("RedrivePolicy", text, "Redrive policy is not a valid JSON map.")
    if not _is_within(count, 1, sqs.MAX_RECEIVES):
        reason = "Invalid value for maxReceiveCount: must be between 1 and 1000"
        return parameter("RedrivePolicy", text, reason)
    if not target.startswith("arn:"):
        return parameter("RedrivePolicy", text, "deadLetterTargetArn is no ARN")
    if target.endswith(sqs.FIFO) != is_fifo:
        reason = "Dead-letter queue must be same type of queue as the source."
        return parameter("RedrivePolicy", text, reason)
    return None


def batch(entries: Sequence[Mapping[str, Any]]) -> Refusal | None:
    """What is wrong with a batch as a whole."""
    if not entries:
        return Refusal("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > sqs.MAX_ENTRIES:
        return Refusal(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are 10. You have sent {len(entries)}.",
        )
    ids = [str(entry.get("Id", "")) for entry in entries]
    if any(not _ENTRY_ID.fullmatch(each) for each in ids):
        return Refusal(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
            "It can be at most 80 letters long.",
        )
    for each in ids:
        if ids.count(each) > 1:
            return Refusal("BatchEntryIdsNotDistinct", f"Id {each} repeated.")
    return None


def size_of_message(entry: Mapping[str, Any]) -> int:
    """Bytes that a message counts for, attributes included."""
    attributes = _attributes(entry)
    return size_of_text(str(entry.get("MessageBody", ""))) + size_of(attributes.items())


def message(entry: Mapping[str, Any], limit: int, *, is_fifo: bool, dedups: bool) -> Refusal | None:
    """What is wrong with one message.

    Args:
        entry: Arguments of ``SendMessage``, or an entry of its batch.
        limit: The queue's ``MaximumMessageSize``.
        is_fifo: Whether the queue is a FIFO queue.
        dedups: Whether it finds repeated messages by their content.
    """
    body = entry.get("MessageBody")
    if not body:
        return missing("MessageBody")
    if not is_legal(str(body)):
        return Refusal("InvalidMessageContents", "Invalid characters found in the message body.")
    size = size_of_message(entry)
    if size > limit:
        return Refusal(
            "InvalidParameterValue",
            "One or more parameters are invalid. "
            f"Reason: Message must be shorter than {limit} bytes.",
        )
    return (
        _message_attributes(_attributes(entry))
        or _delay(entry, is_fifo=is_fifo)
        or _group(entry, is_fifo=is_fifo, dedups=dedups)
    )


def _attributes(entry: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return cast("Mapping[str, Mapping[str, Any]]", entry.get("MessageAttributes") or {})


def _message_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> Refusal | None:
    if len(attributes) > sqs.MAX_ATTRIBUTES:
        return Refusal(
            "InvalidParameterValue",
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [10].",
        )
    for name, value in attributes.items():
        kind = str(value.get("DataType", ""))
        if not is_legal_name(name):
            return Refusal(
                "InvalidParameterValue", f"Message (user) attribute name {name!r:.100} is invalid."
            )
        if not _TYPE.fullmatch(kind):
            return Refusal(
                "InvalidParameterValue",
                f"The type of message (user) attribute '{name}' is invalid. You must use only the "
                "following supported type prefixes: Binary, Number, String.",
            )
        content = value.get("BinaryValue") or value.get("StringValue")
        if not content:
            return Refusal(
                "InvalidParameterValue",
                f"Message (user) attribute '{name}' must contain a non-empty value of type "
                f"'{kind}'.",
            )
        if isinstance(content, str) and not is_legal(content):
            return Refusal(
                "InvalidParameterValue",
                f"Invalid characters found in the value of message attribute '{name}'.",
            )
    return None


def _delay(entry: Mapping[str, Any], *, is_fifo: bool) -> Refusal | None:
    delay = entry.get("DelaySeconds")
    if delay is None:
        return None
    if is_fifo and delay:
        reason = "The request include parameter that is not valid for this queue type."
        return parameter("DelaySeconds", delay, reason)
    if not _is_within(delay, 0, sqs.MAX_DELAY):
        return parameter("DelaySeconds", delay, "DelaySeconds must be >= 0 and <= 900.")
    return None


def _group(entry: Mapping[str, Any], *, is_fifo: bool, dedups: bool) -> Refusal | None:
    group, dedup = entry.get("MessageGroupId"), entry.get("MessageDeduplicationId")
    if is_fifo and not group:
        return missing("MessageGroupId")
    if is_fifo and not dedup and not dedups:
        return Refusal(
            "InvalidParameterValue",
            "The queue should either have ContentBasedDeduplication enabled or "
            "MessageDeduplicationId provided explicitly",
        )
    if not is_fifo and dedup is not None:
        reason = "The request include parameter that is not valid for this queue type."
        return parameter("MessageDeduplicationId", dedup, reason)
    for name, value in (("MessageGroupId", group), ("MessageDeduplicationId", dedup)):
        if value is not None and not _ID.fullmatch(str(value)):
            reason = f"{name} can only include alphanumeric and punctuation characters. 1 to 128"
            return parameter(name, value, reason)
    return None


def receive(arguments: Mapping[str, Any], *, is_fifo: bool) -> Refusal | None:
    """What is wrong with a ``ReceiveMessage``."""
    if not _is_within(arguments.get("MaxNumberOfMessages", 1), 1, sqs.MAX_ENTRIES):
        value = arguments["MaxNumberOfMessages"]
        reason = "Must be between 1 and 10, if provided."
        return parameter("MaxNumberOfMessages", value, reason)
    if not _is_within(arguments.get("WaitTimeSeconds", 0), 0, sqs.LONGEST_POLL):
        value = arguments["WaitTimeSeconds"]
        return parameter("WaitTimeSeconds", value, "Must be >= 0 and <= 20, if provided.")
    attempt = arguments.get("ReceiveRequestAttemptId")
    if attempt is not None and (not is_fifo or not _ID.fullmatch(str(attempt))):
        reason = "The request include parameter that is not valid for this queue type."
        return parameter("ReceiveRequestAttemptId", attempt, reason)
    return visibility(arguments.get("VisibilityTimeout", 0))


def visibility(seconds: object, elapsed: float = 0.0) -> Refusal | None:
    """What is wrong with a visibility timeout, ``elapsed`` seconds after the receive."""
    if not _is_within(seconds, 0, sqs.LONGEST_VISIBILITY):
        reason = "VisibilityTimeout must be an integer between 0 and 43200"
        return parameter("VisibilityTimeout", seconds, reason)
    if elapsed and int(str(seconds)) + elapsed > sqs.LONGEST_VISIBILITY:
        reason = (
            "Total VisibilityTimeout for the message is beyond the limit "
            f"[{sqs.LONGEST_VISIBILITY} seconds]"
        )
        return parameter("VisibilityTimeout", seconds, reason)
    return None


def _is_within(value: object, least: int, most: int) -> bool:
    try:
        return least <= int(str(value)) <= most
    except ValueError:
        return False

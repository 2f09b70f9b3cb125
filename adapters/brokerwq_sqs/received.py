"""What a receive brought: a native SQS message read as a ``Message``. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from brokerwq import envelope
from brokerwq.message import Message
from brokerwq_sqs import wire

SYSTEM_ATTRIBUTES = [
    "ApproximateReceiveCount",
    "SentTimestamp",
    "MessageGroupId",
    "MessageDeduplicationId",
    "SequenceNumber",
    "DeadLetterQueueSourceArn",
    "AWSTraceHeader",
]
"""What is asked for: reading more costs a tenth of a receive."""

_POINTERS = ("ExtendedPayloadSize", "SQSLargePayloadSize")


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One received message.

    Attributes:
        message: Its decoded self.
        receives: How often the broker has handed it out.
        defect: What could not be read.
        is_offloaded: The body only says where in S3 the payload is.
        is_foreign: Somebody else wrote it: a copy keeps body and attributes as they are.
        body: The native body.
        attributes: The native attributes.
        system: The broker's own attributes.
        native_id: The id that the broker gave this copy.
    """

    message: Message
    receives: int
    defect: str
    is_offloaded: bool
    is_foreign: bool
    body: str
    attributes: Mapping[str, Mapping[str, Any]]
    system: Mapping[str, str]
    native_id: str


class SqsRaw(dict[str, object]):
    """``Message.raw`` of a message from SQS; see ``brokerwq.driver.moving.NativeRaw``."""

    __slots__ = ()

    def untranslatable(self) -> Sequence[str]:
        """Attributes that are no text, and so no header anywhere else."""
        attributes = self.get("MessageAttributes")
        if not isinstance(attributes, Mapping):
            return []
        native = cast("wire.NativeAttributes", attributes)
        return [name for name, value in native.items() if value.get("DataType") != "String"]


def read(native: Mapping[str, Any], *, unwrap_sns: bool = False) -> Received:
    """Decode ``native``, an entry of ``Messages``. Never raises for what a sender wrote."""
    attributes: Mapping[str, Mapping[str, Any]] = native.get("MessageAttributes") or {}
    system: Mapping[str, str] = native.get("Attributes") or {}
    text: str = native.get("Body", "")
    headers, attributes, defects = _headers(attributes)
    body, defect = wire.decode_body(text, headers.pop(wire.BODY, None))
    is_foreign = envelope.V not in headers and envelope.TYPE not in headers
    raw = SqsRaw()
    if envelope.V not in headers:
        raw = _raw(native, attributes, system)
        if unwrap_sns:
            body, headers = _without_sns(body, headers, raw)
    is_offloaded = bool(raw) and any(name in attributes for name in _POINTERS)
    if is_offloaded:
        defects.append("the body only says where in S3 the payload is")
    message, unread = envelope.decode(headers, body)
    message = _completed(message, native, system, raw)
    return Received(
        message=message,
        receives=_count(system.get("ApproximateReceiveCount")),
        defect=", ".join(part for part in (*defects, defect, unread) if part),
        is_offloaded=is_offloaded,
        is_foreign=is_foreign,
        body=text,
        attributes=attributes,
        system=system,
        native_id=native.get("MessageId", ""),
    )


def _headers(
    attributes: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, str], Mapping[str, Mapping[str, Any]], list[str]]:
    """Headers from all attributes, the attributes with moved ones back, and defects."""
    plain: dict[str, str] = {}
    packed: dict[str, str] = {}
    defects: list[str] = []
    moved: dict[str, dict[str, Any]] = {}
    for name, value in attributes.items():
        text = value.get("StringValue")
        if text is None:
            continue
        if name not in (wire.PACKED, wire.MARK):
            plain[name] = text
            continue
        found = wire.unpack(text)
        if found is None and name == wire.MARK:
            plain[name] = text  # somebody else's attribute of that name
            continue
        if found is None:
            defects.append(f"{name} is no JSON object")
            continue
        moved |= wire.restored(found.pop(wire.MOVED, None))
        for header, content in found.items():
            if isinstance(content, str):
                packed[header] = content
            else:
                defects.append(f"{name}: {header!r:.50} is no text")
    plain |= {name: value["StringValue"] for name, value in moved.items() if "StringValue" in value}
    # Plain ones win: what lies between sender and runner may renew the trace context.
    return packed | plain, ({**attributes, **moved} if moved else attributes), defects


def _completed(
    message: Message,
    native: Mapping[str, Any],
    system: Mapping[str, str],
    raw: Mapping[str, object],
) -> Message:
    if not raw:
        return message
    return replace(
        message,
        id=message.id or native.get("MessageId", ""),
        created_at=message.created_at or _moment(system.get("SentTimestamp")),
        group=message.group or system.get("MessageGroupId"),
        raw=raw,
    )


def _moment(milliseconds: str | None) -> datetime | None:
    if milliseconds is None or not milliseconds.isdigit():
        return None
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 1


def _raw(
    native: Mapping[str, Any],
    attributes: Mapping[str, Mapping[str, Any]],
    system: Mapping[str, str],
) -> SqsRaw:
    """The native message in the service's own shape, without what brokerwq noted on it."""
    return SqsRaw(
        {
            "MessageId": native.get("MessageId", ""),
            "Body": native.get("Body", ""),
            "Attributes": dict(system),
            "MessageAttributes": {
                name: value for name, value in attributes.items() if name != wire.MARK
            },
        }
    )


def _without_sns(
    body: bytes, headers: dict[str, str], raw: dict[str, object]
) -> tuple[bytes, dict[str, str]]:
    """What Amazon SNS wrapped; anything that only looks a little like it stays as it is."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return body, headers
    match found:
        case {"Type": "Notification", "TopicArn": str(), "Message": str(text), **rest}:
            lifted = {
                name: value["Value"]
                for name, value in _entries(rest.get("MessageAttributes"))
                if isinstance(value.get("Value"), str) and value.get("Type") != "Binary"
            }
            raw["Sns"] = {name: value for name, value in found.items() if name != "Message"}
            sns_id = rest.get("MessageId")
            known = {envelope.ID: sns_id} if isinstance(sns_id, str) and sns_id else {}
            return text.encode("utf-8", "surrogatepass"), known | lifted | headers
        case _:
            return body, headers


def _entries(attributes: object) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(attributes, dict):
        return []
    entries = cast("dict[str, object]", attributes).items()
    return [
        (name, cast("dict[str, Any]", value)) for name, value in entries if isinstance(value, dict)
    ]

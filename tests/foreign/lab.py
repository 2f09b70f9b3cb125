"""Messages of other programs, as those programs write them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from brokerwq import Message
from brokerwq.codecs import ForeignCodec
from brokerwq.errors import EnvelopeError


def task(
    name: str,
    /,
    *args: object,
    workflow: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
    id_: str = "task-1",
    **kwargs: object,
) -> Message:
    """A task of Celery's protocol 2 where the broker has headers."""
    body = [args, kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    body[2] = {**body[2], **(workflow or {})}  # type: ignore[dict-item]
    return Message(
        id="",
        body=json.dumps(body).encode(),
        content_type="application/json",
        headers={"lang": "py", "task": name, "id": id_, **(headers or {})},
    )


def enveloped(message: Message, *, outer: bool = True, **properties: object) -> Message:
    """The same where it has none: kombu's envelope."""
    envelope: dict[str, Any] = {
        "body": base64.b64encode(message.body).decode(),
        "content-encoding": "utf-8",
        "content-type": message.content_type,
        "headers": {**message.headers, "retries": 0, "timelimit": [None, None], "shadow": None},
        "properties": {"correlation_id": "task-1", "body_encoding": "base64", **properties},
    }
    text = json.dumps(envelope).encode()
    return Message(id="", body=base64.b64encode(text) if outer else text)


def dramatiq_message(actor: str, /, *args: object, id_: str = "dq-1", **fields: Any) -> Message:
    """A message of Dramatiq."""
    body = {
        "queue_name": "default",
        "actor_name": actor,
        "args": args,
        "kwargs": fields.pop("kwargs", {}),
        "options": fields.pop("options", {}),
        "message_id": id_,
        "message_timestamp": 1_790_000_000_000,
        **fields,
    }
    return Message(id="", body=json.dumps(body, separators=(",", ":")).encode())


def taskiq_message(name: str, /, *args: object, id_: str = "tq-1", **fields: Any) -> Message:
    """A message of Taskiq."""
    body: dict[str, Any] = {
        "task_id": id_,
        "task_name": name,
        "labels": {},
        "labels_types": {},
        "args": args,
        "kwargs": {},
        **fields,
    }
    return Message(id="", body=json.dumps(body).encode())


def sns_envelope(text: str, **changes: Any) -> Message:
    """What SNS puts into a queue, unless delivery is raw."""
    envelope = {
        "Type": "Notification",
        "MessageId": "sns-1",
        "TopicArn": "arn:aws:sns:eu-central-1:000000000000:orders",
        "Message": text,
        "Timestamp": "2026-09-21T14:13:20.123Z",
        **changes,
    }
    return Message(id="native", body=json.dumps(envelope).encode())


def refusal(codec: ForeignCodec, message: Message) -> str:
    """Why ``codec`` lets nobody run ``message``."""
    try:
        reading = codec.read(message)
    except EnvelopeError as error:
        return str(error)
    assert reading.defect
    return reading.defect

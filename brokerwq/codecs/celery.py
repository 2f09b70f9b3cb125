"""Celery's tasks: message protocol 2, on every broker that kombu sends to.

Where the broker has headers (RabbitMQ), Celery's are among them and the body is JSON:
``[args, kwargs, workflow]``. Where it has none (SQS), kombu writes one JSON object with
headers, properties and that body in base64, by default in base64 once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final, Literal, cast
from uuid import UUID

from brokerwq.codecs import coding, strict
from brokerwq.codecs.call import check_choice, completed, in_utc, refuse_workflow
from brokerwq.codecs.plain import is_json
from brokerwq.errors import EnvelopeError
from brokerwq.foreign import Arguments, Expired, Reading, is_unicode
from brokerwq.message import Message

_TASK: Final = "task"
_WORKFLOW: Final = ("callbacks", "errbacks", "chain", "chord")
_TYPE, _VALUE = "__type__", "__value__"


@dataclass(frozen=True, slots=True)
class CeleryCodec:
    """Reads Celery's tasks; the type of a message is the name of its task.

    Attributes:
        expired: What becomes of a task whose ``expires`` is over; Celery drops it.
        workflows: A task with a ``link``, ``link_error``, chain or chord is a dead letter,
            for nobody here goes on with those; ``ignore`` runs the task and drops them.
    """

    expired: Expired = "discard"
    workflows: Literal["refuse", "ignore"] = "refuse"

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice(self.expired, "expired", "discard", "dead-letter")
        check_choice(self.workflows, "workflows", "refuse", "ignore")

    def read(self, message: Message, /) -> Reading:
        """See ``ForeignCodec.read``."""
        task = _by_headers(message) or _by_envelope(message)
        known = Reading(
            type=_text(task.headers, _TASK),
            id=_text(task.headers, "id") or task.correlation_id,
            headers=task.texts,
            raw=task.raw,
        )
        return completed(known, lambda known: self._whole(task, known))

    def _whole(self, task: _Task, known: Reading) -> Reading:
        if task.content_type and not is_json(task.content_type):
            msg = f"content type is {task.content_type!r:.100}; of Celery's only JSON is read"
            raise EnvelopeError(msg)
        body = coding.decompressed(_body_of(task), _text(task.headers, "compression"))
        body = coding.as_utf8(body, task.content_type, task.content_encoding)
        args, kwargs, workflow = _parts(body)
        if self.workflows == "refuse":
            refuse_workflow("task", [name for name in _WORKFLOW if workflow.get(name)])
        return replace(
            known,
            body=body,
            content_type=task.content_type,
            arguments=Arguments(args, kwargs),
            not_before=_moment(task.headers, "eta"),
            expires=_moment(task.headers, "expires"),
            expired=self.expired,
            raw={**task.raw, "Celery": {"headers": task.headers, "workflow": workflow}},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    body: object
    packing: object
    content_type: str
    content_encoding: str
    correlation_id: str
    headers: Mapping[str, object]
    texts: Mapping[str, str]
    raw: Mapping[str, object]


def _by_headers(message: Message) -> _Task | None:
    native = message.raw.get("headers")
    headers = cast("Mapping[str, object]", native if isinstance(native, dict) else message.headers)
    if not headers.get(_TASK):
        return None
    content_type, content_encoding = coding.declared(message)
    correlation_id = message.raw.get("correlation_id")
    return _Task(
        body=message.body,
        packing=None,
        content_type=content_type,
        content_encoding=content_encoding,
        correlation_id=correlation_id if isinstance(correlation_id, str) else "",
        headers=headers,
        texts={},
        raw={},
    )


def _by_envelope(message: Message) -> _Task:
    body = message.body
    if not body.lstrip().startswith(b"{"):
        body = coding.unbase64(body, "a body without Celery's headers, which kombu would pack,")
    envelope = strict.parse_object(body, "kombu's envelope")
    if _TASK in envelope:
        msg = "it is a task of Celery's message protocol 1; set task_protocol = 2 at its producer"
        raise EnvelopeError(msg)
    headers = _mapping(envelope, "headers")
    properties = _mapping(envelope, "properties")
    if not headers.get(_TASK):
        msg = "there is no header 'task': it is no task of Celery's message protocol 2"
        raise EnvelopeError(msg)
    texts = {
        name: text
        for name, text in headers.items()
        if isinstance(text, str) and is_unicode(text) and is_unicode(name)
    }
    content_type = _text(envelope, "content-type")
    content_encoding = _text(envelope, "content-encoding")
    packing = properties.get("body_encoding")
    if packing is None:
        content_type, content_encoding = coding.of_text(content_type, content_encoding)
    return _Task(
        body=envelope.get("body"),
        packing=packing,
        content_type=content_type,
        content_encoding=content_encoding,
        correlation_id=_text(properties, "correlation_id"),
        headers=headers,
        texts=texts,
        raw={"Kombu": {name: value for name, value in envelope.items() if name != "body"}},
    )


def _body_of(task: _Task) -> bytes:
    if isinstance(task.body, bytes):
        return task.body
    if not isinstance(task.body, str) or not is_unicode(task.body):
        msg = "kombu's envelope has no body"
        raise EnvelopeError(msg)
    if task.packing not in (None, "base64"):
        msg = f"body encoding {task.packing!r:.50} is not known here"
        raise EnvelopeError(msg)
    packed = task.body.encode()
    return coding.unbase64(packed, "kombu's body") if task.packing else packed


def _mapping(holder: Mapping[str, object], name: str) -> dict[str, object]:
    found = holder.get(name)
    if not isinstance(found, dict):
        msg = f"kombu's envelope has no {name}"
        raise EnvelopeError(msg)
    return cast("dict[str, object]", found)


def _text(holder: Mapping[str, object], name: str) -> str:
    found = holder.get(name)
    if found is None:
        return ""
    if not isinstance(found, str):
        msg = f"{name} is no text"
        raise EnvelopeError(msg)
    return found


def _moment(headers: Mapping[str, object], name: str) -> datetime | None:
    text = _text(headers, name)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{name} is no moment of ISO 8601"
        raise EnvelopeError(msg) from None
    # Without an offset it is UTC to Celery as well, unless its app was told otherwise.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else in_utc(moment)


def _parts(body: bytes) -> tuple[list[object], dict[str, object], dict[str, object]]:
    found: Any = strict.parse(body, "the task")
    parts = cast("list[object]", found) if isinstance(found, list) else []
    if [type(part) for part in parts] != [list, dict, dict]:
        msg = "the body is not [args, kwargs, workflow], as of Celery's protocol 2"
        raise EnvelopeError(msg)
    args, kwargs, workflow = parts
    try:
        # Not of the pair of them: somebody's kwargs may have the very names of kombu's marks.
        given = (
            _restored(args),
            {name: _restored(value) for name, value in cast("dict[str, object]", kwargs).items()},
        )
    except RecursionError:
        msg = "the task is nested too deeply"
        raise EnvelopeError(msg) from None
    return cast("list[object]", given[0]), given[1], cast("dict[str, object]", workflow)


def _restored(value: object) -> object:
    """``value`` with what kombu writes for the types that JSON does not have turned back."""
    if isinstance(value, list):
        return [_restored(part) for part in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, object]", value)
    if entries.keys() != {_TYPE, _VALUE}:
        return {name: _restored(part) for name, part in entries.items()}
    kind, written = entries[_TYPE], entries[_VALUE]
    try:
        return _made(kind, written)
    except (ValueError, TypeError, ArithmeticError):
        msg = f"a value of kombu's type {kind!r:.50} cannot be read"
        raise EnvelopeError(msg) from None


def _made(kind: object, written: object) -> object:  # noqa: PLR0911  -- a table of types
    match kind, written:
        case "uuid", {"hex": str(text)}:
            return UUID(hex=text)
        case "datetime", str(text):
            return datetime.fromisoformat(text)
        case "date", str(text):
            return date.fromisoformat(text[:10])
        case "time", str(text):
            return time.fromisoformat(text)
        case "decimal", str(text):
            return Decimal(text)
        case "bytes", str(text):
            return text.encode()
        case "base64", str(text):
            return coding.unbase64(text.encode(), "a value")
        case _:
            raise TypeError

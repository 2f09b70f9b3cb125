"""``Message`` ⇄ the columns of a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias, cast

from brokerwq import envelope
from brokerwq.driver import Delivery, Mark
from brokerwq.errors import MessageTooLargeError
from brokerwq.message import DeadLetterNote, Message

INLINE_BODY_BYTES: Final = 3000
"""Longer bodies live in ``large_body``. With these a row nearly always fits its 4,096-byte page."""

Row: TypeAlias = tuple[float, str, str, str, int | None, str | None, str | None, bytes]
"""delay, id, type, content_type, created, headers, envelope, body."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Claimed(NamedTuple):
    """A row that was just leased; the columns as SQLite gave them, ``body`` filled in."""

    seq: int
    at: float
    receives: int
    id: Any
    type: Any
    content_type: Any
    created: Any
    headers: Any
    envelope: Any
    body: Any


def row_of(message: Message, delay: float, max_bytes: float) -> Row:
    """The columns of a new message.

    Raises:
        MessageTooLargeError: it is above ``max_bytes``.
    """
    headers = _dump(message.headers) if message.headers else None
    state = _dump(envelope.encode_state(message)) if _has_state(message) else None
    size = len(message.body) + len(headers or "") + len(state or "")
    if size > max_bytes:
        msg = f"message {message.id!r:.200} has {size} bytes; the limit is {max_bytes:g}"
        raise MessageTooLargeError(msg)
    created = message.created_at
    return (
        delay,
        message.id,
        message.type,
        message.content_type,
        None if created is None else int(envelope.milliseconds(created)),
        headers,
        state,
        message.body,
    )


def marked(message: Message, mark: Mark) -> str | None:
    """The ``envelope`` column of ``message`` once it carries ``mark``."""
    return _envelope_of(mark.on(message))


def buried(message: Message, note: DeadLetterNote) -> str | None:
    """The ``envelope`` column of ``message`` as a dead letter, its attempts spent elsewhere."""
    return _envelope_of(replace(message, attempts=0, dead=note))


def delivery_of(row: Claimed, token: int, queue: str, lease_left: float) -> Delivery:
    """One receive of ``row``. What cannot be read becomes the delivery's ``defect``."""
    message, defect = message_of(row)
    return Delivery(
        message=message,
        queue=queue,
        handle=(row.seq, token + row.seq),
        receives=row.receives,
        lease_left=lease_left,
        defect=defect,
    )


def _envelope_of(message: Message) -> str | None:
    return _dump(envelope.encode_state(message)) if _has_state(message) else None


def _dump(headers: Mapping[str, str]) -> str:
    return json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))


def _has_state(message: Message) -> bool:
    # Building the state of every message, to find it empty, would double the cost of a send.
    return bool(
        message.attempts
        or message.redrives
        or message.suspect
        or message.snoozed
        or message.key is not None
        or message.group is not None
        or message.cause is not None
        or message.not_before is not None
        or message.unknown_since is not None
        or message.dead is not None
    )


def message_of(row: Claimed) -> tuple[Message, str]:
    """What ``row`` says, and what of it cannot be read."""
    if (
        row.envelope is None
        and row.headers is None
        and type(row.body) is bytes
        and type(row.created) is int
        and type(row.id) is str
        and type(row.type) is str
        and type(row.content_type) is str
    ):
        try:
            created = _EPOCH + row.created * _MILLISECOND
        except OverflowError:
            return _read(row)
        return (
            Message(
                id=row.id,
                body=row.body,
                type=row.type,
                content_type=row.content_type,
                created_at=created,
            ),
            "",
        )
    return _read(row)


def _read(row: Claimed) -> tuple[Message, str]:
    defects: list[str] = []
    flat = _load("headers", row.headers, defects) | _load("envelope", row.envelope, defects)
    for name, column, value in (
        (envelope.ID, "id", row.id),
        (envelope.TYPE, "type", row.type),
        (envelope.CONTENT_TYPE, "content_type", row.content_type),
    ):
        if isinstance(value, str):
            flat[name] = value
        else:
            defects.append(f"{column}={value!r:.50}")
    if row.created is not None:
        flat[envelope.CREATED] = str(row.created)
    body = row.body
    if not isinstance(body, bytes):
        defects.append("the body is missing" if body is None else f"body={body!r:.50}")
        body = body.encode(errors="surrogateescape") if isinstance(body, str) else b""
    message, defect = envelope.decode(flat, body)
    return message, ", ".join([*defects, defect] if defect else defects)


def _load(column: str, text: object, defects: list[str]) -> dict[str, str]:
    if text is None:
        return {}
    try:
        loaded: object = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        loaded = text
    if not isinstance(loaded, dict):
        defects.append(f"{column}={text!r:.50}")
        return {}
    pairs = cast("dict[object, object]", loaded)  # what JSON holds, nobody can know
    sound = {
        name: value
        for name, value in pairs.items()
        if isinstance(name, str) and isinstance(value, str)
    }
    if len(sound) != len(pairs):
        defects.append(f"{column} holds what is not text")
    return sound

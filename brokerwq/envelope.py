"""The wire format: a ``Message`` as flat text headers beside an opaque body, and back.

Names are lower case and ``bwq-`` is reserved. Producers in any language may write them:
``docs/wire.md`` is the same table for people. Adapters decide where a header lives at their
broker; its name and text are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, cast

from brokerwq.errors import ConfigError
from brokerwq.foreign import is_unicode
from brokerwq.message import DeadLetterNote, Message

VERSION: Final = "1"

V: Final = "bwq-v"
ID: Final = "bwq-id"
TYPE: Final = "bwq-type"
CONTENT_TYPE: Final = "content-type"
CREATED: Final = "bwq-created"
NOT_BEFORE: Final = "bwq-not-before"
ATTEMPTS: Final = "bwq-attempts"
REDRIVES: Final = "bwq-redrives"
KEY: Final = "bwq-key"
GROUP: Final = "bwq-group"
CAUSE: Final = "bwq-cause"
SUSPECT: Final = "bwq-suspect"
UNKNOWN_SINCE: Final = "bwq-unknown-since"
SNOOZED: Final = "bwq-snoozed"
DEAD_REASON: Final = "bwq-dead-reason"
DEAD_ERROR_TYPE: Final = "bwq-dead-error-type"
DEAD_ERROR: Final = "bwq-dead-error"
DEAD_DIGEST: Final = "bwq-dead-digest"
DEAD_ATTEMPTS: Final = "bwq-dead-attempts"
DEAD_QUEUE: Final = "bwq-dead-queue"
DEAD_FIRST: Final = "bwq-dead-first"
DEAD_AT: Final = "bwq-dead-at"
DEAD_VERSION: Final = "bwq-dead-version"
DEAD_ID: Final = "bwq-dead-id"
DEAD_TYPE: Final = "bwq-dead-type"

RESERVED_PREFIX: Final = "bwq-"
MAX_HEADER_NAME_BYTES: Final = 200
_MAX_COUNT: Final = 2**31 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Table: TypeAlias = Mapping[str, tuple[str, Callable[[str], object]]]
"""By header: the field that it fills, and what reads its text or raises ``ValueError``."""


def check_user_headers(headers: object) -> dict[str, str]:
    """A copy of ``headers``, if they can be carried to every broker and back.

    Raises:
        ConfigError: it is no mapping, a name is reserved, empty, too long or not text, or a
            value is not text.
    """
    if not isinstance(headers, Mapping):
        msg = f"headers must be a mapping of text to text, not {headers!r:.200}"
        raise ConfigError(msg)
    copy: dict[str, str] = {}
    # Whatever they are, they are objects.
    for name, value in cast("Mapping[object, object]", headers).items():
        if not isinstance(name, str):
            msg = f"a header's name must be text, not {name!r:.200}"
            raise ConfigError(msg)
        if not isinstance(value, str):
            msg = f"header {name!r:.200} must be text with a text value, not {value!r:.200}"
            raise ConfigError(msg)
        copy[name] = value
        if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_HEADER_NAME_BYTES:
            msg = f"header name {name!r:.200} must have 1 to {MAX_HEADER_NAME_BYTES} bytes"
            raise ConfigError(msg)
        if name.lower().startswith(RESERVED_PREFIX) or name.lower() == CONTENT_TYPE:
            msg = f"header {name!r} is reserved: choose a name that does not start with 'bwq-'"
            raise ConfigError(msg)
        for text in (name, value):
            if not is_unicode(text):
                msg = f"header {name!r:.200} holds a lone surrogate, which no encoding carries"
                raise ConfigError(msg)
    return copy


def milliseconds(moment: datetime) -> str:
    """``moment`` as the wire has it: whole milliseconds since 1970 in UTC, rounded up.

    Rounded up, because a delay that ends early would break its promise.
    """
    return str(-((_EPOCH - moment) // timedelta(milliseconds=1)))


def _milliseconds_or_none(moment: datetime | None) -> str | None:
    return None if moment is None else milliseconds(moment)


def moment_of(text: str) -> datetime:
    """The inverse of ``milliseconds``. Raises ``ValueError`` for anything else."""
    # Python also reads 1_000, blanks and the digits of every alphabet; other languages do not.
    if len(text) > 16 or not _is_digits(text.removeprefix("-")):  # noqa: PLR2004  -- year 9999
        raise ValueError(text)
    try:
        return _EPOCH + timedelta(milliseconds=int(text))
    except OverflowError as exc:
        raise ValueError(text) from exc


def encode(message: Message) -> dict[str, str]:
    """All headers of ``message``, the users' own included; the body stays beside them."""
    headers = dict(message.headers)
    headers[V] = VERSION
    if message.id:
        headers[ID] = message.id
    if message.type:
        headers[TYPE] = message.type
    if message.content_type:
        headers[CONTENT_TYPE] = message.content_type
    if message.created_at is not None:
        headers[CREATED] = milliseconds(message.created_at)
    headers.update(encode_state(message))
    return headers


def encode_state(message: Message) -> dict[str, str]:
    """The reserved headers that are absent from a message on its first way."""
    headers = {
        name: text
        for name, text in (
            (KEY, message.key),
            (GROUP, message.group),
            (CAUSE, message.cause),
            (NOT_BEFORE, _milliseconds_or_none(message.not_before)),
            (UNKNOWN_SINCE, _milliseconds_or_none(message.unknown_since)),
        )
        if text is not None
    }
    if message.attempts:
        headers[ATTEMPTS] = str(message.attempts)
    if message.redrives:
        headers[REDRIVES] = str(message.redrives)
    if message.suspect:
        headers[SUSPECT] = "1"
    if message.snoozed:
        headers[SNOOZED] = f"{message.snoozed:.3f}"
    if message.dead is not None:
        headers.update(_encode_note(message.dead))
    return headers


def _encode_note(note: DeadLetterNote) -> dict[str, str]:
    texts = {
        DEAD_REASON: note.reason,
        DEAD_ATTEMPTS: str(note.attempts),
        DEAD_ERROR_TYPE: note.error_type,
        DEAD_ERROR: note.error,
        DEAD_DIGEST: note.digest,
        DEAD_QUEUE: note.queue,
        DEAD_FIRST: _milliseconds_or_none(note.first_at),
        DEAD_AT: _milliseconds_or_none(note.dead_at),
        DEAD_VERSION: note.version,
        DEAD_ID: note.id,
        DEAD_TYPE: note.type,
    }
    return {name: text for name, text in texts.items() if text}


def decode(headers: Mapping[str, str], body: bytes) -> tuple[Message, str]:
    """The message that ``headers`` and ``body`` make, and what of them was unreadable.

    Never raises: a header that cannot be read takes its default and is named in the second
    part, which is empty for a sound message. Reserved headers that this version does not
    know are dropped.
    """
    version = headers.get(V)
    defects: list[str] = []
    if version is not None and version != VERSION:
        defects.append(f"{V}={version!r:.50} (this brokerwq reads {VERSION})")
    fields = _read(headers, _FIELDS, defects)
    fields.setdefault("id", "")
    message = Message(
        **fields,
        body=body,
        headers={
            name: text
            for name, text in headers.items()
            if name != CONTENT_TYPE and not name.startswith(RESERVED_PREFIX)
        },
        dead=_decode_note(headers, defects) if DEAD_REASON in headers else None,
    )
    return message, ", ".join(defects)


def _decode_note(headers: Mapping[str, str], defects: list[str]) -> DeadLetterNote:
    return DeadLetterNote(**_read(headers, _NOTE_FIELDS, defects))


def _read(headers: Mapping[str, str], table: _Table, defects: list[str]) -> dict[str, Any]:
    """The fields that ``table`` finds in ``headers``; adds to ``defects`` what it cannot read."""
    fields: dict[str, Any] = {}
    unread: list[str] = []
    # By what is there: most of what there could be is absent from most messages.
    for name, text in headers.items():
        if name in table:
            field, parse = table[name]
            try:
                fields[field] = parse(text)
            except ValueError:
                unread.append(name)
    if unread:
        defects += [f"{name}={headers[name]!r:.50}" for name in table if name in unread]
    return fields


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _count(text: str) -> int:
    if len(text) > 10 or not _is_digits(text):  # noqa: PLR2004
        raise ValueError(text)
    return min(int(text), _MAX_COUNT)


def _duration(text: str) -> float:
    whole, _, fraction = text.partition(".")
    if len(text) > 20 or not _is_digits(whole + fraction) or not whole:  # noqa: PLR2004
        raise ValueError(text)
    seconds = float(text)
    if seconds >= 1e10:  # noqa: PLR2004
        raise ValueError(text)
    return round(seconds, 3)  # as finely as it is written


def _is_one(text: str) -> bool:
    return text == "1"


_FIELDS: Final[_Table] = {
    ID: ("id", str),
    TYPE: ("type", str),
    CONTENT_TYPE: ("content_type", str),
    CREATED: ("created_at", moment_of),
    NOT_BEFORE: ("not_before", moment_of),
    ATTEMPTS: ("attempts", _count),
    REDRIVES: ("redrives", _count),
    KEY: ("key", str),
    GROUP: ("group", str),
    CAUSE: ("cause", str),
    SUSPECT: ("suspect", _is_one),
    UNKNOWN_SINCE: ("unknown_since", moment_of),
    SNOOZED: ("snoozed", _duration),
}
_NOTE_FIELDS: Final[_Table] = {
    DEAD_REASON: ("reason", str),
    DEAD_ERROR_TYPE: ("error_type", str),
    DEAD_ERROR: ("error", str),
    DEAD_DIGEST: ("digest", str),
    DEAD_ATTEMPTS: ("attempts", _count),
    DEAD_QUEUE: ("queue", str),
    DEAD_FIRST: ("first_at", moment_of),
    DEAD_AT: ("dead_at", moment_of),
    DEAD_VERSION: ("version", str),
    DEAD_ID: ("id", str),
    DEAD_TYPE: ("type", str),
}

"""What a message of another program says, once a codec has read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, TypeAlias

from brokerwq.errors import EnvelopeError

Expired: TypeAlias = Literal["discard", "dead-letter"]
"""What becomes of a message whose time is over: acked and counted apart, or a dead letter."""

EVERY_TYPE: Final = "*"
"""Name of a worker that takes the foreign messages for which its queue has no other."""

MAX_TYPE_CHARS: Final = 255
_MAX_ID_CHARS: Final = 1000
_NO_TEXTS: Final[Mapping[str, str]] = {}
_NO_RAW: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call: what a task of another program is given.

    A worker is called with them by the rules of a Python call, or takes them as they are if
    this is the type of its payload.

    Attributes:
        args: By position.
        kwargs: By name.
    """

    args: Sequence[object] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a foreign message says.

    Attributes:
        body: What the payload is read from, by the worker's annotation: as it is for
            ``bytes``, else as JSON. None for a message without one.
        arguments: What the payload is made of instead, where the message is a call.
        type: The worker that it is for; empty where it does not say.
        id: Its id; empty takes the broker's.
        content_type: Media type of ``body``, with its parameters; empty where it does not say.
        content_encoding: How ``body`` is packed, as HTTP has it; empty for not at all.
        headers: Headers it has beside those of the broker, text to text.
        created_at: When it was made; None takes the broker's time.
        not_before: Earliest time to run it.
        expires: From then on it is not run.
        expired: What becomes of it then.
        key: What makes two messages the same work; None is the id.
        raw: Added to ``job.raw``.
        defect: Why it cannot be run, although its type and id can be read: a dead letter
            ``decode`` with this text, which is called by them. One whose type has no worker
            here is for somebody else, whatever its defect.

    Raises:
        EnvelopeError: at making, if a value is of another type or cannot be kept.
    """

    body: bytes | None = b""
    arguments: Arguments | None = None
    type: str = ""
    id: str = ""
    content_type: str = ""
    content_encoding: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_TEXTS)
    created_at: datetime | None = None
    not_before: datetime | None = None
    expires: datetime | None = None
    expired: Expired = "discard"
    key: str | None = None
    raw: Mapping[str, object] = field(default_factory=lambda: _NO_RAW)
    defect: str = ""

    def __post_init__(self) -> None:
        """Refuse here what would go wrong far from the codec that made it."""
        _check_body(self.body)
        _check_text(self.type, "type", MAX_TYPE_CHARS)
        _check_text(self.id, "id", _MAX_ID_CHARS)
        _check_text(self.defect, "defect")
        if self.key is not None:
            _check_text(self.key, "key", _MAX_ID_CHARS)
        for name, text in self.headers.items():
            _check_text(name, "name of a header")
            _check_text(text, "header")
        for what in ("created_at", "not_before", "expires"):
            _check_moment(getattr(self, what), what)


def _check_body(body: object) -> None:
    if body is not None and type(body) is not bytes:
        msg = f"its body is no bytes but {type(body).__name__}"
        raise EnvelopeError(msg)


def _check_text(text: object, what: str, most: int | None = None) -> None:
    if not isinstance(text, str) or not is_unicode(text):
        msg = f"its {what} is no text"
        raise EnvelopeError(msg)
    if most is not None and len(text) > most:
        msg = f"its {what} has {len(text)} characters; the limit is {most}"
        raise EnvelopeError(msg)


def _check_moment(moment: object, what: str) -> None:
    if moment is None:
        return
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        msg = f"its {what} is no moment with a time zone"
        raise EnvelopeError(msg)


def is_unicode(text: str) -> bool:
    """Whether ``text`` has an encoding: it holds no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

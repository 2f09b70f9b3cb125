"""What Amazon SNS delivers to a queue: in its envelope, or raw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from brokerwq.codecs import coding, strict
from brokerwq.errors import EnvelopeError
from brokerwq.foreign import Reading, is_unicode
from brokerwq.message import Message

UNWRAPPED: Final = "Sns"
"""In ``Message.raw``: the envelope without its message."""


@dataclass(frozen=True, slots=True)
class SnsCodec:
    """Unwraps SNS's envelope, one level of it.

    Only a body with ``Type`` Notification, ``TopicArn`` and ``Message`` is one. Every other
    body is taken as it is: that is what raw delivery brings. What SNS itself has to say, of a
    subscription, is refused.
    """

    def read(self, message: Message, /) -> Reading:
        """See ``ForeignCodec.read``."""
        content_type, content_encoding = coding.declared(message)
        envelope = None if UNWRAPPED in message.raw else _envelope(message.body)
        if envelope is None:
            return Reading(
                body=message.body, content_type=content_type, content_encoding=content_encoding
            )
        text, rest = envelope
        lifted = dict(_texts(rest.get("MessageAttributes")))
        found = {name.lower(): value for name, value in lifted.items()}
        content_type, content_encoding = coding.of_text(
            found.get(coding.CONTENT_TYPE, ""), found.get(coding.CONTENT_ENCODING, "")
        )
        sns_id = rest.get("MessageId")
        return Reading(
            body=text.encode(),
            id=sns_id if isinstance(sns_id, str) else "",
            content_type=content_type,
            content_encoding=content_encoding,
            headers=lifted,
            created_at=_moment(rest.get("Timestamp")),
            raw={UNWRAPPED: rest},
        )


def _envelope(body: bytes) -> tuple[str, dict[str, object]] | None:
    try:
        found: Any = strict.parse(body, "")
    except EnvelopeError:
        return None
    match found:
        case {"Type": "Notification", "TopicArn": str(), "Message": str(text), **rest}:
            if not is_unicode(text):
                msg = "the message in SNS's envelope holds a lone surrogate"
                raise EnvelopeError(msg)
            kept = cast("dict[str, object]", rest)
            return text, {"Type": found["Type"], "TopicArn": found["TopicArn"], **kept}
        case {"Type": str(kind), "TopicArn": str(), "Token": str(), "SubscribeURL": str()}:
            msg = f"it is SNS's own {kind!r:.50}, which is answered by opening its SubscribeURL"
            raise EnvelopeError(msg)
        case _:
            return None


def _texts(attributes: object) -> Iterator[tuple[str, str]]:
    if not isinstance(attributes, dict):
        return
    for name, value in cast("dict[str, object]", attributes).items():
        match value:
            case {"Type": str(kind), "Value": str(text)}:
                if kind != "Binary" and is_unicode(text) and is_unicode(name):
                    yield name, text
            case _:
                pass


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if moment is None or moment.tzinfo is not UTC else moment

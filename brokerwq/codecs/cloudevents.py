"""CloudEvents 1.0: in headers beside the data (binary mode) or around it (structured mode)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, cast

from brokerwq.codecs import coding, strict
from brokerwq.codecs.call import completed
from brokerwq.codecs.plain import is_json
from brokerwq.errors import EnvelopeError
from brokerwq.foreign import Reading, is_unicode
from brokerwq.message import Message

VERSION: Final = "1.0"
_STRUCTURED: Final = "application/cloudevents+json"
_ANY: Final = "application/cloudevents"
_PREFIXES: Final = ("cloudevents:", "cloudevents_", "ce-", "ce_")
"""Of AMQP, and where a colon cannot be; of HTTP, and of Kafka."""
_DATA: Final = ("data", "data_base64")
_CORE: Final = frozenset(
    {"specversion", "id", "source", "type", "time", "subject", "datacontenttype", "dataschema"}
)


@dataclass(frozen=True, slots=True)
class CloudEventsCodec:
    """Reads CloudEvents of either mode; the type of a message is that of the event."""

    def read(self, message: Message, /) -> Reading:
        """See ``ForeignCodec.read``."""
        content_type, content_encoding = coding.declared(message)
        media = coding.media_type(content_type)
        if media == _STRUCTURED:
            return _structured(coding.as_utf8(message.body, content_type, content_encoding))
        if media.startswith(_ANY):
            msg = f"content type is {content_type!r:.100}; of events {_STRUCTURED} is read"
            raise EnvelopeError(msg)
        attributes = _from_headers(message)
        if not attributes and not media:
            # Where a producer says nothing at all, only the whole event can be in the body.
            return _structured(coding.as_utf8(message.body, "", content_encoding))
        known = _known(attributes, content_type, content_encoding)
        known = replace(known, body=message.body or None)
        return completed(known, lambda known: _timed(known, attributes))


def _from_headers(message: Message) -> dict[str, object]:
    native = message.raw.get("headers")
    typed = cast("dict[str, object]", native if isinstance(native, dict) else {})
    found: dict[str, object] = {}
    for name, value in {**message.headers, **typed}.items():
        prefix = next((each for each in _PREFIXES if name.lower().startswith(each)), None)
        if prefix is None:
            continue
        attribute = name[len(prefix) :].lower()
        if found.setdefault(attribute, value) != value:
            msg = f"the event has two attributes {attribute!r:.50} that differ"
            raise EnvelopeError(msg)
    return found


def _structured(body: bytes) -> Reading:
    event = strict.parse_object(body, "the event")
    known = _known({name: value for name, value in event.items() if name not in _DATA})
    return completed(known, lambda known: _timed(_with_data(known, event, body), event))


def _with_data(known: Reading, event: Mapping[str, object], body: bytes) -> Reading:
    if "data_base64" in event:
        if "data" in event:
            msg = "the event has both data and data_base64"
            raise EnvelopeError(msg)
        packed = _utf8(event["data_base64"], "data_base64")
        return replace(known, body=coding.unbase64(packed, "data_base64"))
    if "data" not in event:
        return replace(known, body=None)
    data, kind = event["data"], coding.without_charset(known.content_type)
    if isinstance(data, str) and kind and not is_json(kind):
        found = _utf8(data, "data")
    else:
        found = strict.member_of(body, "data")  # not written anew, which would round its numbers
    # Its character set is the event's by now, whatever it was before.
    return replace(known, body=found, content_type=kind)


def _utf8(text: object, what: str) -> bytes:
    if not isinstance(text, str) or not is_unicode(text):
        msg = f"{what} is no text"
        raise EnvelopeError(msg)
    return text.encode()


def _timed(known: Reading, attributes: Mapping[str, object]) -> Reading:
    return replace(known, created_at=_time(attributes.get("time")))


def _known(
    attributes: Mapping[str, object], content_type: str = "", content_encoding: str = ""
) -> Reading:
    declared = attributes.get("datacontenttype")
    if not content_type and isinstance(declared, str):
        content_type = declared
    version = attributes.get("specversion")
    if version != VERSION:
        msg = f"specversion is {version!r:.50}; CloudEvents {VERSION} is read"
        raise EnvelopeError(msg)
    source = _required(attributes, "source")
    id_ = _required(attributes, "id")
    return Reading(
        type=_required(attributes, "type"),
        # Ids are unique within a source alone. No URI holds a space, so none is taken for two.
        id=f"{source.replace(' ', '%20')} {id_}",
        content_type=content_type,
        content_encoding=content_encoding,
        headers={
            name: value
            for name, value in attributes.items()
            if name not in _CORE
            and isinstance(value, str)
            and is_unicode(value)
            and is_unicode(name)
        },
        raw={"CloudEvents": dict(attributes)},
    )


def _required(attributes: Mapping[str, object], name: str) -> str:
    value = attributes.get(name)
    if not isinstance(value, str) or not value:
        msg = f"the event has no {name}"
        raise EnvelopeError(msg)
    return value


def _time(value: object) -> datetime | None:
    if isinstance(value, str):
        text = value.upper()
        if text[17:19] == "60":
            text = f"{text[:17]}59{text[19:]}"  # a leap second, which no calendar here has
        try:
            value = datetime.fromisoformat(text)
        except ValueError:
            msg = "time is no moment of RFC 3339"
            raise EnvelopeError(msg) from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    try:
        return value.astimezone(UTC)
    except OverflowError:
        return None

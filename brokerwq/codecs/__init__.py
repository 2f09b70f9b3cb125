"""Payload to body and back, and what the messages of other programs say.

``json`` and ``bytes`` are for brokerwq's own messages and for foreign ones; ``sns``,
``cloudevents``, ``celery``, ``dramatiq`` and ``taskiq`` only read. pydantic is imported when a
codec is first bound to a type, never with ``import brokerwq``.
"""

from brokerwq.codecs.base import (
    BYTES_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    MAX_ERROR_CHARS,
    BoundCodec,
    Codec,
    ForeignCodec,
    kind_name,
)
from brokerwq.codecs.celery import CeleryCodec
from brokerwq.codecs.choosing import AnyCodec, CodecName, codec_for, foreign_codec_for
from brokerwq.codecs.cloudevents import CloudEventsCodec
from brokerwq.codecs.coding import MAX_UNPACKED_BYTES
from brokerwq.codecs.dramatiq import DramatiqCodec
from brokerwq.codecs.plain import BYTES, JSON, BytesCodec, JsonCodec
from brokerwq.codecs.sns import SnsCodec
from brokerwq.codecs.taskiq import TaskiqCodec
from brokerwq.foreign import EVERY_TYPE, Arguments, Expired, Reading

__all__ = [
    "BYTES",
    "BYTES_CONTENT_TYPE",
    "EVERY_TYPE",
    "JSON",
    "JSON_CONTENT_TYPE",
    "MAX_ERROR_CHARS",
    "MAX_UNPACKED_BYTES",
    "AnyCodec",
    "Arguments",
    "BoundCodec",
    "BytesCodec",
    "CeleryCodec",
    "CloudEventsCodec",
    "Codec",
    "CodecName",
    "DramatiqCodec",
    "Expired",
    "ForeignCodec",
    "JsonCodec",
    "Reading",
    "SnsCodec",
    "TaskiqCodec",
    "codec_for",
    "foreign_codec_for",
    "kind_name",
]

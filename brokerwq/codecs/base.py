"""What a codec is, for our own messages and for those of other programs."""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

from brokerwq.foreign import Reading
from brokerwq.message import Message

JSON_CONTENT_TYPE: Final = "application/json"
BYTES_CONTENT_TYPE: Final = "application/octet-stream"
MAX_ERROR_CHARS: Final = 200
"""Longest text of an ``EnvelopeError`` or ``PayloadError`` that speaks of a payload."""


class BoundCodec(Protocol):
    """A codec that knows the type of the payload. Called from several threads at once."""

    def encode(self, payload: Any, /) -> bytes:
        """The body.

        Raises:
            PayloadError: the payload is not of the type, or has no such form.
        """
        ...

    def decode(self, body: bytes, content_type: str, /) -> object:
        """The payload. ``content_type`` is empty where the sender did not say.

        Raises:
            EnvelopeError: the body is not such a payload. Its text shows nothing of the body.
        """
        ...


class Codec(Protocol):
    """A way to write payloads; ``worker(codec=…)`` takes any."""

    @property
    def content_type(self) -> str:
        """The media type of what it writes."""
        ...

    def bind(self, kind: Any, /) -> BoundCodec:
        """Prepare for payloads of the type ``kind``, once, at decoration.

        Raises:
            ConfigError: it cannot carry such a type.
        """
        ...


@runtime_checkable
class ForeignCodec(Protocol):
    """Reads the messages of another program; for ``worker(codec=…, foreign=True)``.

    Workers that share a queue must have equal ones. Called in the runner's own loop, once for
    each claimed message, so it must be quick and must not wait.
    """

    def read(self, message: Message, /) -> Reading:
        """What ``message`` says.

        Args:
            message: As the broker has it: ``body``, ``headers`` with all that is text,
                ``raw`` with every property, header and attribute, of its own type.

        Raises:
            EnvelopeError: it cannot be read: a dead letter ``decode``, with this text. So is
                whatever else is raised, with the name of its class.
        """
        ...


def kind_name(kind: Any) -> str:
    """``kind`` as its author wrote it, as far as Python remembers."""
    if isinstance(kind, type) and not hasattr(kind, "__args__"):
        kind = kind.__qualname__.rpartition("<locals>.")[2]
    return f"{kind!s:.200}".replace("typing.", "").replace("NoneType", "None")

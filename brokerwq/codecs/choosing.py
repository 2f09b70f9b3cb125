"""From ``worker(codec=…)`` to codecs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from brokerwq.codecs import coding
from brokerwq.codecs.base import Codec, ForeignCodec
from brokerwq.codecs.celery import CeleryCodec
from brokerwq.codecs.cloudevents import CloudEventsCodec
from brokerwq.codecs.dramatiq import DramatiqCodec
from brokerwq.codecs.plain import BYTES, JSON
from brokerwq.codecs.sns import SnsCodec
from brokerwq.codecs.taskiq import TaskiqCodec
from brokerwq.errors import ConfigError
from brokerwq.foreign import Reading
from brokerwq.message import Message

CodecName: TypeAlias = Literal[
    "json", "bytes", "sns", "cloudevents", "celery", "dramatiq", "taskiq"
]
AnyCodec: TypeAlias = Codec | ForeignCodec | CodecName
"""What ``worker(codec=…)`` takes."""

_BY_NAME: Final[Mapping[str, Codec]] = {"json": JSON, "bytes": BYTES}
_FOREIGN_BY_NAME: Final[Mapping[str, ForeignCodec]] = {
    "sns": SnsCodec(),
    "cloudevents": CloudEventsCodec(),
    "celery": CeleryCodec(),
    "dramatiq": DramatiqCodec(),
    "taskiq": TaskiqCodec(),
}


@dataclass(frozen=True, slots=True)
class Plain:
    """Takes a body as it is, with what is declared of it."""

    codec: Codec

    def read(self, message: Message, /) -> Reading:
        """See ``ForeignCodec.read``."""
        content_type, content_encoding = coding.declared(message)
        return Reading(
            body=message.body, content_type=content_type, content_encoding=content_encoding
        )


def codec_for(choice: AnyCodec | None, kind: Any) -> Codec:
    """The codec of the bodies that ``worker(codec=choice)`` means for payloads of type ``kind``.

    None, and a codec that only reads, mean ``bytes`` for a payload annotated so, else ``json``.

    Raises:
        ConfigError: there is no codec of that name.
    """
    if choice is None or reads_only(choice):
        return BYTES if kind is bytes else JSON
    if isinstance(choice, str):
        if choice in _BY_NAME:
            return _BY_NAME[choice]
        known = ", ".join(map(repr, [*_BY_NAME, *_FOREIGN_BY_NAME]))
        msg = f"there is no codec {choice!r:.100}; known are {known}, or give an object of yours"
        raise ConfigError(msg)
    if isinstance(choice, type):
        msg = f"codec must be an object, not a class: write {choice.__name__}()"
        raise ConfigError(msg)
    if hasattr(choice, "bind") and hasattr(choice, "content_type"):
        return cast("Codec", choice)
    msg = f"codec must be a name, a Codec or a ForeignCodec, not {choice!r:.200}"
    raise ConfigError(msg)


def foreign_codec_for(choice: AnyCodec | None, body: Codec) -> ForeignCodec:
    """The codec that reads foreign messages for ``worker(codec=choice, foreign=True)``.

    Args:
        choice: What the worker was given.
        body: What ``codec_for`` makes of it.
    """
    found = _foreign(choice)
    return Plain(body) if found is None else found


def reads_only(choice: AnyCodec | None) -> bool:
    """Whether ``choice`` reads another program's messages and writes none."""
    # Asked for every message that is sent: what takes long comes last.
    return choice is not None and not hasattr(choice, "bind") and _foreign(choice) is not None


def names_types(codec: ForeignCodec) -> bool:
    """Whether messages that ``codec`` reads may say which worker they are for."""
    return not isinstance(codec, Plain | SnsCodec)


def _foreign(choice: object) -> ForeignCodec | None:
    if isinstance(choice, str):
        return _FOREIGN_BY_NAME.get(choice)
    if isinstance(choice, ForeignCodec) and not isinstance(choice, type):
        return choice
    return None

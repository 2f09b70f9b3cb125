"""What queues, workers and messages may be called."""

from __future__ import annotations

import re
from typing import Final

from brokerwq.driver.spec import check_queue_name
from brokerwq.errors import ConfigError
from brokerwq.foreign import MAX_TYPE_CHARS

MAX_NAME_CHARS: Final = 80
MAX_ID_BYTES: Final = 200

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# ``amq.`` is RabbitMQ's own (AMQP 0-9-1, section 1.7.2.1 of the reference).
_RESERVED = ("bwq-", "bwq.", "amq.")


def check_name(name: object, what: str) -> str:
    """Return ``name`` if every broker can take it.

    Args:
        name: The name of a queue or a worker.
        what: Which of them, for the error.

    Raises:
        ConfigError: it is not 1 to 80 ASCII letters, digits and ``-_.``, or starts or ends
            with one of ``-_.``, or with a reserved prefix.
    """
    if not isinstance(name, str):
        msg = f"{what} must be a name, not {name!r:.200}"
        raise ConfigError(msg)
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        msg = (
            f"{what} {name!r:.200} must be 1 to {MAX_NAME_CHARS} of the letters a-z and A-Z, "
            "digits and '-_.', the first and the last a letter or a digit"
        )
        raise ConfigError(msg)
    if name.lower().startswith(_RESERVED):
        msg = f"{what} {name!r} is reserved: it must not start with {', '.join(_RESERVED)}"
        raise ConfigError(msg)
    return name


def check_foreign_queue(name: object) -> str:
    """Return ``name`` if a queue that somebody else made can be called so.

    Raises:
        ConfigError: it is not 1 to 255 bytes of printable text.
    """
    return check_queue_name(name)


def check_foreign_type(name: object, what: str) -> str:
    """Return ``name`` if another program's messages can be of that type.

    Raises:
        ConfigError: it is not 1 to 255 characters of printable text.
    """
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_TYPE_CHARS:
        msg = f"{what} {name!r:.300} must be 1 to {MAX_TYPE_CHARS} characters of printable text"
        raise ConfigError(msg)
    return name


def check_id(value: object, what: str) -> str:
    """Return ``value`` if it can be a message's ``id`` or ``group``.

    Raises:
        ConfigError: it is not 1 to 200 bytes of printable text without spaces at its ends.
    """
    if (
        not isinstance(value, str)
        or not value.isprintable()
        or not 0 < len(value.encode()) <= MAX_ID_BYTES
        or value.strip() != value
    ):
        msg = (
            f"{what} must be 1 to {MAX_ID_BYTES} bytes of printable text without spaces at its "
            f"ends, not {value!r:.250}"
        )
        raise ConfigError(msg)
    return value

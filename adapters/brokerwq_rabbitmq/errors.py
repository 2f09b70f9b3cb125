"""What RabbitMQ and its client raise, as brokerwq's own errors."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from shlex import quote

from aiormq import exceptions as amqp

from brokerwq.driver import Delivery
from brokerwq.errors import (
    AuthenticationError,
    BrokerwqError,
    ClosedError,
    ConnectionLostError,
    DriverError,
    LeaseLostError,
    MessageTooLargeError,
    PermissionDeniedError,
    ProtocolError,
    QueueMismatchError,
    QueueNotFoundError,
    TransientError,
)
from brokerwq_rabbitmq.frames import NotAmqpError

_NOT_ALLOWED = 530
_ACCESS_REFUSED = 403
_TOO_LARGE = re.compile(r"message size \d+ is larger than configured max size (\d+)")
_ACK_TIMED_OUT = re.compile(r"acknowledgement on channel \d+ timed out.*: (\d+) ms")


def closed(what: str) -> ClosedError:
    """For a call on something that was closed."""
    return ClosedError(f"the RabbitMQ {what} is closed")


def lease_lost(delivery: Delivery, reason: str) -> LeaseLostError:
    """For a settle that comes too late."""
    return LeaseLostError(f"message {delivery.message.id} from {delivery.queue}: {reason}")


def to_connect_error(
    exc: BaseException, *, place: str, user: str, vhost: str, close_reason: tuple[int, str] | None
) -> BrokerwqError:
    """Why a connection could not be made, and the way out.

    Args:
        exc: What the client raised.
        place: Host and port, for the text.
        user: Who asked.
        vhost: The virtual host that was asked for.
        close_reason: What the broker said when it closed the connection, if it did.
    """
    cause = exc.__cause__ or exc
    if isinstance(exc, amqp.ProbableAuthenticationError | amqp.AuthenticationError):
        return _refused_user(user, place)
    if isinstance(cause, ssl.SSLError):
        return _tls_error(cause, place)
    if isinstance(cause, NotAmqpError) and cause.speaks_tls:
        return speaks_tls(place)
    if isinstance(cause, NotAmqpError):
        return ProtocolError(f"{place} does not speak AMQP 0-9-1: {cause}")
    if close_reason is not None and close_reason[0] in (_NOT_ALLOWED, _ACCESS_REFUSED):
        return _refused_vhost(vhost, user, place, close_reason[1])
    said = f": {close_reason[1]}" if close_reason is not None else ""
    return ConnectionLostError(
        f"no connection to RabbitMQ at {place} ({_words(exc)}){said}{_hint(cause)}"
    )


def _refused_user(user: str, place: str) -> AuthenticationError:
    hint = "both are percent-encoded in the URL, @ as %40"
    if user == "guest" and not place.startswith(("127.", "localhost:", "::1:")):
        hint = "guest may only come from the broker's own machine, unless it was told otherwise"
    return AuthenticationError(f"RabbitMQ at {place} refuses user {user!r} or the password; {hint}")


def _refused_vhost(vhost: str, user: str, place: str, reason: str) -> PermissionDeniedError:
    hint = ""
    if reason.endswith("not found"):
        hint = f"; the URL's path names it; it is made by: rabbitmqctl add_vhost {quote(vhost)}"
    elif reason.endswith(f"refused for user '{user}'"):
        allow = f"set_permissions -p {quote(vhost)} {quote(user)} '.*' '.*' '.*'"
        hint = f"; allowed by: rabbitmqctl {allow}"
    return PermissionDeniedError(
        f"user {user!r} cannot use virtual host {vhost!r} at {place}: {reason}{hint}"
    )


def _hint(cause: BaseException) -> str:
    if isinstance(cause, ConnectionRefusedError):
        return "; is it running, and is that its port?"
    if isinstance(cause, socket.gaierror):
        return "; is that its host?"
    return ""


def _tls_error(exc: ssl.SSLError, place: str) -> DriverError:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return AuthenticationError(f"TLS to {place}: {exc.verify_message}")
    if exc.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"):
        return ProtocolError(f"{place} does not speak TLS: write amqp:// for a plain port")
    return AuthenticationError(f"TLS to {place}: {exc}")


def speaks_tls(place: str) -> ProtocolError:
    """For a plain connection to a port that answers TLS."""
    return ProtocolError(f"{place} speaks TLS: write amqps:// instead of amqp://")


# The client's class, ours, and what to say: {0} is the queue, {1} the place, {2} its words, {3}
# what must be allowed.
_CALLS: tuple[tuple[type[BaseException], type[DriverError], str], ...] = (
    (amqp.ChannelNotFoundEntity, QueueNotFoundError, "queue {0} does not exist at {1}"),
    (
        amqp.ChannelAccessRefused,
        PermissionDeniedError,
        "queue {0} at {1}: {2} (the user needs permission to {3})",
    ),
    (amqp.ChannelLockedResource, QueueMismatchError, "queue {0} is another connection's: {2}"),
    (TimeoutError, TransientError, "RabbitMQ at {1} did not answer in time"),
    (amqp.AMQPChannelError, TransientError, "queue {0} at {1}: {2}"),
    (BaseException, ConnectionLostError, "the connection to RabbitMQ at {1}: {2}"),
)


def to_driver_error(exc: BaseException, *, queue: str, place: str, right: str = "") -> DriverError:
    """What went wrong in a call about ``queue``.

    Args:
        exc: What the client raised.
        queue: Its name.
        place: Host and port.
        right: What the user must be allowed for the call, as old releases do not say.
    """
    if isinstance(exc, DriverError):
        return exc
    limit = too_large_limit(exc)
    if limit is not None:
        return MessageTooLargeError(f"{place} takes messages of at most {limit} bytes")
    ours, text = next((ours, text) for theirs, ours, text in _CALLS if isinstance(exc, theirs))
    if "in exclusive use" in str(exc):
        text = "queue {0} at {1}: {2}; another consumer has it to itself"
    return ours(text.format(queue, place, _words(exc), right or "do this"))


def too_large_limit(exc: BaseException) -> int | None:
    """The server's longest message, where ``exc`` says that one was longer."""
    found = _TOO_LARGE.search(str(exc))
    return int(found[1]) if found else None


def consumer_timeout_of(exc: BaseException | None) -> float | None:
    """The server's consumer timeout in seconds, where ``exc`` says that it has struck."""
    found = _ACK_TIMED_OUT.search(str(exc)) if exc is not None else None
    return int(found[1]) / 1000 if found else None


def is_stray_cancellation(exc: BaseException) -> bool:
    """Whether a ``CancelledError`` is the client's word for a closed channel.

    aiormq closes its channels with that class, and those who wait get it although nobody
    cancelled them.
    """
    task = asyncio.current_task()
    return isinstance(exc, asyncio.CancelledError) and (task is None or not task.cancelling())


def _words(exc: BaseException) -> str:
    if isinstance(exc, asyncio.CancelledError):
        return "closed"
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    return (str(exc) or type(exc).__name__)[:300]

"""Every exception brokerwq raises on its own account.

A programmer acts on the class, never on the text. Whether a failure is worth repeating is
decided where the broker's own error is seen, and carried as ``retryable``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from brokerwq.reports import SendReport


class BrokerwqError(Exception):
    """Base of everything below; the broker's own error, if any, is ``__cause__``."""


class ConfigError(BrokerwqError, ValueError):
    """A URL, setting, name or declaration is wrong. Trying again cannot help."""


class AdapterMissingError(ConfigError):
    """No adapter serves the scheme, or the adapter's client library is not installed."""


class BrokerMissingError(ConfigError):
    """The broker is a file that is not there, and whoever asks is not to make it."""


class PayloadError(BrokerwqError, ValueError):
    """A payload cannot be turned into a body; nothing was sent."""


class EnqueueError(BrokerwqError):
    """Some of what ``enqueue_many`` was given was not confirmed; the rest was sent.

    Attributes:
        report: How many were sent, and which failed with which error.
    """

    def __init__(self, report: SendReport) -> None:
        super().__init__(str(report))
        self.report = report


class EnvelopeError(BrokerwqError, ValueError):
    """A stored message, or its body, cannot be read back."""


class DriverError(BrokerwqError):
    """A broker call failed. ``retryable`` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False


class TransientError(DriverError):
    """The broker did not answer, or asked us to come back. Safe to repeat."""

    retryable = True


class ConnectionLostError(TransientError):
    """The connection is down; what it held is lost or about to be redelivered."""


class ThrottledError(TransientError):
    """The broker asked for a pause of ``retry_after`` seconds; None where it did not say."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StorageFullError(TransientError):
    """The broker has no room left: a full disk, a full queue, a memory alarm."""


class LeaseLostError(DriverError):
    """The delivery is no longer ours; another runner may be working on it.

    Attributes:
        sent: True where an ack of finished work was sent all the same, because the broker
            cannot tell whose lease it ends.
    """

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class CannotExtendError(DriverError):
    """The broker gives no more time: ``limit`` seconds is all one receive may last."""

    def __init__(self, message: str, *, limit: float) -> None:
        super().__init__(message)
        self.limit = limit


class AuthenticationError(DriverError):
    """The broker refused the credentials, or the TLS handshake failed."""


class PermissionDeniedError(DriverError):
    """The credentials are good, but do not allow this call."""


class QueueNotFoundError(DriverError):
    """The queue does not exist at the broker."""


class QueueMismatchError(DriverError):
    """The queue exists with properties that contradict what was asked for."""


class MessageTooLargeError(DriverError):
    """The encoded message is above ``Capabilities.max_message_bytes``."""


class MessageRefusedError(DriverError):
    """The broker will never take this message: an illegal header, name or value."""


class UnsupportedError(DriverError):
    """The broker lacks the ability; ``Capabilities`` said so."""


class StoreError(BrokerwqError):
    """The store of processed keys refused a call: another schema, a damaged record."""


class StoreUnavailableError(StoreError):
    """The store of processed keys does not answer; nothing runs unprotected meanwhile."""


class ClosedError(DriverError):
    """The driver, consumer or broker was already closed."""


class ProtocolError(DriverError):
    """The other side does not speak what was expected of it.

    A database of another application, a schema of another version, a port of another service.
    """

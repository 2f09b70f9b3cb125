"""What the AWS SDK and the service raise or report, as brokerwq errors.

Read by exception class and by code. ``Error.Code`` says one thing in the query protocol and
another in the JSON protocol, so ``QueryErrorCode`` is preferred and both spellings are known.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from botocore import exceptions as native
from botocore.parsers import ResponseParserError

from brokerwq.errors import (
    AuthenticationError,
    ClosedError,
    ConfigError,
    ConnectionLostError,
    DriverError,
    LeaseLostError,
    MessageRefusedError,
    MessageTooLargeError,
    PermissionDeniedError,
    ProtocolError,
    QueueMismatchError,
    QueueNotFoundError,
    ThrottledError,
    TransientError,
    UnsupportedError,
)

_CUT: Final = 300
_BLOCKED_SECONDS: Final = 60.0
_SERVER_FAULT: Final = 500
_TOO_MANY: Final = 429
_FORBIDDEN: Final = 403
"""From whoever stands between and has no code of SQS for it."""

_BY_CODE: Final[dict[str, type[DriverError]]] = {
    code: kind
    for kind, codes in (
        (
            QueueNotFoundError,
            "QueueDoesNotExist NonExistentQueue AWS.SimpleQueueService.NonExistentQueue",
        ),
        (QueueMismatchError, "QueueNameExists QueueAlreadyExists"),
        (
            PermissionDeniedError,
            (
                "AccessDenied AccessDeniedException AuthorizationError UnauthorizedOperation "
                "KmsAccessDenied KmsDisabled KmsInvalidKeyUsage KmsInvalidState KmsNotFound "
                "KmsOptInRequired KMS.AccessDeniedException KMS.DisabledException "
                "KMS.InvalidStateException KMS.NotFoundException KMS.OptInRequired "
                "OptInRequired"
            ),
        ),
        (
            AuthenticationError,
            (
                "InvalidClientTokenId UnrecognizedClientException SignatureDoesNotMatch "
                "InvalidSignatureException IncompleteSignature InvalidAccessKeyId AuthFailure "
                "MissingAuthenticationToken MissingAuthenticationTokenException ExpiredToken "
                "ExpiredTokenException RequestExpired InvalidSecurity NotAuthorized "
                "RequestTimeTooSkewed"
            ),
        ),
        (
            ThrottledError,
            (
                "RequestThrottled RequestThrottledException Throttling ThrottlingException "
                "ThrottledException TooManyRequestsException RequestLimitExceeded SlowDown "
                "BandwidthLimitExceeded KmsThrottled KMS.ThrottlingException OverLimit "
                "QueueDeletedRecently PurgeQueueInProgress "
                "AWS.SimpleQueueService.QueueDeletedRecently "
                "AWS.SimpleQueueService.PurgeQueueInProgress"
            ),
        ),
        (
            TransientError,
            (
                "InternalError InternalFailure InternalServerError ServiceUnavailable "
                "ServiceUnavailableException RequestTimeout RequestTimeoutException"
            ),
        ),
        (
            LeaseLostError,
            "ReceiptHandleIsInvalid MessageNotInflight AWS.SimpleQueueService.MessageNotInflight",
        ),
        (MessageTooLargeError, "BatchRequestTooLong AWS.SimpleQueueService.BatchRequestTooLong"),
        (MessageRefusedError, "InvalidMessageContents"),
        (UnsupportedError, "UnsupportedOperation AWS.SimpleQueueService.UnsupportedOperation"),
    )
    for code in codes.split()
}

_SETTLES: Final = frozenset({"delete_message_batch", "change_message_visibility_batch"})
_BLOCKED: Final = ("QueueDeletedRecently", "PurgeQueueInProgress")


def to_error(exc: Exception, operation: str, queue: str) -> Exception | None:
    """``exc`` as ours; None if it is no failure of the service, the SDK or the network."""
    where = f"{_camel(operation)} on {queue}" if queue else _camel(operation)
    if isinstance(exc, native.ClientError):
        return _of_answer(exc, operation, where)
    return _of_client(exc, where)


_BY_CLASS: Final[tuple[tuple[tuple[type[Exception], ...], type[Exception], str], ...]] = (
    (
        (native.NoCredentialsError, native.PartialCredentialsError),
        AuthenticationError,
        "the AWS SDK found no complete credentials (environment, profile, role)",
    ),
    ((native.TokenRetrievalError, native.SSOError), AuthenticationError, "no sign-in"),
    (
        (native.SSLError, aiohttp.ClientSSLError, ssl.SSLError),
        AuthenticationError,
        "the TLS handshake failed",
    ),
    (
        (native.NoRegionError,),
        ConfigError,
        "no AWS region: write sqs://eu-west-1/… or set AWS_DEFAULT_REGION",
    ),
    (
        (
            native.ProfileNotFound,
            native.InvalidRegionError,
            native.ConfigParseError,
            native.ConfigNotFound,
        ),
        ConfigError,
        "the AWS SDK's configuration is wrong",
    ),
    ((native.ParamValidationError,), MessageRefusedError, "the AWS SDK refused it"),
    ((ResponseParserError,), ProtocolError, "what answered is not SQS"),
    (
        (native.BotoCoreError, aiohttp.ClientError, OSError),
        ConnectionLostError,
        "no answer",
    ),
)
"""The first that fits; the last line has the base of most others."""


def _of_client(exc: Exception, where: str) -> Exception | None:
    for classes, kind, words in _BY_CLASS:
        if isinstance(exc, classes):
            return kind(f"{where}: {words}: {exc!s:.{_CUT}}")
    if isinstance(exc, ValueError) and "invalid endpoint" in str(exc).lower():
        # An empty AWS_DEFAULT_REGION, for the SDK a region like any other.
        return ConfigError(f"{where}: no AWS region, or no address that can be: {exc!s:.{_CUT}}")
    if isinstance(exc, RuntimeError) and "closed" in str(exc).lower():
        return ClosedError(f"{where}: the client is closed")
    return None


def _of_answer(exc: native.ClientError, operation: str, where: str) -> DriverError:
    answer: Mapping[str, Any] = exc.response
    error: Mapping[str, Any] = answer.get("Error", {})
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    codes = [str(error.get(key, "")) for key in ("QueryErrorCode", "Code")]
    text = f"{where}: {codes[1] or status}: {error.get('Message', '')!s:.{_CUT}}"
    for code in codes:
        kind = _BY_CODE.get(code)
        if kind is not None:
            return _made(kind, code, text, operation)
    if any(code.startswith("InvalidParameter") for code in codes):
        return _of_parameter(text, operation)
    if status == _TOO_MANY:
        return ThrottledError(text)
    if status == _FORBIDDEN:
        return _made(PermissionDeniedError, codes[1], text, operation)
    if status >= _SERVER_FAULT or codes[1].startswith("5"):
        return TransientError(text)
    return ProtocolError(text)


def entry_error(failed: Mapping[str, Any], operation: str, queue: str) -> DriverError:
    """An entry of ``Failed``, of a batch whose call as a whole succeeded."""
    code = str(failed.get("Code", ""))
    text = f"{_camel(operation)} on {queue}: {code}: {failed.get('Message', '')!s:.{_CUT}}"
    kind = _BY_CODE.get(code)
    if kind is not None:
        return _made(kind, code, text, operation)
    if code.startswith("InvalidParameter"):
        return _of_parameter(text, operation)
    if failed.get("SenderFault"):
        return LeaseLostError(text) if operation in _SETTLES else MessageRefusedError(text)
    return TransientError(text)


def unanswered(operation: str, queue: str) -> TransientError:
    """The answer to a batch does not mention one of its entries."""
    return TransientError(f"{_camel(operation)} on {queue}: the answer left this message out")


def lease_lost(queue: str, *, sent: bool = False) -> LeaseLostError:
    """The lease has ended by our own clock, or the message was settled before."""
    done = "; the ack was sent all the same" if sent else ""
    return LeaseLostError(f"the lease on a message of {queue} has ended{done}", sent=sent)


def under_way(queue: str) -> TransientError:
    """The message is being settled: its lease is not lost, and must not be changed either."""
    return TransientError(f"a message of {queue} is being settled")


def _made(kind: type[DriverError], code: str, text: str, operation: str) -> DriverError:
    if kind is ThrottledError:
        return ThrottledError(
            text, retry_after=_BLOCKED_SECONDS if code.endswith(_BLOCKED) else None
        )
    if kind is PermissionDeniedError and "kms" not in code.lower():
        return PermissionDeniedError(f"{text} (the credentials need {action(operation)})")
    return kind(text)


def _of_parameter(text: str, operation: str) -> DriverError:
    # "Message does not exist", "The receipt handle has expired", "Total VisibilityTimeout …
    # beyond the limit" all come as InvalidParameterValue: the operation tells, not the text.
    if operation in _SETTLES:
        return LeaseLostError(text)
    if "must be shorter than" in text:
        return MessageTooLargeError(text)
    return MessageRefusedError(text) if operation == "send_message_batch" else ProtocolError(text)


def action(operation: str) -> str:
    """The IAM action that allows ``operation``; a batch needs the single one's."""
    return f"sqs:{_camel(operation).removesuffix('Batch')}"


def _camel(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))

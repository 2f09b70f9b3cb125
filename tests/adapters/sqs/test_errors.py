"""Every way in which the service and the SDK say no, as the error that tells what to do."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from botocore import exceptions as native
from botocore.parsers import ResponseParserError
from brokerwq_sqs.errors import entry_error, to_error

from brokerwq import errors


def answer(
    code: str, status: int = 400, message: str = "text", query: str | None = None
) -> native.ClientError:
    error: Any = {"Code": code, "Message": message}
    if query is not None:
        error["QueryErrorCode"] = query
    response: Any = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}
    return native.ClientError(response, "Operation")


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (answer("AWS.SimpleQueueService.NonExistentQueue"), errors.QueueNotFoundError),
        (answer("x", query="QueueDoesNotExist"), errors.QueueNotFoundError),
        (answer("QueueAlreadyExists", query="QueueNameExists"), errors.QueueMismatchError),
        (answer("AccessDenied", 403), errors.PermissionDeniedError),
        (answer("AccessDeniedException"), errors.PermissionDeniedError),
        (answer("KmsAccessDenied"), errors.PermissionDeniedError),
        (answer("KMS.DisabledException"), errors.PermissionDeniedError),
        (answer("KmsThrottled"), errors.ThrottledError),
        (answer("RequestThrottled", 403), errors.ThrottledError),
        (answer("ThrottlingException"), errors.ThrottledError),
        (answer("OverLimit", 403), errors.ThrottledError),
        (answer("whatever", 429), errors.ThrottledError),
        (answer("InternalError", 500), errors.TransientError),
        (answer("whatever", 502), errors.TransientError),
        (answer("503", 503), errors.TransientError),
        (answer("ExpiredToken", 403), errors.AuthenticationError),
        (answer("InvalidClientTokenId", 403), errors.AuthenticationError),
        (answer("SignatureDoesNotMatch", 403), errors.AuthenticationError),
        (answer("BatchRequestTooLong"), errors.MessageTooLargeError),
        (answer("InvalidMessageContents"), errors.MessageRefusedError),
        (answer("InvalidParameterValue"), errors.MessageRefusedError),
        (
            answer("InvalidParameterValue", message="must be shorter than 1024 bytes"),
            errors.MessageTooLargeError,
        ),
        (answer("SomethingNew"), errors.ProtocolError),
        (native.EndpointConnectionError(endpoint_url="u"), errors.ConnectionLostError),
        (native.ReadTimeoutError(endpoint_url="u"), errors.ConnectionLostError),
        (native.ConnectTimeoutError(endpoint_url="u"), errors.ConnectionLostError),
        (native.HTTPClientError(error="e"), errors.ConnectionLostError),
        (native.SSLError(endpoint_url="u", error=OSError()), errors.AuthenticationError),
        (
            native.CredentialRetrievalError(provider="p", error_msg="e"),
            errors.ConnectionLostError,
        ),
        (native.NoCredentialsError(), errors.AuthenticationError),
        (
            native.PartialCredentialsError(provider="p", cred_var="v"),
            errors.AuthenticationError,
        ),
        (native.NoRegionError(), errors.ConfigError),
        (native.ProfileNotFound(profile="p"), errors.ConfigError),
        (ResponseParserError("html"), errors.ProtocolError),
        (aiohttp.ClientPayloadError("cut"), errors.ConnectionLostError),
        (ConnectionResetError(), errors.ConnectionLostError),
        (RuntimeError("Session is closed"), errors.ClosedError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else repr(value)[:60],
)
def test_a_failure_has_the_class_that_says_what_to_do(
    exc: Exception, kind: type[Exception]
) -> None:
    assert type(to_error(exc, "send_message_batch", "q")) is kind


def test_a_settle_that_is_refused_for_its_parameters_is_a_lost_lease() -> None:
    # An expired FIFO handle, a deleted message and the end of the 12 hours come alike.
    exc = answer("InvalidParameterValue", message="The receipt handle has expired")

    assert type(to_error(exc, "delete_message_batch", "q")) is errors.LeaseLostError


def test_a_programming_error_is_not_disguised() -> None:
    assert to_error(KeyError("bug"), "send_message_batch", "q") is None


def test_a_denied_batch_names_the_permission_of_the_single_call() -> None:
    error = to_error(answer("AccessDenied"), "change_message_visibility_batch", "orders")

    assert "sqs:ChangeMessageVisibility)" in str(error)
    assert "orders" in str(error)


def test_a_denied_key_does_not_blame_the_queues_permissions() -> None:
    assert "sqs:" not in str(to_error(answer("KmsAccessDenied"), "send_message_batch", "q"))


@pytest.mark.parametrize("code", ["QueueDeletedRecently", "PurgeQueueInProgress"])
def test_a_minute_of_patience_is_said(code: str) -> None:
    error = to_error(answer(f"AWS.SimpleQueueService.{code}"), "create_queue", "q")

    assert isinstance(error, errors.ThrottledError)
    assert error.retry_after == 60


def test_long_answers_are_cut() -> None:
    assert len(str(to_error(answer("New", message="x" * 9999), "send_message_batch", "q"))) < 500


@pytest.mark.parametrize(
    ("failed", "operation", "kind"),
    [
        ({"Code": "InternalError"}, "send_message_batch", errors.TransientError),
        ({"Code": "New", "SenderFault": False}, "delete_message_batch", errors.TransientError),
        ({"Code": "New", "SenderFault": True}, "send_message_batch", errors.MessageRefusedError),
        ({"Code": "New", "SenderFault": True}, "delete_message_batch", errors.LeaseLostError),
        # LocalStack calls a bad handle the server's fault.
        (
            {"Code": "ReceiptHandleIsInvalid", "SenderFault": False},
            "delete_message_batch",
            errors.LeaseLostError,
        ),
        ({"Code": "InvalidMessageContents"}, "send_message_batch", errors.MessageRefusedError),
        ({"Code": "RequestThrottled"}, "send_message_batch", errors.ThrottledError),
        (
            {"Code": "InvalidParameterValue"},
            "change_message_visibility_batch",
            errors.LeaseLostError,
        ),
    ],
    ids=str,
)
def test_an_entry_that_failed_alone_has_its_own_class(
    failed: dict[str, Any], operation: str, kind: type[Exception]
) -> None:
    assert type(entry_error(failed, operation, "q")) is kind

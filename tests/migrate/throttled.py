"""SQS clients that throttle a part of all sends, named by ``clients=`` in a URL."""

from __future__ import annotations

from brokerwq_sqs.client import SdkClients
from brokerwq_sqs.settings import SqsSettings

from brokerwq.testing.sqs_faults import SqsFaults, partly_failed, throttled

faults = SqsFaults(SdkClients(SqsSettings()), seed=3)
faults.often("send_message_batch", 0.25, throttled())
faults.often("send_message_batch", 0.05, partly_failed(0, 3, code="RequestThrottled"))
clients = faults.clients

"""Names from OpenTelemetry's semantic conventions for messaging, and our own beside them.

The conventions are not stable yet, and the package that holds them says so in its module names;
the few that are used are therefore written down here.
https://opentelemetry.io/docs/specs/semconv/messaging/
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "brokerwq"

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
OTHER: Final = "_OTHER"

EXCEPTION: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

MESSAGE_TYPE: Final = "brokerwq.message.type"
ATTEMPT: Final = "brokerwq.attempt"
REDRIVES: Final = "brokerwq.redrives"
OUTCOME: Final = "brokerwq.outcome"
COUNTED: Final = "brokerwq.counted"
REASON: Final = "brokerwq.reason"
STATE: Final = "brokerwq.state"

SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
ATTEMPTS: Final = "brokerwq.attempts"
LEASES_EXTENDED: Final = "brokerwq.leases.extended"
LEASES_LOST: Final = "brokerwq.leases.lost"
DEAD_LETTERS: Final = "brokerwq.dead_letters"
SETTLES_FAILED: Final = "brokerwq.settles.failed"
SUSPECTS: Final = "brokerwq.suspects.isolated"
BROKER_FAILURES: Final = "brokerwq.broker.failures"
LOOP_BLOCKED: Final = "brokerwq.loop.blocked"
QUEUE_MESSAGES: Final = "brokerwq.queue.messages"
QUEUE_OLDEST_AGE: Final = "brokerwq.queue.oldest_age"

# The conventions name these systems; every other broker goes by its URL scheme.
SYSTEMS: Final = {"amqp": "rabbitmq", "amqps": "rabbitmq", "sqs": "aws_sqs"}

# Elsewhere the place of the host in a URL holds a file's or a region's name.
SCHEMES_WITH_SERVER: Final = frozenset({"amqp", "amqps"})

"""brokerwq: one work queue over SQLite, RabbitMQ and Amazon SQS."""

from brokerwq.app import App
from brokerwq.backoff import RetryPolicy
from brokerwq.broker import Broker, connect
from brokerwq.claimer import Claimer
from brokerwq.driver.protocol import Delivery, QueueSpec, QueueStats
from brokerwq.errors import BrokerwqError, EnqueueError
from brokerwq.job import Job
from brokerwq.message import DeadLetterNote, Message
from brokerwq.middleware import Middleware, Next
from brokerwq.once import Once
from brokerwq.outcomes import DeadLetter, Discard, Done, Outcome, Retry, Snooze
from brokerwq.reports import RunReport, SendReport
from brokerwq.runner import Runner
from brokerwq.tx import Tx
from brokerwq.version import __version__

__all__ = [
    "App",
    "Broker",
    "BrokerwqError",
    "Claimer",
    "DeadLetter",
    "DeadLetterNote",
    "Delivery",
    "Discard",
    "Done",
    "EnqueueError",
    "Job",
    "Message",
    "Middleware",
    "Next",
    "Once",
    "Outcome",
    "QueueSpec",
    "QueueStats",
    "Retry",
    "RetryPolicy",
    "RunReport",
    "Runner",
    "SendReport",
    "Snooze",
    "Tx",
    "__version__",
    "connect",
]

"""brokerwq: one work queue over SQLite, RabbitMQ and Amazon SQS."""

from typing import TYPE_CHECKING, Any

from brokerwq.app import App
from brokerwq.backoff import RetryPolicy
from brokerwq.driver.protocol import Delivery, QueueSpec, QueueStats
from brokerwq.errors import BrokerwqError, EnqueueError
from brokerwq.job import Job
from brokerwq.message import DeadLetterNote, Message
from brokerwq.middleware import Middleware, Next
from brokerwq.once import Once
from brokerwq.outcomes import DeadLetter, Discard, Done, Outcome, Retry, Snooze
from brokerwq.reports import RunReport, SendReport
from brokerwq.tx import Tx
from brokerwq.version import __version__

if TYPE_CHECKING:
    from brokerwq.broker import Broker
    from brokerwq.claimer import Claimer
    from brokerwq.connecting import connect
    from brokerwq.runner import Runner

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

# Whoever only defines workers and enqueues needs none of the machinery behind these.
_ON_DEMAND = {
    "Broker": "brokerwq.broker",
    "Claimer": "brokerwq.claimer",
    "Runner": "brokerwq.runner",
    "connect": "brokerwq.connecting",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        msg = f"module 'brokerwq' has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module  # noqa: PLC0415  -- as above

    return getattr(import_module(_ON_DEMAND[name]), name)


def __dir__() -> list[str]:
    return __all__

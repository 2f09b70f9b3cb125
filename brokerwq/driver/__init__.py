"""What the author of an adapter needs; see ``protocol`` for the contract."""

from brokerwq.driver.adapter import Adapter
from brokerwq.driver.capabilities import Capabilities, Lease, UncountedReturn
from brokerwq.driver.protocol import (
    DEFAULT_BROKER_LIMIT,
    UNKNOWN_COUNT,
    Certainty,
    Consumer,
    Count,
    Delivery,
    Difference,
    Driver,
    Mark,
    Particular,
    QueueSpec,
    QueueStats,
    Results,
    Watchful,
    capabilities_of,
    dead_letter_name,
)

__all__ = [
    "DEFAULT_BROKER_LIMIT",
    "UNKNOWN_COUNT",
    "Adapter",
    "Capabilities",
    "Certainty",
    "Consumer",
    "Count",
    "Delivery",
    "Difference",
    "Driver",
    "Lease",
    "Mark",
    "Particular",
    "QueueSpec",
    "QueueStats",
    "Results",
    "UncountedReturn",
    "Watchful",
    "capabilities_of",
    "dead_letter_name",
]

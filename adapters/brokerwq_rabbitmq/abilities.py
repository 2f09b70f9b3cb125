"""What RabbitMQ can do."""

from __future__ import annotations

from brokerwq.driver import Capabilities, Lease, UncountedReturn
from brokerwq.driver.rules import rabbitmq as rules
from brokerwq_rabbitmq.settings import RabbitSettings


def abilities(settings: RabbitSettings) -> Capabilities:
    """The capabilities of all queues."""
    return Capabilities(
        lease=Lease.CONNECTION,
        max_lease=settings.max_lease,
        max_claim=1000,
        max_settle=1000,
        max_send=200,
        max_message_bytes=settings.max_message_bytes,
        max_send_delay=rules.LONGEST_DELAY,
        max_release_delay=rules.LONGEST_DELAY,
        uncounted_return=UncountedReturn.COPY,
        atomic_dead_letter=False,
        exact_stats=False,
    )

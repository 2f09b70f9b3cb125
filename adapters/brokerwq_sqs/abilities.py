"""What SQS can do: a FIFO queue less than a standard one."""

from __future__ import annotations

from brokerwq.driver import Capabilities, Lease, UncountedReturn
from brokerwq.driver.rules.sqs import MAX_BYTES, MAX_DELAY, MAX_ENTRIES, MAX_LEASE
from brokerwq_sqs.settings import SqsSettings


def abilities(settings: SqsSettings, *, is_fifo: bool) -> Capabilities:
    """The capabilities of a queue, or of all queues of one kind."""
    return Capabilities(
        lease=Lease.TIMED,
        max_lease=MAX_LEASE,
        max_claim=MAX_ENTRIES,
        max_settle=MAX_ENTRIES,
        max_send=MAX_ENTRIES,
        max_message_bytes=MAX_BYTES,
        max_batch_bytes=MAX_BYTES,
        max_wait=settings.max_wait,
        max_send_delay=0 if is_fifo else MAX_DELAY,
        max_release_delay=MAX_LEASE,
        fences=False,
        counts_receives=True,
        uncounted_return=UncountedReturn.COUNTED if is_fifo else UncountedReturn.COPY,
        atomic_dead_letter=False,
        ordered_groups=is_fifo,
        exact_stats=False,
        durable=True,
        lists_queues=True,
    )

"""What the sound drivers can do: sets of capabilities as real brokers have them."""

from __future__ import annotations

import math

from brokerwq.driver import Capabilities, Lease, UncountedReturn

KILOBYTES = 64 * 1024

SOUND: dict[str, Capabilities] = {
    "all that there is": Capabilities(lists_queues=True),
    "connection": Capabilities(
        lease=Lease.CONNECTION,
        max_lease=1740,
        max_message_bytes=KILOBYTES,
        uncounted_return=UncountedReturn.COPY,
        atomic_dead_letter=False,
        exact_stats=False,
    ),
    "connection, classic": Capabilities(
        lease=Lease.CONNECTION,
        max_lease=1740,
        max_send_delay=0,
        max_release_delay=0,
        counts_receives=False,
        uncounted_return=UncountedReturn.COPY,
        atomic_dead_letter=False,
        exact_stats=False,
        durable=False,
    ),
    "unfenced": Capabilities(
        max_lease=43_140,
        max_claim=10,
        max_settle=10,
        max_send=10,
        max_message_bytes=KILOBYTES,
        max_batch_bytes=KILOBYTES,
        max_wait=20,
        max_send_delay=900,
        max_release_delay=43_140,
        fences=False,
        uncounted_return=UncountedReturn.COPY,
        atomic_dead_letter=False,
        exact_stats=False,
    ),
    "one at a time, counted": Capabilities(
        max_claim=1,
        max_settle=1,
        max_send=1,
        max_batch_bytes=math.inf,
        max_wait=20,
        max_send_delay=0,
        max_release_delay=43_140,
        uncounted_return=UncountedReturn.COUNTED,
    ),
}

"""The ranges of what users may say, in one place. All are inclusive.

They are far beyond sense, so that only slips are refused: a broker's own limits are tighter,
and its ``Capabilities`` has them. Durations are seconds.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

MIN_LEASE: Final = 0.05
"""A shorter one would be over before anything could be done with the message."""
MAX_LEASE: Final = timedelta(days=7).total_seconds()
MAX_TIMEOUT: Final = timedelta(days=365).total_seconds()
MAX_DELAY: Final = timedelta(days=3650).total_seconds()
MAX_BACKOFF: Final = timedelta(days=30).total_seconds()
MAX_GRACE: Final = timedelta(days=1).total_seconds()
MAX_SETTLE: Final = timedelta(hours=1).total_seconds()
MAX_UNKNOWN_AFTER: Final = timedelta(days=14).total_seconds()
MAX_CONNECT: Final = timedelta(hours=1).total_seconds()
MAX_BATCH_WAIT: Final = timedelta(hours=1).total_seconds()
MAX_BATCH: Final = 10_000
MAX_RETENTION: Final = timedelta(days=3650).total_seconds()
MAX_BROKER_LIMIT: Final = 1_000_000
MAX_SLOTS: Final = 100_000
MAX_PROCESSES: Final = 1024

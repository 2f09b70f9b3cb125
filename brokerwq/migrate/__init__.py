"""Moving messages from one broker to another while producers and workers go on.

``Migration`` is the way in. A mover claims at the source, sends to the target under the same
id, waits until the target has it, and acks then: stopped at any moment, a message may be on both
sides, never on none. The ``Ledger`` remembers every id, so that what was moved can be proved.
"""

from brokerwq.migrate.ledger import Ledger
from brokerwq.migrate.migration import Migration
from brokerwq.migrate.mover import MoveReport
from brokerwq.migrate.pair import Pair, pairs_of
from brokerwq.migrate.plan import MigrationPlan, Misfit
from brokerwq.migrate.record import MigrationRecord
from brokerwq.migrate.side import Side
from brokerwq.migrate.verify import Verification
from brokerwq.migrate.watch import SideState

__all__ = [
    "Ledger",
    "Migration",
    "MigrationPlan",
    "MigrationRecord",
    "Misfit",
    "MoveReport",
    "Pair",
    "Side",
    "SideState",
    "Verification",
    "pairs_of",
]
